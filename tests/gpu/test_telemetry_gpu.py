"""The sampler beside real work on a real GPU: what it reads makes sense, and agrees with itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.model.telemetry import TELEMETRY_NAME, Series, clock_event_names, process_subject
from perfharness.telemetry.store import read_sample_log
from tests.integration.launches import environment

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


class Sampled:
    """A launch of one process that keeps one GPU busy: its telemetry and its manifest."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.log = read_sample_log(out / TELEMETRY_NAME)
        self.manifest = json.loads((out / "manifest.json").read_text())
        [self.process] = self.manifest["processes"]
        self.gpu: str = self.process["gpu_uuid"]
        end = self.process["start_unix_ns"] + round(self.process["duration_s"] * 1e9)
        self.end_unix_ns = end
        self.loaded = (end - round(LOAD_S * 0.6e9), end - 700 * MS)
        """From two thirds of the load on, when the sensors have settled, to just before its end."""

    def series(self, metric: str, subject: str | None = None) -> Series:
        found = self.log.get(subject or self.gpu, metric)
        assert found is not None, (metric, self.log.meta.failures)
        return found

    def under_load(self, metric: str) -> Series:
        return self.series(metric).between(*self.loaded)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    folder = tmp_path_factory.mktemp("telemetry")
    script, out = folder / "load.py", folder / "out"
    script.write_text(SCRIPT)
    (folder / "perfharness.toml").write_text("[launch]\nmeasure-idle = 2\n")
    done = subprocess.run(
        [sys.executable, "-m", "perfharness", "launch", "--tracer", "none", "-o", out, script],
        env=environment(), capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = Sampled(out)
    for (subject, metric), series in sorted(found.log.series.items()):
        if not subject.startswith("core:"):
            least, most = (np.nanmin(series.value), np.nanmax(series.value)) if series.is_read.any() else (None, None)
            print(f"{subject[:12]:12} {metric:28} {len(series):5} readings {int(series.is_new.sum()):5} new, "
                  f"{least} to {most}, read in {np.median(series.read_ns) / 1e3:.0f} us, "
                  f"updated every {found.log.meta.update_period_ns(subject, metric)} ns")  # fmt: skip
    print(found.log.meta.failures, found.log.meta.clock, found.log.meta.sampler_cpu_ns)
    return found


def test_the_gpu_and_the_process_are_those_that_were_sampled(run: Sampled) -> None:
    assert [record.subject for record in run.log.subjects("gpu")] == [run.gpu]
    assert [(one.gpu_uuid, one.pid) for one in run.log.subjects("process")] == [(run.gpu, run.process["pid"])]


@pytest.mark.parametrize("metric", ["power_instant_mw", "power_average_mw"])
def test_power_rises_with_the_load(run: Sampled, metric: str) -> None:
    meta, power = run.log.meta, run.series(metric)
    assert meta.idle_start_unix_ns is not None
    assert meta.idle_end_unix_ns is not None
    assert power.is_read.mean() > 0.95
    assert (power.value[power.is_read] > 0).all()
    idle = power.between(meta.idle_start_unix_ns, meta.idle_end_unix_ns)
    assert np.nanmean(run.under_load(metric).value) > 1.3 * np.nanmean(idle.value)


def test_energy_grows_and_agrees_with_power(run: Sampled) -> None:
    energy = run.series("energy_total_mj")
    energy = energy.select(energy.is_read)
    assert len(energy) > 20
    assert (np.diff(energy.value) >= 0).all()
    inside = energy.between(*run.loaded)
    counted = (inside.value[-1] - inside.value[0]) / 1e3 / ((inside.time_unix_ns[-1] - inside.time_unix_ns[0]) / 1e9)
    watts = np.nanmean(run.under_load("power_instant_mw").value) / 1e3
    print(f"counter {counted:.1f} W, power {watts:.1f} W")
    assert counted == pytest.approx(watts, rel=0.25)


@pytest.mark.parametrize("metric", ["power_instant_mw", "energy_total_mj"])
def test_update_periods_of_the_sensors_are_found(run: Sampled, metric: str) -> None:
    period = run.log.meta.update_period_ns(run.gpu, metric)
    assert period is not None
    assert 10 * MS < period < 500 * MS
    assert 0 < run.series(metric).is_new.sum() <= len(run.series(metric))


def test_the_drivers_own_samples_are_finer_than_polling(run: Sampled) -> None:
    samples = run.log.get(run.gpu, "power_sample_mw")
    if samples is None or not samples.is_read.any():
        pytest.skip(f"the driver gives no power samples: {run.log.meta.failures}")
    samples = samples.select(samples.is_read)
    assert (np.diff(samples.time_monotonic_ns) > 0).all()
    inside = samples.between(*run.loaded)
    assert len(inside) > (run.loaded[1] - run.loaded[0]) / (200 * MS)
    assert inside.value.mean() == pytest.approx(np.nanmean(run.under_load("power_instant_mw").value), rel=0.25)


def test_utilisation_clocks_and_reasons_are_plausible(run: Sampled) -> None:
    assert np.nanmax(run.under_load("gpu_utilization_percent").value) > 50
    assert 100 < np.nanmedian(run.under_load("sm_clock_mhz").value) < 4000
    assert 10 < np.nanmedian(run.series("temperature_c").value) < 110
    reasons = run.series("clock_event_reasons")
    names = [clock_event_names(bits) for bits in {int(value) for value in reasons.value[reasons.is_read]}]
    print(names)
    assert not any(name.startswith("0x") for found in names for name in found)


def test_memory_in_use_is_seen_and_that_of_the_process_found_by_its_pid(run: Sampled) -> None:
    used = run.series("memory_used_bytes")
    assert np.nanmax(used.value) - np.nanmin(used.value) >= MEMORY_GIB * GIB
    memory = run.series("process_memory_bytes", process_subject(run.process["folder"]))
    if not memory.is_read.any():
        reasons = {failure.reason for failure in run.log.meta.failures if failure.metric == "process_memory_bytes"}
        pytest.skip(f"never read: {reasons}")
    assert np.nanmax(memory.value) >= MEMORY_GIB * GIB


def test_the_file_is_whole(run: Sampled) -> None:
    table, meta = pq.read_table(run.out / TELEMETRY_NAME), run.log.meta
    failed = sum(failure.count for failure in meta.failures if failure.metric != "*")
    assert {name: table.column(name).null_count for name in table.column_names if table.column(name).null_count} == (
        {"value": failed} if failed else {}
    )
    assert meta.ended == "stopped"
    assert not [failure for failure in meta.failures if failure.metric == "*"]
    power = run.series("power_instant_mw")
    assert power.time_unix_ns[0] < run.process["start_unix_ns"]
    assert power.time_unix_ns[-1] > run.end_unix_ns
