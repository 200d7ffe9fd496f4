"""Frame of a case's process: read the spec, load the model, watch the memory, report the end.

Each result is written as soon as it is known, so that a crash keeps earlier ones.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from perfharness.backends import BackendOptions, ModelSource, Session, backend, model_source
from perfharness.backends.base import Backend
from perfharness.bench.spec import EXIT_USAGE, CaseSpec
from perfharness.bench.worker.memory import (
    GpuView,
    MemoryLimitError,
    MemoryWatchdog,
    host_bytes,
    host_peak_bytes,
    limit_sentence,
    size_on_disk,
)
from perfharness.bench.worker.record import CaseRecord
from perfharness.errors import BackendUnavailableError, OutOfMemoryError, PerfHarnessError
from perfharness.model.bench import CaseResult, CaseStatus
from perfharness.model.units import NS_PER_MS
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.hold import STARTED

WATCHDOG = "a watchdog outside of the timed rounds"
"""How the memory limit is enforced, as written to the results."""

STATUSES: Mapping[type[Exception], CaseStatus] = {
    BackendUnavailableError: "unavailable",
    MemoryLimitError: "memory-limit",
    OutOfMemoryError: "out-of-memory",
    MemoryError: "out-of-memory",
    PerfHarnessError: "failed",
}
"""Of a case that ended with an exception: the first that it is."""

Spec = TypeVar("Spec", bound=CaseSpec)


def main(
    arguments: Sequence[str],
    module: str,
    work: Callable[[Spec, CaseRecord, ExitStack], None],
    spec_type: type[Spec],
    result_type: type[CaseResult] = CaseResult,
) -> int:
    """Entry point of `python -m MODULE FOLDER/spec.json`; returns the exit code.

    Args:
        work: runs the measurements; the stack closes what they open.
        result_type: type of `result.json`.
    """
    begun_unix_ns = time.time_ns()
    if len(arguments) != 1:
        sys.stderr.write(f"usage: python -m {module} FOLDER/spec.json\n")
        return EXIT_USAGE
    path = Path(arguments[0])
    try:
        spec = spec_type.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        sys.stderr.write(f"{path} is no spec of a case: {error}\n")
        return EXIT_USAGE
    folder = path.parent.absolute()
    record = CaseRecord(folder, spec, result_type)
    record.start_phase("start")
    try:
        with ExitStack() as stack:
            if started := os.environ.get(STARTED):
                record.keep_part("startup", process_ms=in_ms(begun_unix_ns - int(started)))
            work(spec, record, stack)
    except Exception as error:
        status, reason = _verdict(error, record)
        if not isinstance(error, PerfHarnessError):
            traceback.print_exc()
        return record.end(status, reason)
    return record.end("ok", None)


def gpu_view(spec: CaseSpec, stack: ExitStack) -> GpuView | None:
    """NVML's view of the case's GPU; None where it has none."""
    if spec.case.device == "cpu" or not spec.telemetry.gpu_uuids:
        return None
    return GpuView(stack.enter_context(open_nvml()), spec.telemetry.gpu_uuids[0])


def watched(spec: CaseSpec, record: CaseRecord, view: GpuView | None) -> MemoryWatchdog:
    """Start a watchdog on the memory to which the limit applies."""
    if spec.memory_limit_bytes is not None:
        record.keep_part("memory", limit_held_by=WATCHDOG)

    def used() -> int | None:
        return host_bytes() if spec.case.device == "cpu" else None if view is None else view.used_bytes()

    def exceeded(size: int) -> None:
        record.exit_process("memory-limit", limit_sentence(size, spec.memory_limit_bytes or 0))

    watchdog = MemoryWatchdog(spec.memory_limit_bytes, used, exceeded)
    watchdog.start()
    return watchdog


@contextmanager
def loaded(spec: CaseSpec, record: CaseRecord, view: GpuView | None) -> Iterator[Session]:
    """Load the session, and record start-up times and memory."""
    record.start_phase("import")
    begin = time.perf_counter_ns()
    made: Backend = backend(spec.case.backend)
    versions = made.versions()
    record.keep_part("startup", import_ms=in_ms(time.perf_counter_ns() - begin))
    record.keep(versions=versions)
    model: ModelSource = model_source(spec.model, spec.model_name)
    made.check_model(model)
    record.keep_part("memory", model_file_bytes=size_on_disk(model.path), limit_bytes=spec.memory_limit_bytes)
    record.add_reasons(model_file_bytes="the model is made by a function" if model.path is None else None)
    record.start_phase("load")
    gc.collect()
    host_before, device_before = host_bytes(), view.used_bytes() if view is not None else None
    begin = time.perf_counter_ns()
    session = made.load(model, options_of(spec))
    load_ms = in_ms(time.perf_counter_ns() - begin)
    with session:
        built = session.build_ms
        record.keep_part("startup", load_ms=load_ms if built is None else max(0.0, load_ms - built), build_ms=built)
        device = view.used_bytes() if view is not None else None
        record.keep_part(
            "memory",
            model_host_bytes=max(0, host_bytes() - host_before),
            model_device_bytes=None if device is None else max(0, device - (device_before or 0)),
        )
        record.keep(inputs=list(session.inputs), outputs=list(session.outputs), settings=session.settings())
        yield session


def options_of(spec: CaseSpec) -> BackendOptions:
    """Backend options of a case."""
    case = spec.case
    return BackendOptions(
        device=case.device,
        precision=case.precision,
        mode=case.mode,
        threads=spec.threads,
        extra=spec.extra,
        cache_dir=spec.cache_dir,
    )


def keep_memory(spec: CaseSpec, record: CaseRecord, session: Session, view: GpuView | None) -> None:
    """Record peak memory so far.

    Raises `MemoryLimitError` where the peak, which the watchdog may have missed, was over the limit.
    """
    allocator = session.device_memory_bytes()
    process = view.used_bytes() if view is not None else None
    known = [size for size in (allocator, process) if size is not None]
    record.keep_part(
        "memory",
        device_allocator_bytes=allocator,
        device_process_bytes=process,
        device_source=view.memory_source if process is not None and view is not None else None,
        device_peak_bytes=max(known) if known else None,
        host_peak_bytes=host_peak_bytes(),
    )
    peak, limit = host_peak_bytes() if spec.case.device == "cpu" else max(known, default=0), spec.memory_limit_bytes
    if limit is not None and peak > limit:
        raise MemoryLimitError(limit_sentence(peak, limit))
    if not known:
        why = "the case has no GPU" if spec.case.device == "cpu" else "neither the framework nor NVML reports it"
        record.add_reasons(device_peak_bytes=why)


def _verdict(error: Exception, record: CaseRecord) -> tuple[CaseStatus, str]:
    message = str(error) or type(error).__name__
    status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), None)
    return status or "failed", message if status else f"{type(error).__name__} while in {record.phase}: {message}"


def in_ms(nanoseconds: int) -> float:
    """Milliseconds, to the nanosecond."""
    return round(nanoseconds / NS_PER_MS, 6)
