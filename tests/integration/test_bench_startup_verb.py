"""`perfharness bench start-up` with real processes of the fake backend: cold and warm in turn, all parts reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfharness.bench.suite.startup import startup_figures
from perfharness.model.bench import BenchCase, CaseResult, StartUp
from perfharness.model.cold_start import COLD_START_NAME, ColdStart
from perfharness.testing.fake_backend import FAKE_BACKEND, FakeScript, write_model


def run(tmp_path: Path, script: FakeScript, *options: str) -> subprocess.CompletedProcess[str]:
    text = write_model(tmp_path / "fake_model.py", script)
    return subprocess.run(
        [
            sys.executable, "-m", "perfharness", "bench", "start-up", "--model", text, "--backend", FAKE_BACKEND,
            "--device", "cpu", "-o", str(tmp_path / "out"), *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )  # fmt: skip


def test_cold_and_warm_processes_in_turn(tmp_path: Path) -> None:
    done = run(tmp_path, FakeScript(execute_ms=1, load_ms=120, allocate_ms=60, first_extra_ms=30), "--count", "1")
    found = ColdStart.model_validate_json((tmp_path / "out" / COLD_START_NAME).read_text())
    assert [row.folder for row in found.rows] == ["first", "cold_0", "warm_0"]
    assert [row.status for row in found.rows if row.cache != "cold"] == ["ok", "ok"], done.stdout + done.stderr
    cold = found.rows[1]
    if cold.status == "ok":  # where the cache may be emptied
        assert done.returncode == 0
        assert cold.cache_state is not None
        assert cold.cache_state.method is not None
        assert found.cold["load_ms"].count == 1
    else:
        assert done.returncode == 3
        assert found.cold_reason
    warm = found.rows[2].startup
    assert warm is not None
    assert (warm["load_ms"] >= 120, warm["allocate_ms"] >= 60, warm["first_inference_ms"] >= 31) == (True, True, True)
    parts = [value for name, value in warm.items() if name != "process_to_first_result_ms" and value is not None]
    assert abs(warm["process_to_first_result_ms"] - sum(parts)) < 1e-3
    assert "warm cache" in done.stdout


def test_a_model_that_does_not_load_is_told_once(tmp_path: Path) -> None:
    done = run(tmp_path, FakeScript(unavailable="there is no such chip"), "--count", "3")
    assert done.returncode == 1
    assert "no such chip" in done.stdout
    found = ColdStart.model_validate_json((tmp_path / "out" / COLD_START_NAME).read_text())
    assert [row.folder for row in found.rows] == ["first"]
    again = run(tmp_path, FakeScript())
    assert again.returncode == 2
    assert "is not empty" in again.stdout + again.stderr


def test_the_sum_is_there_where_all_parts_are() -> None:
    case = BenchCase(case_id="c", model="m", backend="b", mode="", precision="fp32", device="cpu", batch_size=1)
    parts = StartUp(process_ms=1, import_ms=2, load_ms=4, allocate_ms=8, first_inference_ms=16)
    whole = startup_figures(CaseResult(case=case, status="ok", startup=parts))
    assert whole["process_to_first_result_ms"] == 31
    assert whole["build_ms"] is None
    built = parts.model_copy(update={"build_ms": 100.0})
    assert startup_figures(CaseResult(case=case, status="ok", startup=built))["process_to_first_result_ms"] == 131
    missing = parts.model_copy(update={"load_ms": None})
    assert startup_figures(CaseResult(case=case, status="ok", startup=missing))["process_to_first_result_ms"] is None
