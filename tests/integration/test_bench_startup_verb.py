"""`perfharness bench --start-up` with real processes of the fake backend: cold and warm in turn, all parts reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.runs.series.model import Series, read_series
from tests.integration.bench_runs import bench
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.unit.bench_results import known


def run(folder: Path, script: FakeScript, count: int, *options: str) -> tuple[int, str, Series]:
    model = write_model(folder / "fake_model.py", script)
    chosen = ("--model", model, "--backend", FAKE_BACKEND, "--device", "cpu", "-o", folder / "out")
    done = bench("--start-up", count, *chosen, *options)
    return done.returncode, done.stdout, known(read_series(folder / "out"))


@pytest.mark.slow
def test_cold_and_warm_processes_in_turn(tmp_path: Path) -> None:
    code, _, found = run(tmp_path, FakeScript(execute_ms=1, load_ms=120, allocate_ms=60, first_extra_ms=30), 1)
    assert [row.folder for row in found.rows] == ["first", "cold_0", "warm_0"]
    assert [row.status for row in found.rows if row.label != "cold"] == ["ok", "ok"]
    cold = found.rows[1]
    assert (code, bool(cold.reason)) == ((0, False) if cold.status == "ok" else (3, True)), "may the cache be emptied?"
    warm = {name: value or 0 for name, value in found.rows[2].figures[""].items()}
    assert (warm["load_ms"] >= 120, warm["allocate_ms"] >= 60, warm["first_inference_ms"] >= 31) == (True, True, True)
    parts = [value for name, value in warm.items() if name != "process_to_first_result_ms"]
    assert warm["process_to_first_result_ms"] == pytest.approx(sum(parts), abs=1e-3)


def test_a_model_that_does_not_load_is_told_once(tmp_path: Path) -> None:
    code, shown, found = run(tmp_path, FakeScript(unavailable="there is no such chip"), 3)
    assert (code, [row.folder for row in found.rows]) == (1, ["first"])
    assert "no such chip" in shown
    for more in ((), ("--batch-size", "1,2")):
        assert run(tmp_path, FakeScript(), 5, *more)[0] == 2
