"""`perfharness bench --start-up` with real processes of the fake backend: cold and warm in turn, all parts reported."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from perfharness.bench.startup import startup_figures
from perfharness.model.bench import CaseResult, StartUp
from perfharness.runs.series.model import Series, read_series
from tests.integration.bench_runs import bench
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.unit.bench_results import known, made_up


def run(folder: Path, script: FakeScript, count: int, *options: str) -> tuple[CompletedProcess[str], Series]:
    model = write_model(folder / "fake_model.py", script)
    chosen = ("--model", model, "--backend", FAKE_BACKEND, "--device", "cpu", "-o", folder / "out")
    done = bench("--start-up", count, *chosen, *options)
    return done, known(read_series(folder / "out"))


@pytest.mark.slow
def test_cold_and_warm_processes_in_turn(tmp_path: Path) -> None:
    script = FakeScript(execute_ms=1, load_ms=120, allocate_ms=60, first_extra_ms=30)
    done, found = run(tmp_path, script, 1)
    assert [row.folder for row in found.rows] == ["first", "cold_0", "warm_0"]
    assert [row.status for row in found.rows if row.label != "cold"] == ["ok", "ok"], done.stdout + done.stderr
    cold = found.rows[1]
    if cold.status == "ok":  # where the cache may be emptied
        assert done.returncode == 0
        assert found.summary["cold"][""]["load_ms"].count == 1
    else:
        assert (done.returncode, bool(cold.reason)) == (3, True)
    warm = {name: value or 0 for name, value in found.rows[2].figures[""].items()}
    assert (warm["load_ms"] >= 120, warm["allocate_ms"] >= 60, warm["first_inference_ms"] >= 31) == (True, True, True)
    parts = [value for name, value in warm.items() if name != "process_to_first_result_ms" and value is not None]
    assert abs(warm["process_to_first_result_ms"] - sum(parts)) < 1e-3


def test_a_model_that_does_not_load_is_told_once(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(unavailable="there is no such chip"), 3)
    assert done.returncode == 1
    assert "no such chip" in done.stdout
    assert [row.folder for row in found.rows] == ["first"]
    again, _ = run(tmp_path, FakeScript(), 5)
    assert again.returncode == 2


def test_the_sum_is_there_where_all_parts_are() -> None:
    parts = StartUp(process_ms=1, import_ms=2, load_ms=4, allocate_ms=8, first_inference_ms=16)

    def whole(**changed: float | None) -> dict[str, float | None]:
        case = made_up("b").case
        return startup_figures(CaseResult(case=case, status="ok", startup=parts.model_copy(update=changed)))

    assert (whole()["process_to_first_result_ms"], whole()["build_ms"]) == (31, None)
    assert whole(build_ms=100.0)["process_to_first_result_ms"] == 131
    assert whole(load_ms=None)["process_to_first_result_ms"] is None
