"""Expose a run while it is measured: current readings, and batches, items and stages so far."""

from __future__ import annotations

import contextlib
import platform
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfharness.errors import UsageError
from perfharness.metrics.endpoint import address_of, client, refused, serve
from perfharness.metrics.running import RunningRanges, RunningReadings, running_folders
from perfharness.model.telemetry import HOST, process_subject

if TYPE_CHECKING:
    from prometheus_client import Metric


@dataclass(frozen=True)
class Exposed:
    """A metric of the sampler for Prometheus: in base units, a counter if `name` ends in `_total`."""

    metric: str
    name: str
    scale: float
    text: str


GPU_METRICS = (
    Exposed("power_instant_mw", "gpu_power_watts", 1e-3, "Power of the GPU."),
    Exposed("energy_total_mj", "gpu_energy_joules_total", 1e-3, "Energy since the driver was loaded."),
    Exposed("gpu_utilization_percent", "gpu_utilization_ratio", 1e-2, "Share of time with a kernel running."),
    Exposed("memory_utilization_percent", "gpu_memory_utilization_ratio", 1e-2, "Share of time with memory accesses."),
    Exposed("temperature_c", "gpu_temperature_celsius", 1, "Temperature of the GPU."),
    Exposed("sm_clock_mhz", "gpu_sm_clock_hertz", 1e6, "Clock of the multiprocessors."),
    Exposed("memory_clock_mhz", "gpu_memory_clock_hertz", 1e6, "Clock of the memory."),
    Exposed("memory_used_bytes", "gpu_memory_used_bytes", 1, "Memory allocated on the GPU by all processes."),
)
PROCESS_METRICS = (
    Exposed("cpu_time_ns", "process_cpu_seconds_total", 1e-9, "CPU time of a process and its descendants."),
    Exposed("rss_bytes", "process_resident_memory_bytes", 1, "Resident memory of a process and its descendants."),
    Exposed("process_memory_bytes", "process_gpu_memory_bytes", 1, "GPU memory of a process."),
)
HOST_METRICS = (
    Exposed("cpu_percent", "host_cpu_ratio", 1e-2, "Share of the machine's CPU time in use."),
    Exposed("memory_used_bytes", "host_memory_used_bytes", 1, "Memory in use, without caches."),
)


class RunCollector:
    """Current readings of a run and, under the embedded tracer, its batches, items and stages.

    Args:
        folder: a running run, or a suite with running cases.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._host = platform.node()
        self._lock = threading.Lock()  # the server answers in several threads
        self._readers: dict[Path, tuple[RunningReadings, RunningRanges]] = {}

    def collect(self) -> Iterable[Metric]:
        """Return the metrics that have a current reading."""
        with self._lock:
            return self._collect()

    def _collect(self) -> Iterable[Metric]:
        found = _Families(self._host)
        for folder in running_folders(self._folder) or [self._folder]:
            if folder not in self._readers:
                self._readers[folder] = RunningReadings(folder, keep=1), RunningRanges(folder)
            readings, ranges = self._readers[folder]
            readings.read()
            ranges.read()
            self._add_readings(found, readings)
            self._add_ranges(found, ranges)
        return found.families.values()

    def _add_readings(self, found: _Families, readings: RunningReadings) -> None:
        for (subject, metric), value in readings.latest().items():
            rows: Sequence[Exposed] = HOST_METRICS
            labels: dict[str, str] = {}
            if subject in readings.gpus:
                rows, labels = GPU_METRICS, {"gpu": str(readings.gpus[subject]), "uuid": subject}
            elif "#" not in subject and subject.startswith(process_subject("")):
                rows, labels = PROCESS_METRICS, {"process": subject.removeprefix(process_subject(""))}
            elif subject != HOST:
                continue  # a core, or a process below another
            for one in rows:
                if one.metric == metric:
                    found.add(one.name, one.text, labels, value * one.scale)

    def _add_ranges(self, found: _Families, ranges: RunningRanges) -> None:
        for process, done in ranges.processes.items():
            labels = {"process": process}
            found.add("run_batches_total", "Batches so far, without deleted ones.", labels, done.batches)
            if done.items is not None:
                found.add("run_items_total", "Items of these batches.", labels, done.items)
            for (recorder, stage), times in done.stages.items():
                of_stage = {**labels, "recorder": recorder, "stage": stage}
                found.add("run_stage_seconds_total", "Time in a stage so far.", of_stage, times.total_ns / 1e9)
                found.add("run_stage_ranges_total", "Ranges of a stage so far.", of_stage, times.count)


class _Families:
    """Metrics by name; every sample has the label `host`."""

    def __init__(self, host: str) -> None:
        self.families: dict[str, Any] = {}
        self._host = host

    def add(self, name: str, text: str, labels: dict[str, str], value: float) -> None:
        core, all_labels = client().metrics_core, {"host": self._host, **labels}
        kind = core.CounterMetricFamily if name.endswith("_total") else core.GaugeMetricFamily
        if name not in self.families:
            self.families[name] = kind(f"perfharness_{name}", text, labels=tuple(all_labels))
        self.families[name].add_metric(tuple(all_labels.values()), value)


@contextlib.contextmanager
def serving(address: str, folder: Path) -> Iterator[None]:
    """Expose the runs in a folder while the block runs. Raises `UsageError`."""
    host, port = address_of(address)
    registry = client().CollectorRegistry()
    registry.register(RunCollector(folder))
    try:
        server = serve(host, port, registry)
    except OSError as error:
        raise UsageError(f"--metrics {address}: {refused(host, port, error)}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
