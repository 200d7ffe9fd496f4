"""Expose the sums of a service in prometheus_client's default registry or over HTTP."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfharness.boot import ranks
from perfharness.distribution import install_command
from perfharness.errors import UsageError
from perfharness.files import reason_of
from perfharness.metrics.collect import COUNTERS, NO_STAGE, TOTAL_NS, Meter, SharedSums
from perfharness.recorder.core import Core

if TYPE_CHECKING:
    from prometheus_client import Metric

IN_REGISTRY = "1"
"""Replaces the address: use prometheus_client's default registry, because the service has an endpoint."""

BOUNDS = [(bucket, str(((1 << bucket) - 1) / 1e9)) for bucket in range(17, 37)]
"""Buckets and their upper bounds in seconds, from 131 us to 69 s."""

COUNTER_HELP = {
    "items": "Items of ended batches, without failed and deleted ones.",
    "batches": "Ended batches.",
    "failed_batches": "Batches that raised an exception.",
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
    """Parse `127.0.0.1:9400` or `[::1]:9400` into host and port. Raises `UsageError`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(f"metrics at {text!r}: give HOST:PORT, such as 127.0.0.1:9400, or 0.0.0.0:9400 for all hosts")
    return host, int(port)


class ServiceCollector:
    """Stage histograms and counters of all processes of a service."""

    def __init__(self, shared: SharedSums) -> None:
        self._shared = shared

    def describe(self) -> list[Any]:
        """Return the metrics without samples."""
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
        """Return the metrics."""
        stages, *counters = self.describe()
        buckets: dict[tuple[str, str], dict[int, int]] = {}
        for (recorder, stage, place), value in sorted(self._shared.sums().items()):
            if stage == NO_STAGE:
                counters[place].add_metric((recorder,), value)
            else:
                buckets.setdefault((recorder, stage), {})[place] = value
        for labels, sums in buckets.items():
            total_ns = sums.pop(TOTAL_NS)
            counts = [
                (bound, sum(count for place, count in sums.items() if place <= bucket)) for bucket, bound in BOUNDS
            ]
            stages.add_metric(labels, [*counts, ("+Inf", sum(sums.values()))], total_ns / 1e9)
        return [stages, *counters]


@cache
def shared_sums(where: str) -> SharedSums:
    """Return the sums of this service's processes for an address or `IN_REGISTRY`. Raises `UsageError`.

    Processes share the folder PROMETHEUS_MULTIPROC_DIR, else a folder per address, else per parent process.
    """
    host, port = ("", 0) if where == IN_REGISTRY else address_of(where)
    registry = client().CollectorRegistry() if port else client().REGISTRY
    place = f"perfharness-metrics-{os.getuid()}"
    given = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    folder = Path(given or tempfile.gettempdir(), f"{place}-{host}-{port}" if port else place)
    is_temporary = not given and not port
    if is_temporary:
        folder = folder.with_name(f"{place}-of-{os.getpid()}-{ranks.start_ticks() or 0}")
    shared = SharedSums(folder, is_temporary=is_temporary)
    registry.register(ServiceCollector(shared))
    if port:
        shared.now_and_then = _Endpoint(registry, host, port, folder).open
        shared.now_and_then()
        shared.keep_writing()
    return shared


def switch_on(recorder: Core, where: str) -> Meter:
    """Time the ranges of a recorder and expose them at `HOST:PORT` or `IN_REGISTRY`. Raises `UsageError`."""
    shared = shared_sums(where)
    meter = Meter(recorder)
    shared.add(meter)
    return meter


class _Endpoint:
    """HTTP server of a service, in one of its processes; another takes over when that ends."""

    def __init__(self, registry: Any, host: str, port: int, folder: Path) -> None:
        self._registry, self._address, self._folder = registry, (host, port), folder
        self._server: Any = None
        self._lock: int | None = None
        self._has_warned = False
        os.register_at_fork(after_in_child=self._begin_in_child)

    def open(self) -> None:
        """Serve, unless a process of the service already does."""
        if self._server is not None:
            return
        with contextlib.suppress(OSError):
            self._lock = os.open(self._folder / "endpoint", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._server = serve(*self._address, self._registry)
            except OSError as error:
                self._unlock()
                if not isinstance(error, BlockingIOError) and not self._has_warned:
                    self._has_warned = True
                    message = f"metrics are not exposed: {refused(*self._address, error)}"
                    warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _begin_in_child(self) -> None:
        self._unlock()
        if self._server is not None:
            self._server.socket.close()
            self._server = None

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def serve(host: str, port: int, registry: Any) -> Any:
    """Serve on a thread; return the server. Raises `OSError`."""
    server, _ = client().start_http_server(port, host, registry)
    return server


def refused(host: str, port: int, error: OSError) -> str:
    """Explain why the server cannot listen, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; choose another"
    return f"cannot listen on {host}:{port} ({reason_of(error)}); use an address of this machine"
