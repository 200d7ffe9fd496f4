"""Answers Prometheus: what a service and what a running launch exposes, in its default registry or over HTTP."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfharness.distribution import install_command
from perfharness.errors import UsageError
from perfharness.files import reason_of
from perfharness.metrics.collect import COUNT_SHIFT, COUNTERS, NO_STAGE, ONE_RANGE, Meter, SharedSums
from perfharness.metrics.running import RunningRanges, RunningReadings, running_folders
from perfharness.model.telemetry import HOST, process_subject
from perfharness.recorder.core import Core

if TYPE_CHECKING:
    from prometheus_client import Metric

IN_REGISTRY = "1"
"""In place of an address: prometheus_client's default registry, for a service with an endpoint of its own."""

BOUNDS = [(bucket, str(((1 << bucket) - 1) / 1e9)) for bucket in range(17, 37)]
"""Buckets with their upper bounds in seconds, from 131 us to 69 s."""

COUNTER_HELP = {
    "items": "Items of batches that ended, without failed and deleted ones.",
    "batches": "Batches that ended.",
    "failed_batches": "Batches that ended by an exception.",
}


@cache
def client() -> Any:
    """Import `prometheus_client`. Raises `UsageError`."""
    try:
        import prometheus_client.metrics_core
    except ImportError:
        message = f"metrics need prometheus-client; install it with: {install_command('metrics')}"
        raise UsageError(message) from None
    return prometheus_client


