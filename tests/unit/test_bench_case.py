"""One case in a real process of its own, with the fake backend: what it leaves when all goes well, and when not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.bench.process import read_arrays
from perfharness.bench.spec import CASE_ENTRY, FILES_NAME, OUTPUTS_NAME, CaseSpec, LatencySettings, TelemetrySettings
from perfharness.model.bench import BenchCase, CaseResult
from perfharness.testing.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.integration.case_process import run_case

QUICK = LatencySettings(warmup=3, iterations=120, device_iterations=50)


def case(batch_size: int = 4, **fields: Any) -> BenchCase:
    whole: dict[str, Any] = {
        "case_id": "one", "model": "fake", "backend": FAKE_BACKEND, "mode": "plain", "precision": "fp32",
        "device": "cpu", "batch_size": batch_size,
    }  # fmt: skip
    return BenchCase.model_validate({**whole, **fields})


def run(folder: Path, script: FakeScript, case_: BenchCase | None = None, **fields: Any) -> tuple[CaseResult, int]:
    """Run a case; its row, and the exit code."""
    folder.mkdir(exist_ok=True)
    text = write_model(folder / "fake_model.py", script)
    spec = CaseSpec.model_validate({"case": case_ or case(), "model": text, "latency": QUICK, **fields})
    return run_case(folder, spec, timeout_s=120)


def test_all_that_was_asked_for_is_there(tmp_path: Path) -> None:
    script = FakeScript(execute_ms=1, load_ms=30, allocate_ms=20, first_extra_ms=40, layers={"conv": 0.7})
    found, code = run(
        tmp_path / "case",
        script,
        passes=("latency", "telemetry", "layers", "outputs"),
        telemetry=TelemetrySettings(seconds=0.3),
        tokens_per_item=16,
    )
    assert (found.status, found.reason, code) == ("ok", None, 0)
    assert found.latency is not None
    assert (found.latency.iterations, found.latency.warmup_iterations) == (120, 3)
    assert found.latency.min >= 1.0
    assert found.items_per_second is not None
    assert found.items_per_second.value == pytest.approx(4e3 / found.latency.mean.value)
    assert found.tokens_per_second is not None
    assert found.tokens_per_second.value == pytest.approx(16 * found.items_per_second.value)
    startup = found.startup
    assert startup.load_ms is not None
    assert startup.allocate_ms is not None
    assert startup.first_inference_ms is not None
    assert startup.process_ms is not None
    assert (startup.load_ms >= 30, startup.allocate_ms >= 20, startup.first_inference_ms >= 41) == (True, True, True)
    assert [layer.name for layer in found.layers] == ["conv"]
    for name in ("utilization_percent", "energy_per_item_j", "power_mean_w", "clock_drop_percent", "execute_latency"):
        assert getattr(found, name) is None
        assert found.reasons[name], "never without a reason"
    assert found.memory.host_peak_bytes
    arrays = read_arrays(tmp_path / "case")
    assert len(arrays["wall_ns"]) == len(arrays["start_ns"]) == 120
    assert (np.diff(arrays["start_ns"]) >= arrays["wall_ns"][:-1]).all()
    assert np.median(arrays["wall_ns"]) / 1e6 == pytest.approx(found.latency.median.value)
    with np.load(tmp_path / "case" / OUTPUTS_NAME) as outputs:
        assert outputs["y"].shape == (4, 4)
    assert any(name.endswith("python3.11") or "python" in name for name in json.loads(
        (tmp_path / "case" / FILES_NAME).read_text()
    ))  # fmt: skip


def test_rounds_that_are_slower_later_are_told(tmp_path: Path) -> None:
    """4 rounds before, 120 timed, of which the last 60 take 12 ms longer; in the second pass all take 40 ms longer."""
    script = FakeScript(execute_ms=1, series_ms=(*[0.0] * 64, *[12.0] * 60, *[40.0] * 500))
    found, _ = run(tmp_path / "case", script, passes=("latency", "telemetry"), telemetry=TelemetrySettings(seconds=0.5))
    assert found.latency is not None
    assert found.latency.drift_percent is not None
    assert found.latency.drift_percent > 100
    assert "it drifts" in found.reasons["latency"]
    assert found.items_per_second is not None
    assert found.telemetry_items_per_second is not None
    assert found.telemetry_items_per_second < 4 / 0.041
    assert "telemetry_items_per_second" in found.reasons
    assert found.items_per_second.low is None, "of 120 iterations there is no interval"


def test_a_device_tells_its_own_time(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "case", FakeScript(has_device=True, execute_ms=1, copy_out_ms=2))
    assert found.latency is not None
    assert found.execute_latency is not None
    assert found.execute_latency.min >= 1.0
    assert found.latency.min >= 3.0
    assert found.execute_latency.median.value < found.latency.median.value
    assert found.memory.device_allocator_bytes == 1_000


def test_a_crash_while_measuring_keeps_what_was_known(tmp_path: Path) -> None:
    found, code = run(tmp_path / "case", FakeScript(execute_ms=0, crash_at_execution=60))
    assert code == -9
    assert found.status == "failed"
    assert found.reason is not None
    assert "SIGKILL" in found.reason
    assert "while in latency" in found.reason
    assert found.startup.load_ms is not None
    assert found.latency is None


def test_a_crash_after_the_latency_keeps_it(tmp_path: Path) -> None:
    found, _ = run(
        tmp_path / "case",
        FakeScript(execute_ms=0, crash_at_execution=1 + 3 + 120),
        passes=("latency", "outputs"),
    )
    assert found.status == "failed"
    assert found.latency is not None
    assert len(read_arrays(tmp_path / "case")["wall_ns"]) == 120


@pytest.mark.parametrize(
    ("script", "status", "code", "says"),
    [
        (FakeScript(oom_at_batch=4), "out-of-memory", 11, "no room for a batch of 4"),
        (FakeScript(oom_at_batch=4, oom_in_execute=True), "out-of-memory", 11, "to run a batch of 4"),
        (FakeScript(error_at_batch=4), "failed", 1, "does not run a batch of 4"),
        (FakeScript(unavailable="there is no such chip"), "unavailable", 10, "no such chip"),
    ],
)
def test_failures_are_rows(tmp_path: Path, script: FakeScript, status: str, code: int, says: str) -> None:
    found, exit_code = run(tmp_path / "case", script)
    assert (found.status, exit_code) == (status, code)
    assert found.reason is not None
    assert says in found.reason
    assert found.latency is None


def test_memory_of_the_host_is_limited_while_buffers_are_made(tmp_path: Path) -> None:
    """A batch of 8 takes 512 MB, beside some 60 that Python has; a batch of 2 fits."""
    script = FakeScript(execute_ms=0.1, host_bytes_per_item=64 << 20)
    fits, _ = run(tmp_path / "two", script, case(2), memory_limit_bytes=400_000_000)
    assert fits.status == "ok"
    assert fits.memory.limit_held_by == "a watchdog outside of the timed rounds"
    assert fits.memory.host_peak_bytes is not None
    assert fits.memory.host_peak_bytes > 128 << 20
    over, code = run(tmp_path / "eight", script, case(8), memory_limit_bytes=400_000_000)
    assert (over.status, code) == ("memory-limit", 12)
    assert over.reason is not None
    assert "0.400 GB" in over.reason
    assert over.startup.load_ms is not None


def test_a_limit_below_what_is_in_use_ends_the_case_before_it_begins(tmp_path: Path) -> None:
    found, code = run(tmp_path / "case", FakeScript(load_ms=200), memory_limit_bytes=1_000_000)
    assert (found.status, code) == ("memory-limit", 12)
    assert found.reason is not None
    assert "raise --memory-limit" in found.reason


def test_wrong_inputs_are_told(tmp_path: Path) -> None:
    found, code = run(tmp_path / "case", FakeScript(), inputs={"z": ("batch", 4)})
    assert (found.status, code) == ("failed", 1)
    assert found.reason == "the model has no input 'z'; it has: x"


def test_no_spec_is_a_usage_error(tmp_path: Path) -> None:
    for arguments in ([], [str(tmp_path / "none.json")]):
        done = subprocess.run(
            [sys.executable, "-m", CASE_ENTRY, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert done.stderr


def test_several_instances_are_measured_together(tmp_path: Path) -> None:
    found, _ = run(
        tmp_path / "case",
        FakeScript(execute_ms=4),
        passes=("instances", "latency"),
        instances=2,
    )
    assert found.status == "ok"
    together = found.instances
    assert together is not None
    assert together.reason is None
    assert together.instances == 2
    assert together.mean_running is not None
    assert together.mean_running > 1.5, "both were at work over the window"
    assert together.items_per_second is not None
    each = [rate for rate in together.items_per_second_each if rate is not None]
    assert len(each) == 2
    assert sum(each) == pytest.approx(together.items_per_second, rel=1e-6)
    # Four items in 4 ms and what sleeping adds: two processes, at most 2,000 items a second together.
    assert together.items_per_second <= 2000
    assert together.latency is not None
    assert together.latency.iterations >= 240
    assert together.window_ms is not None
    assert together.window_ms > 1000  # of two seconds, of which a busy machine may let them overlap for a part


def test_an_instance_that_fails_is_told(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "case", FakeScript(crash_at_execution=20), passes=("instances",), instances=2)
    assert found.instances is not None
    assert found.instances.items_per_second is None
    assert found.instances.reason is not None
    assert "instance 0 of 2 is failed" in found.instances.reason
    assert "SIGKILL" in found.instances.reason
    assert found.reasons["instances"] == found.instances.reason


def test_several_streams_are_measured_in_one_process(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "case", FakeScript(execute_ms=4), passes=("streams", "latency"), streams=3)
    assert found.status == "ok"
    together = found.streams
    assert together is not None
    assert (together.reason, together.streams, together.outputs_equal) == (None, 3, True)
    assert together.mean_running is not None
    assert together.mean_running > 1.5
    assert together.items_per_second is not None
    each = [rate for rate in together.items_per_second_each if rate is not None]
    assert len(each) == 3
    assert sum(each) == pytest.approx(together.items_per_second, rel=1e-6)
    # Four items in 4 ms and what sleeping adds: three streams, at most 3,000 items a second together.
    assert together.items_per_second <= 3000
    assert together.latency is not None
    assert together.latency.iterations >= 360
    assert together.memory.host_peak_bytes
    assert found.latency is not None
    assert found.latency.iterations == 120, "the case's own are its own"


def test_streams_that_crash_or_share_a_stream_are_told_and_the_case_is_measured(tmp_path: Path) -> None:
    few = LatencySettings(warmup=3, iterations=10, device_iterations=5)
    crashing = FakeScript(crash_at_execution=20)
    found, _ = run(tmp_path / "crash", crashing, passes=("streams", "latency"), streams=2, latency=few)
    assert (found.status, found.latency is None) == ("ok", False)
    assert found.streams is not None
    assert found.streams.items_per_second is None
    assert found.reasons["streams"] == found.streams.reason
    assert "the process with 2 streams is failed: its process was ended by SIGKILL" in found.reasons["streams"]
    one_for_all = FakeScript(has_device=True, one_stream=True)
    found, _ = run(tmp_path / "one", one_for_all, case(device="cuda"), passes=("streams", "latency"), streams=2)
    assert (found.status, found.latency is None) == ("ok", False)
    assert "two of 2 sessions have the same CUDA stream" in found.reasons["streams"]


def test_the_memory_limit_holds_for_streams_and_theirs_is_not_the_cases(tmp_path: Path) -> None:
    script = FakeScript(host_bytes_per_item=50_000_000)
    found, _ = run(tmp_path / "case", script, passes=("streams", "latency"), streams=6, memory_limit_bytes=600_000_000)
    assert (found.status, found.reason) == ("ok", None)
    assert found.memory.host_peak_bytes is not None
    assert found.memory.host_peak_bytes < 600_000_000
    assert "the process with 6 streams is memory-limit: " in found.reasons["streams"]


def test_the_pipeline_around_the_engine_is_told_in_stages(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "case", FakeScript(execute_ms=3), passes=("latency", "stages"))
    assert found.status == "ok"
    stages = found.stages_ms
    assert {"batch", "preprocess", "engine", "engine/execute", "postprocess", "outside of stages"} <= set(stages)
    parts = sum(value for name, value in stages.items() if "/" not in name and name not in ("batch", "between batches"))
    assert parts == pytest.approx(stages["batch"], abs=1e-4), "the stages and what is outside of them are the batch"
    assert stages["engine/execute"] >= 3.0
    assert found.latency is not None
    assert stages["engine"] < stages["batch"]


def test_a_pipeline_of_the_users_own(tmp_path: Path) -> None:
    script = tmp_path / "service.py"
    script.write_text(
        "import sys, time\n"
        "from perfharness import PerfRecorder\n"
        "perf = PerfRecorder('service')\n"
        "for index in range(int(sys.argv[1])):\n"
        "    with perf.batch(index, 4):\n"
        "        with perf.range('decode'):\n"
        "            time.sleep(0.002)\n"
        "perf.finalize()\n"
    )
    found, _ = run(
        tmp_path / "case", FakeScript(), passes=("stages",), pipeline=str(script), pipeline_arguments=("20",)
    )
    assert found.stages_ms["decode"] >= 2.0
    broken, _ = run(tmp_path / "other", FakeScript(execute_ms=0), passes=("latency", "stages"), pipeline="/none.py")
    assert broken.status == "ok", "the latency is measured all the same"
    assert broken.latency is not None
    assert "could not be measured" in broken.reasons["stages_ms"]
