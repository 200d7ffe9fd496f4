"""The sampler beside real work on a real GPU: what it reads makes sense, and agrees with itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.model.telemetry import TELEMETRY_NAME, SampleLog, Series, clock_event_names, process_subject
from perfharness.telemetry.store import read_sample_log

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
MS = 1_000_000
GIB = 1 << 30
MEMORY_GIB = 2
LOAD_S = 6.0

SCRIPT = f"""
import time
import torch
held = torch.empty({MEMORY_GIB} * 2**30, dtype=torch.uint8, device="cuda").fill_(1)
a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
end = time.monotonic() + {LOAD_S}
while time.monotonic() < end:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[SampleLog, dict[str, Any], Path]:
    """A launch of one process that keeps one GPU busy: telemetry, manifest, folder."""
    folder = tmp_path_factory.mktemp("telemetry")
    script, out = folder / "load.py", folder / "out"
    script.write_text(SCRIPT)
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "launcher"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "perfharness", "launch", "--tracer", "none", "--measure-idle", "2", "-o", out, script],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    log = read_sample_log(out / TELEMETRY_NAME)
    for (subject, metric), series in sorted(log.series.items()):
        if not subject.startswith("core:"):
            print(f"{subject[:12]:12} {metric:28} {len(series):5} readings {int(series.is_new.sum()):5} new, "
                  f"{np.nanmin(series.value) if series.is_read.any() else None} to "
                  f"{np.nanmax(series.value) if series.is_read.any() else None}, "
                  f"read in {np.median(series.read_ns) / 1e3:.0f} us, "
                  f"updated every {log.meta.update_period_ns(subject, metric)} ns")  # fmt: skip
    print(log.meta.ticks, log.meta.failures, log.meta.clock, log.meta.sampler_cpu_ns)
    manifest: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return log, manifest, out


def series_of(log: SampleLog, subject: str, metric: str) -> Series:
    found = log.get(subject, metric)
    assert found is not None, (subject, metric, log.meta.failures)
    return found


def gpu_of(manifest: dict[str, Any]) -> str:
    uuid: str = manifest["processes"][0]["gpu_uuid"]
    return uuid


def load_window(manifest: dict[str, Any]) -> tuple[int, int]:
    """From two thirds of the load on, when the sensors have settled, to just before its end."""
    process = manifest["processes"][0]
    end = process["start_unix_ns"] + round(process["duration_s"] * 1e9)
    return end - round(LOAD_S * 0.6e9), end - 700 * MS