def address_of(text: str) -> tuple[str, int]:
    """`127.0.0.1:9400` or `[::1]:9400` -> host and port. Raises `UsageError`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(f"metrics at {text!r}: give HOST:PORT, such as 127.0.0.1:9400 (0.0.0.0 for other hosts)")
    return host, int(port)


# ---- a service ----


class ServiceCollector:
    """Histograms of stages, and counters, of all processes of a service."""

    def __init__(self, shared: SharedSums) -> None:
        self._shared = shared

    def describe(self) -> list[Any]:
        """The metrics without samples."""
        families = client().metrics_core
        stages = families.HistogramMetricFamily(
            "perfharness_stage_seconds", "Time from the start to the end of a stage.", labels=("recorder", "stage")
        )
        counters = [
            families.CounterMetricFamily(f"perfharness_{name}", COUNTER_HELP[name], labels=("recorder",))
            for name in COUNTERS
        ]
        return [stages, *counters]

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        stages, *counters = self.describe()
        buckets: dict[tuple[str, str], dict[int, int]] = {}
        for (recorder, stage, place), value in sorted(self._shared.sums().items()):
            if stage == NO_STAGE:
                counters[place].add_metric((recorder,), value)
            else:
                buckets.setdefault((recorder, stage), {})[place] = value
        for labels, sums in buckets.items():
            counts = [
                (bound, sum(value >> COUNT_SHIFT for place, value in sums.items() if place <= bucket))
                for bucket, bound in BOUNDS
            ]
            total = sum(sums.values())
            stages.add_metric(labels, [*counts, ("+Inf", total >> COUNT_SHIFT)], total % ONE_RANGE / 1e9)
        return [stages, *counters]


@cache
def shared_sums(where: str) -> SharedSums:
    """What all processes of this service add up for an address, or for `IN_REGISTRY`. Raises `UsageError`.

    Processes share the folder of PROMETHEUS_MULTIPROC_DIR, else that of the address, else that of their parent.
    """
    host, port = ("", 0) if where == IN_REGISTRY else address_of(where)
    registry = client().CollectorRegistry(auto_describe=True) if port else client().REGISTRY
    place = f"perfharness-metrics-{os.getuid()}"
    given = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    folder = Path(given or tempfile.gettempdir(), f"{place}-{host}-{port}" if port else place)
    is_temporary = not given and not port
    if is_temporary:
        folder = folder.with_name(f"{place}-of-{os.getpid()}")
    shared = SharedSums(folder, is_temporary=is_temporary)
    registry.register(ServiceCollector(shared))
    if port:
        shared.now_and_then = _Endpoint(registry, host, port, folder).open
        shared.now_and_then()
        shared.keep_writing()
    return shared


def switch_on(recorder: Core, where: str) -> Meter:
    """Make what times the ranges of a recorder, and expose it. Raises `UsageError`.

    Args:
        where: `HOST:PORT`, or `IN_REGISTRY`.
    """
    shared = shared_sums(where)
    meter = Meter(recorder)
    shared.add(meter)
    return meter


class _Endpoint:
    """The HTTP server of a service: one process has it, and when that ends, another takes over."""

    def __init__(self, registry: Any, host: str, port: int, folder: Path) -> None:
        self._registry, self._address, self._folder = registry, (host, port), folder
        self._server: Any = None
        self._lock = -1
        self._has_warned = False
        os.register_at_fork(after_in_child=self._begin_in_child)

    def open(self) -> None:
        """Serve, unless this or another process of the service does."""
        if self._server is not None:
            return
        with contextlib.suppress(OSError):
            self._lock = os.open(self._folder / "endpoint", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._server = _serve(*self._address, self._registry)
            except OSError as error:
                os.close(self._lock)
                if not isinstance(error, BlockingIOError) and not self._has_warned:
                    self._has_warned = True
                    message = f"metrics are not exposed: {_refused(*self._address, error)}"
                    warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _begin_in_child(self) -> None:
        if self._server is not None:
            self._server.socket.close()
            os.close(self._lock)
            self._server = None


def _serve(host: str, port: int, registry: Any) -> Any:
    """Answer in a thread of this process; return the server. Raises `OSError`."""
    server, _ = client().start_http_server(port, host, registry)
    return server


def _refused(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken; choose another"
    return f"{host}:{port} cannot be listened on ({reason_of(error)}); use an address of this machine"


# ---- a run that is being measured ----


@dataclass(frozen=True)
class Exposed:
    """A metric of the sampler as Prometheus has it: in base units, a counter where `name` ends in `_total`."""

    metric: str
    name: str
    scale: float
    text: str


OF_GPU = (
    Exposed("power_instant_mw", "gpu_power_watts", 1e-3, "Power of the GPU."),
    Exposed("energy_total_mj", "gpu_energy_joules_total", 1e-3, "Energy since the driver was loaded."),
    Exposed("gpu_utilization_percent", "gpu_utilization_ratio", 1e-2, "Share of time in which a kernel ran."),
    Exposed("memory_utilization_percent", "gpu_memory_utilization_ratio", 1e-2, "Share of time in memory use."),
    Exposed("temperature_c", "gpu_temperature_celsius", 1, "Temperature of the GPU."),
    Exposed("sm_clock_mhz", "gpu_sm_clock_hertz", 1e6, "Clock of the multiprocessors."),
    Exposed("memory_clock_mhz", "gpu_memory_clock_hertz", 1e6, "Clock of the memory."),
    Exposed("memory_used_bytes", "gpu_memory_used_bytes", 1, "Memory allocated on the GPU by all processes."),
)
OF_PROCESS = (
    Exposed("cpu_time_ns", "process_cpu_seconds_total", 1e-9, "CPU time of a process and all that it started."),
    Exposed("rss_bytes", "process_resident_memory_bytes", 1, "Resident memory of a process and all it started."),
    Exposed("process_memory_bytes", "process_gpu_memory_bytes", 1, "Memory that a process has on its GPUs."),
)
OF_HOST = (
    Exposed("cpu_percent", "host_cpu_ratio", 1e-2, "CPU time of the machine in use; 1 is all cores."),
    Exposed("memory_used_bytes", "host_memory_used_bytes", 1, "Memory in use, without caches."),
)


class RunCollector:
    """The current readings of a run, and its batches, items and stages under the embedded tracer.

    Args:
        folder: where it is being written, or the folder of a suite, whose running cases are read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._host = platform.node()
        self._readers: dict[Path, tuple[RunningReadings, RunningRanges]] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that a registry does not ask for all."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The metrics; those that are not read now are absent."""
        found = _Families(self._host)
        folders = running_folders(self._folder) or [self._folder]
        for folder in folders:
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
            rows: Sequence[Exposed] = OF_HOST
            labels: dict[str, str] = {}
            if subject in readings.gpus:
                rows, labels = OF_GPU, {"gpu": str(readings.gpus[subject]), "uuid": subject}
            elif "#" not in subject and subject.startswith(process_subject("")):
                rows, labels = OF_PROCESS, {"process": subject.removeprefix(process_subject(""))}
            elif subject != HOST:
                continue  # a core, or one process of a tree
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
    """Expose what is measured in a folder while the block runs. Raises `UsageError`."""
    host, port = address_of(address)
    registry = client().CollectorRegistry()
    registry.register(RunCollector(folder))
    try:
        server = _serve(host, port, registry)
    except OSError as error:
        raise UsageError(f"--metrics {address}: {_refused(host, port, error)}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
