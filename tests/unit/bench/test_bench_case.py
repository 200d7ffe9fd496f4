"""One case in a real process of its own, with the fake backend: what it leaves when all goes well, and when not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.bench.results import read_npz
from perfharness.bench.spec import ITERATIONS_NAME, OUTPUTS_NAME, CaseSpec, LatencySettings, TelemetrySettings
from perfharness.model.bench import BenchCase, CaseResult
from tests.integration.case_process import run_case
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.unit.bench_results import known

QUICK = LatencySettings(warmup=3, iterations=120, device_iterations=50)


def run(
    folder: Path, script: FakeScript, batch_size: int = 4, device: str = "cpu", **fields: Any
) -> tuple[CaseResult, int]:
    """Run a case; its row, and the exit code."""
    folder.mkdir(exist_ok=True)
    text = write_model(folder / "fake_model.py", script)
    case = BenchCase.model_validate(
        {"case_id": "one", "model": "fake", "backend": FAKE_BACKEND, "mode": "plain", "precision": "fp32",
         "device": device, "batch_size": batch_size}
    )  # fmt: skip
    spec = CaseSpec.model_validate({"case": case, "model": text, "latency": QUICK, **fields})
    return run_case(folder, spec, timeout_s=120)


Run = tuple[CaseResult, Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every pass of one case."""
    folder = tmp_path_factory.mktemp("whole")
    script = FakeScript(execute_ms=4, load_ms=30, allocate_ms=20, first_extra_ms=40, layers={"conv": 0.7})
    found, code = run(
        folder,
        script,
        passes=("latency", "telemetry", "layers", "outputs"),
        telemetry=TelemetrySettings(seconds=0.3),
        tokens_per_item=16,
    )
    assert (found.status, found.reason, code) == ("ok", None, 0)
    return found, folder


def test_all_that_was_asked_for_is_there(whole: Run) -> None:
    found, folder = whole
    latency, rate = known(found.latency), known(found.items_per_second)
    assert (latency.iterations, latency.warmup_iterations) == (120, 3)
    assert latency.min >= 4.0
    assert rate.value == pytest.approx(4e3 / latency.mean.value)
    assert known(found.tokens_per_second).value == pytest.approx(16 * rate.value)
    startup = found.startup
    assert (known(startup.load_ms) >= 30, known(startup.allocate_ms) >= 20) == (True, True)
    assert (known(startup.first_inference_ms) >= 44, known(startup.process_ms) > 0) == (True, True)
    assert [layer.name for layer in found.layers] == ["conv"]
    for name in ("utilization_percent", "energy_per_item_j", "power_mean_w", "clock_drop_percent", "execute_latency"):
        assert getattr(found, name) is None
        assert found.reasons[name], "never without a reason"
    assert found.memory.host_peak_bytes
    arrays = read_npz(folder / ITERATIONS_NAME)
    assert len(arrays["wall_ns"]) == len(arrays["start_ns"]) == 120
    assert (np.diff(arrays["start_ns"]) >= arrays["wall_ns"][:-1]).all()
    assert np.median(arrays["wall_ns"]) / 1e6 == pytest.approx(latency.median.value)
    with np.load(folder / OUTPUTS_NAME) as outputs:
        assert outputs["y"].shape == (4, 4)


@pytest.mark.slow
def test_rounds_that_are_slower_later_are_told(tmp_path: Path) -> None:
    """4 rounds before, 120 timed, each 0.4 ms longer than the last; in the second pass all take 150 ms longer."""
    script = FakeScript(execute_ms=1, series_ms=(*[0.0] * 4, *(0.4 * each for each in range(120)), *[150.0] * 500))
    found, _ = run(tmp_path / "case", script, passes=("latency", "telemetry"), telemetry=TelemetrySettings(seconds=0.5))
    assert known(known(found.latency).drift_percent) > 20
    assert found.reasons["latency"]
    assert known(found.telemetry_items_per_second) < 4 / 0.151
    assert "telemetry_items_per_second" in found.reasons
    assert known(found.items_per_second).low is None, "of 120 iterations there is no interval"


def test_a_device_tells_its_own_time_and_a_crash_after_the_latency_keeps_it(tmp_path: Path) -> None:
    script = FakeScript(has_device=True, execute_ms=1, copy_out_ms=2, crash_at_execution=1 + 3 + 120 + 50)
    found, code = run(tmp_path / "case", script, passes=("latency", "outputs"))
    assert (found.status, code) == ("failed", -9)
    own, latency = known(found.execute_latency), known(found.latency)
    assert (own.min >= 1.0, latency.min >= 3.0, own.median.value < latency.median.value) == (True, True, True)
    assert found.memory.device_allocator_bytes == 1_000
    assert len(read_npz(tmp_path / "case" / ITERATIONS_NAME)["wall_ns"]) == 120


@pytest.mark.parametrize(
    ("script", "fields", "status", "code", "says"),
    [
        (FakeScript(oom_at_batch=4), {}, "out-of-memory", 11, "batch of 4"),
        (FakeScript(error_at_batch=4), {}, "failed", 1, "batch of 4"),
        (FakeScript(unavailable="there is no such chip"), {}, "unavailable", 10, "no such chip"),
        (FakeScript(), {"inputs": {"z": ("batch", 4)}}, "failed", 1, "'z'"),
        (FakeScript(execute_ms=0, crash_at_execution=60), {}, "failed", -9, "SIGKILL"),
        (FakeScript(load_ms=200), {"memory_limit_bytes": 10**6}, "memory-limit", 12, "--memory-limit"),
        (FakeScript(host_bytes_per_item=128 << 20), {"memory_limit_bytes": 4 * 10**8}, "memory-limit", 12, "0.400 GB"),
    ],
)
def test_failures_are_rows(
    tmp_path: Path, script: FakeScript, fields: dict[str, Any], status: str, code: int, says: str
) -> None:
    found, exit_code = run(tmp_path / "case", script, **fields)
    assert (found.status, exit_code, found.latency) == (status, code, None)
    assert says in known(found.reason)
    if "SIGKILL" in says or "0.400" in says:
        assert found.startup.load_ms is not None, "what was known is kept"


@pytest.mark.slow
def test_memory_of_the_host_that_fits_its_limit(tmp_path: Path) -> None:
    """A batch of 2 takes 128 MB, beside some 60 that Python has."""
    script = FakeScript(execute_ms=0.1, host_bytes_per_item=64 << 20)
    fits, _ = run(tmp_path / "two", script, 2, memory_limit_bytes=400_000_000)
    assert (fits.status, fits.memory.limit_held_by) == ("ok", "a watchdog outside of the timed rounds")
    assert known(fits.memory.host_peak_bytes) > 128 << 20