def test_the_gpu_of_the_process_is_the_one_that_was_sampled(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, _ = run
    assert [record.subject for record in log.subjects("gpu")] == [gpu_of(manifest)]
    (process,) = log.subjects("process")
    assert process.gpu_uuid == gpu_of(manifest)
    assert process.pid == manifest["processes"][0]["pid"]


def test_power_rises_with_the_load(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, _ = run
    assert log.meta.idle_start_unix_ns is not None
    assert log.meta.idle_end_unix_ns is not None
    for metric in ("power_instant_mw", "power_average_mw"):
        power = series_of(log, gpu_of(manifest), metric)
        assert power.is_read.mean() > 0.95
        assert (power.value[power.is_read] > 0).all()
        idle = power.between(log.meta.idle_start_unix_ns, log.meta.idle_end_unix_ns)
        loaded = power.between(*load_window(manifest))
        assert np.nanmean(loaded.value) > 1.3 * np.nanmean(idle.value), metric


def test_energy_grows_and_agrees_with_power(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, _ = run
    energy = series_of(log, gpu_of(manifest), "energy_total_mj")
    value, times = energy.value[energy.is_read], energy.time_unix_ns[energy.is_read]
    assert len(value) > 20
    assert (np.diff(value) >= 0).all()
    inside = (times >= load_window(manifest)[0]) & (times <= load_window(manifest)[1])
    joules = (value[inside][-1] - value[inside][0]) / 1e3
    seconds = (times[inside][-1] - times[inside][0]) / 1e9
    power = series_of(log, gpu_of(manifest), "power_instant_mw").between(*load_window(manifest))
    watts = np.nanmean(power.value) / 1e3
    print(f"counter {joules / seconds:.1f} W, power {watts:.1f} W")
    assert joules / seconds == pytest.approx(watts, rel=0.25)


def test_update_periods_of_the_sensors_are_found(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, _ = run
    for metric in ("power_instant_mw", "energy_total_mj"):
        period = log.meta.update_period_ns(gpu_of(manifest), metric)
        assert period is not None, metric
        assert 10 * MS < period < 500 * MS, metric
    power = series_of(log, gpu_of(manifest), "power_instant_mw")
    assert 0 < power.is_new.sum() <= len(power)


def test_the_drivers_own_samples_are_finer_than_polling(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, _ = run
    samples = log.get(gpu_of(manifest), "power_sample_mw")
    if samples is None or not samples.is_read.any():
        pytest.skip(f"the driver gives no power samples: {log.meta.failures}")
    samples = samples.select(samples.is_read)
    assert (np.diff(samples.time_monotonic_ns) > 0).all()
    start, end = load_window(manifest)
    inside = samples.between(start, end)
    assert len(inside) > (end - start) / (200 * MS)
    power = series_of(log, gpu_of(manifest), "power_instant_mw").between(start, end)
    assert inside.value.mean() == pytest.approx(np.nanmean(power.value), rel=0.25)


def test_utilisation_clocks_and_reasons_are_plausible(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, _ = run
    gpu, window = gpu_of(manifest), load_window(manifest)
    assert np.nanmax(series_of(log, gpu, "gpu_utilization_percent").between(*window).value) > 50
    assert 100 < np.nanmedian(series_of(log, gpu, "sm_clock_mhz").between(*window).value) < 4000
    assert 10 < np.nanmedian(series_of(log, gpu, "temperature_c").value) < 110
    reasons = series_of(log, gpu, "clock_event_reasons")
    bits = {int(value) for value in reasons.value[reasons.is_read]}
    print([clock_event_names(value) for value in bits])
    assert all(not name.startswith("0x") for value in bits for name in clock_event_names(value))


def test_memory_in_use_is_seen(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, _ = run
    used = series_of(log, gpu_of(manifest), "memory_used_bytes")
    assert np.nanmax(used.value) - np.nanmin(used.value) >= MEMORY_GIB * GIB


def test_memory_of_the_process_is_found_by_its_pid(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, _ = run
    memory = series_of(log, process_subject(manifest["processes"][0]["folder"]), "process_memory_bytes")
    if not memory.is_read.any():
        reasons = {failure.reason for failure in log.meta.failures if failure.metric == "process_memory_bytes"}
        pytest.skip(f"never read: {reasons}")
    assert np.nanmax(memory.value) >= MEMORY_GIB * GIB


def test_the_file_is_whole(run: tuple[SampleLog, dict[str, Any], Path]) -> None:
    log, manifest, out = run
    assert not [path.name for path in out.iterdir() if "spool" in path.name]
    table = pq.read_table(out / TELEMETRY_NAME)
    for column in ("time_unix_ns", "time_monotonic_ns", "subject", "metric", "is_new", "read_ns"):
        assert table.column(column).null_count == 0
    failed = sum(failure.count for failure in log.meta.failures if failure.metric != "*")
    assert table.column("value").null_count == failed
    assert log.meta.ended == "stopped"
    assert not [failure for failure in log.meta.failures if failure.metric == "*"]
    for ticks in log.meta.ticks:
        assert ticks.late + ticks.missed <= max(3, 0.2 * ticks.ticks), ticks
    process = manifest["processes"][0]
    power = series_of(log, gpu_of(manifest), "power_instant_mw")
    assert power.time_unix_ns[0] < process["start_unix_ns"]
    assert power.time_unix_ns[-1] > process["start_unix_ns"] + round(process["duration_s"] * 1e9)
