"""What a run exposes while it is measured, by hand."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from perfharness import PerfRecorder
from perfharness.metrics.exposed_run import RunCollector
from perfharness.model.telemetry import LIVE_NAME
from perfharness.tracer import range_log
from perfharness.tracer.range_log import RangeLog

READINGS = {
    "GPU-1": {
        "power_instant_mw": 250_000.0,
        "energy_total_mj": 7_000.0,
        "gpu_utilization_percent": 90.0,
        "memory_utilization_percent": 40.0,
        "temperature_c": 65.0,
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "memory_used_bytes": 5e9,
    },
    "process:proc_0_gpu_0": {"cpu_time_ns": 3e9, "rss_bytes": 2e9, "process_memory_bytes": 4e9},
    "process:proc_0_gpu_0#7": {"rss_bytes": 1e9},
    "host": {"cpu_percent": 25.0, "memory_used_bytes": 8e9},
    "host#3": {"cpu_percent": 100.0},
}
EXPOSED = {
    ("0", "GPU-1"): {
        "gpu_power_watts": 250,
        "gpu_energy_joules_total": 7,
        "gpu_utilization_ratio": 0.9,
        "gpu_memory_utilization_ratio": 0.4,
        "gpu_temperature_celsius": 65,
        "gpu_sm_clock_hertz": 1.98e9,
        "gpu_memory_clock_hertz": 3.201e9,
        "gpu_memory_used_bytes": 5e9,
    },
    ("proc_0_gpu_0",): {
        "process_cpu_seconds_total": 3,
        "process_resident_memory_bytes": 2e9,
        "process_gpu_memory_bytes": 4e9,
        "run_batches_total": 2,
        "run_items_total": 8,
    },
    (): {"host_cpu_ratio": 0.25, "host_memory_used_bytes": 8e9},
    ("proc_0_gpu_0", "svc", "batch"): {"run_stage_ranges_total": 2},
    ("proc_0_gpu_0", "svc", "batch/decode"): {"run_stage_ranges_total": 3},
}
"""By labels without the host; the batch that was deleted does not count."""


def test_all_that_is_exposed(tmp_path: Path) -> None:
    (tmp_path / "proc_0_gpu_0").mkdir()
    range_log.install(RangeLog(str(tmp_path / "proc_0_gpu_0")))
    try:
        perf = PerfRecorder("svc")
        for index in range(3):
            with perf.batch(index, total_items=4) as batch, perf.range("decode"):
                batch.delete_range = index == 2
    finally:
        range_log.install(None)
    line = json.dumps({"time_unix_ns": 10**18, "gpus": {"GPU-1": 0}, "values": READINGS})
    (tmp_path / LIVE_NAME).write_text(f"{line}\n")
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for family in RunCollector(tmp_path).collect():
        for name, labels, value, *_ in family.samples:
            assert labels.pop("host") == platform.node()
            if name != "perfharness_run_stage_seconds_total":
                found.setdefault(tuple(labels.values()), {})[name.removeprefix("perfharness_")] = value
    assert found == {labels: pytest.approx(values) for labels, values in EXPOSED.items()}
