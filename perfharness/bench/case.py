"""The process of one case: load the model, run all passes, and write each result immediately."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from perfharness.analysis.suites.bench_figures import unsteady_speed
from perfharness.analysis.suites.latency import latency_stats, rate_estimate
from perfharness.backends import Session, backend, model_source
from perfharness.bench.inputs import input_arrays, input_shapes
from perfharness.bench.latency import (
    Timed,
    latency_notes,
    measure_device_time,
    measure_latency,
    stats_of,
    warm_up,
    work_for,
)
from perfharness.bench.memory import (
    GpuView,
    MemoryLimitError,
    MemoryWatchdog,
    host_bytes,
    host_peak_bytes,
    limit_sentence,
    size_on_disk,
)
from perfharness.bench.spec import (
    CASE_ENTRY,
    EXIT_USAGE,
    EXITS,
    ITERATIONS_NAME,
    OUTPUTS_FOLDER,
    OUTPUTS_NAME,
    RESULT_NAME,
    CaseSpec,
)
from perfharness.errors import BackendUnavailableError, OutOfMemoryError, PerfHarnessError
from perfharness.files import write_model
from perfharness.model.bench import CaseProcess, CaseResult, CaseStatus, LayerRecord
from perfharness.model.units import NS_PER_MS
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.hold import STARTED

WATCHDOG = "a watchdog outside of the timed rounds"
"""How the memory limit is enforced, for the results."""

STATUSES: Mapping[type[Exception], CaseStatus] = {
    BackendUnavailableError: "unavailable",
    MemoryLimitError: "memory-limit",
    OutOfMemoryError: "out-of-memory",
    MemoryError: "out-of-memory",
    PerfHarnessError: "failed",
}
"""Status by exception; the first matching type counts."""

SAMPLED = (
    *("telemetry_items_per_second", "utilization_percent", "power_mean_w", "energy_per_item_j"),
    *("cpu_percent", "io_wait_percent"),
)
"""Fields of the telemetry pass."""

Spec = TypeVar("Spec", bound=CaseSpec)


class CaseRecord:
    """Result of a running case, written to its folder after every change."""

    def __init__(self, folder: Path, spec: CaseSpec, result_type: type[CaseResult] = CaseResult) -> None:
        self.folder, self.begun_ns = folder, time.monotonic_ns()
        self._writing = threading.RLock()  # the watchdog may end the case from its own thread
        self.result = result_type(
            case=spec.case,
            status="failed",
            reason="its process has not ended",
            started_unix_ns=time.time_ns(),
            process=CaseProcess(reported=False),
        )

    def start_phase(self, phase: str) -> None:
        """Record the current phase."""
        self.keep_part("process", phase=phase)

    def keep(self, **fields: Any) -> None:
        """Set fields of the result."""
        with self._writing:
            self.result = self.result.model_copy(update=fields)
            write_model(self.folder / RESULT_NAME, self.result)

    def keep_part(self, part: str, **fields: Any) -> None:
        """Set fields of `memory`, `startup` or `process`."""
        self.keep(**{part: getattr(self.result, part).model_copy(update=fields)})

    def add_reasons(self, **reasons: str | None) -> None:
        """Add reasons for empty fields, or caveats; None is skipped."""
        given = {name: reason for name, reason in reasons.items() if reason}
        if given:
            self.keep(reasons={**self.result.reasons, **given})

    def keep_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write a file of arrays."""
        hidden, named = self.folder / f".{name}", dict[str, Any](arrays)
        np.savez(hidden, **named)
        hidden.replace(self.folder / name)

    def end(self, status: CaseStatus, reason: str | None) -> int:
        """Write the final status; returns the exit code."""
        with self._writing:
            seconds = (time.monotonic_ns() - self.begun_ns) / 1e9
            self.keep_part("process", reported=True)
            self.keep(status=status, reason=reason, duration_s=round(seconds, 6))
        return EXITS[status]

    def exit_process(self, status: CaseStatus, reason: str) -> NoReturn:
        """Write the final status from another thread and exit the process immediately."""
        with self._writing:
            os._exit(self.end(status, reason))


def main(
    arguments: Sequence[str],
    module: str,
    work: Callable[[Spec, CaseRecord, ExitStack], None],
    spec_type: type[Spec],
    result_type: type[CaseResult] = CaseResult,
) -> int:
    """Entry point of `python -m MODULE FOLDER/spec.json`; returns the exit code.

    Resources of `work`, which measures, go on the stack.
    """
    begun_unix_ns = time.time_ns()
    if len(arguments) != 1:
        sys.stderr.write(f"usage: python -m {module} FOLDER/spec.json\n")
        return EXIT_USAGE
    path = Path(arguments[0])
    try:
        spec = spec_type.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        sys.stderr.write(f"{path} is not the specification of a case: {error}\n")
        return EXIT_USAGE
    record = CaseRecord(path.parent.absolute(), spec, result_type)
    record.start_phase("start")
    try:
        with ExitStack() as stack:
            if started := os.environ.get(STARTED):
                record.keep_part("startup", process_ms=in_ms(begun_unix_ns - int(started)))
            work(spec, record, stack)
    except Exception as error:
        if not isinstance(error, PerfHarnessError):
            traceback.print_exc()
        message = str(error) or type(error).__name__
        if (status := status_of(error)) is None:
            phase = record.result.process.phase if record.result.process is not None else "start"
            message = f"{type(error).__name__} in the phase {phase}: {message}"
        return record.end(status or "failed", message)
    return record.end("ok", None)


def status_of(error: Exception) -> CaseStatus | None:
    """Status of a case with this error; None for unknown errors."""
    return next((status for kind, status in STATUSES.items() if isinstance(error, kind)), None)


def measure_case(spec: CaseSpec, record: CaseRecord, stack: ExitStack) -> None:
    """Run all passes of the spec."""
    record.keep_part("startup", file_cache=spec.file_cache)
    view = gpu_view(spec, stack)
    watchdog = None if spec.memory_limit_bytes is None else _watched(spec, record, view, spec.memory_limit_bytes)
    session = stack.enter_context(loaded(spec, record, view))
    warmup = _prepare(spec, record, session)
    if watchdog is not None:
        watchdog.stop()
    measure_passes(spec, record, session, view, warmup)


def measure_passes(spec: CaseSpec, record: CaseRecord, session: Session, view: GpuView, warmup: Timed) -> None:
    """Run the passes of the spec after the warm-up."""
    if "latency" in spec.passes:
        keep_latency(spec, record, session, view, warmup)
    _keep_memory(spec, record, session, view)
    passes: dict[str, Callable[[CaseSpec, CaseRecord, Session], object]]
    passes = {"telemetry": keep_telemetry, "layers": _layers, "outputs": _outputs, "accuracy": _accuracy}
    for name, measure in passes.items():
        if name in spec.passes or (name == "accuracy" and spec.accuracy is not None):
            record.start_phase(name)
            try:
                measure(spec, record, session)
            except PerfHarnessError as error:  # the fields of this pass stay empty
                record.add_reasons(**dict.fromkeys(SAMPLED if name == "telemetry" else (name,), str(error)))


def gpu_view(spec: CaseSpec, stack: ExitStack) -> GpuView:
    """NVML's view of the case's GPU, if it has one."""
    if spec.case.device == "cpu" or not spec.telemetry.gpu_uuids:
        return GpuView(None)
    return GpuView(stack.enter_context(open_nvml()).device(spec.telemetry.gpu_uuids[0]))


def _watched(spec: CaseSpec, record: CaseRecord, view: GpuView, limit: int) -> MemoryWatchdog:
    """Start a watchdog for the limited memory."""
    record.keep_part("memory", limit_held_by=WATCHDOG)

    def used() -> int | None:
        return host_bytes() if spec.case.device == "cpu" else view.used_bytes()

    def exceeded(size: int) -> None:
        record.exit_process("memory-limit", limit_sentence(size, limit))

    return MemoryWatchdog(limit, used, exceeded)


@contextmanager
def loaded(spec: CaseSpec, record: CaseRecord, view: GpuView) -> Iterator[Session]:
    """Load the session, and record start-up times and memory."""
    record.start_phase("import")
    begin = time.perf_counter_ns()
    made = backend(spec.case.backend)
    versions = made.versions()
    record.keep_part("startup", import_ms=in_ms(time.perf_counter_ns() - begin))
    record.keep(versions=versions)
    model = model_source(spec.model, spec.model_name)
    record.keep_part("memory", model_file_bytes=size_on_disk(model.path), limit_bytes=spec.memory_limit_bytes)
    record.add_reasons(model_file_bytes="the model is created by a function" if model.path is None else None)
    record.start_phase("load")
    gc.collect()
    host_before, device_before = host_bytes(), view.used_bytes()
    begin = time.perf_counter_ns()
    session = made.load(model, spec.options)
    load_ms = in_ms(time.perf_counter_ns() - begin)
    with session:
        built = session.build_ms
        record.keep_part("startup", load_ms=load_ms if built is None else max(0.0, load_ms - built), build_ms=built)
        device = view.used_bytes()
        record.keep_part(
            "memory",
            model_host_bytes=max(0, host_bytes() - host_before),
            model_device_bytes=None if device is None else max(0, device - (device_before or 0)),
        )
        record.keep(inputs=list(session.inputs), outputs=list(session.outputs), settings=session.settings())
        yield session


def _prepare(spec: CaseSpec, record: CaseRecord, session: Session) -> Timed:
    """Allocate, write inputs, run the first inference and the warm-up."""
    shapes = input_shapes(session.inputs, spec)
    record.start_phase("allocate")
    arrays = input_arrays(session.inputs, shapes, spec)
    built_before = session.build_ms or 0.0
    begin = time.perf_counter_ns()
    session.allocate(shapes)
    allocate_ms = in_ms(time.perf_counter_ns() - begin)
    built = (session.build_ms or 0.0) - built_before
    record.keep_part("startup", allocate_ms=max(0.0, allocate_ms - built), build_ms=session.build_ms)
    session.write_inputs(arrays)
    record.keep(settings=session.settings())
    record.keep_part("memory", parameter_bytes=session.parameter_bytes())
    record.start_phase("first inference")
    begin = time.perf_counter_ns()
    session.run_round()
    record.keep_part("startup", first_inference_ms=in_ms(time.perf_counter_ns() - begin))
    record.start_phase("warm-up")
    return warm_up(session, spec.latency)


def keep_latency(spec: CaseSpec, record: CaseRecord, session: Session, view: GpuView, warmup: Timed) -> Timed:
    """Measure the timed rounds (returned), then those with device events."""
    record.start_phase("latency")
    before = view.sm_clock_mhz()
    timed = measure_latency(session, spec.latency)
    after = view.sm_clock_mhz()
    arrays = {"wall_ns": timed.wall_ns, "start_ns": timed.start_ns, "warmup_ns": warmup.wall_ns}
    record.keep_arrays(ITERATIONS_NAME, arrays)
    stats = stats_of(timed, warmup)
    tokens, items = spec.tokens, spec.case.batch_size
    drop = round(100 * (before - after) / before, 3) if before and after is not None else None
    record.keep(
        latency=stats,
        items_per_second=rate_estimate(stats.mean, items),
        tokens_per_second=None if tokens is None else rate_estimate(stats.mean, items * tokens),
        clock_drop_percent=drop,
    )
    record.add_reasons(
        latency="; ".join(latency_notes(timed, stats, drop)) or None,
        tokens_per_second="the case counts no tokens" if tokens is None else None,
        clock_drop_percent="no GPU's clock could be read" if drop is None else None,
    )
    record.start_phase("device time")
    device_ms = measure_device_time(session, spec.latency)
    if len(device_ms):
        record.keep_arrays(ITERATIONS_NAME, {**arrays, "device_ms": device_ms})
    record.keep(execute_latency=latency_stats(device_ms, len(warmup.wall_ns) + len(timed.wall_ns)))
    record.add_reasons(execute_latency=None if len(device_ms) else "the session has no device with its own events")
    return timed


def _keep_memory(spec: CaseSpec, record: CaseRecord, session: Session, view: GpuView) -> None:
    """Record peak memory so far.

    Raises `MemoryLimitError` if the peak was over the limit, which the watchdog may have missed.
    """
    allocator = session.device_memory_bytes()
    process = view.used_bytes()
    known = [size for size in (allocator, process) if size is not None]
    record.keep_part(
        "memory",
        device_allocator_bytes=allocator,
        device_process_bytes=process,
        device_source=view.memory_source,
        device_peak_bytes=max(known) if known else None,
        device_total_bytes=view.total_bytes(),
        host_peak_bytes=host_peak_bytes(),
    )
    peak, limit = host_peak_bytes() if spec.case.device == "cpu" else max(known, default=0), spec.memory_limit_bytes
    if limit is not None and peak > limit:
        raise MemoryLimitError(limit_sentence(peak, limit))
    if not known:
        why = "the case has no GPU" if spec.case.device == "cpu" else "neither the framework nor NVML reports it"
        record.add_reasons(device_peak_bytes=why)


def keep_telemetry(spec: CaseSpec, record: CaseRecord, session: Session, rounds: int | None = None) -> list[int]:
    """Run rounds for the spec's time, or that many, while sampling; returns their ends, UTC ns."""
    from perfharness.bench.telemetry import measure_telemetry  # here, because its libraries load slowly

    ends: list[int] = []

    def work() -> list[int]:
        ends.extend(work_for(session, 0.0 if rounds else spec.telemetry.seconds, least=rounds or 1))
        return ends

    found = measure_telemetry(record.folder, spec.telemetry, spec.case.batch_size, work)
    memory, drop = record.result.memory, record.result.clock_drop_percent
    record.keep(**{name: getattr(found, name) for name in SAMPLED})
    record.keep(clock_drop_percent=found.clock_drop_percent if drop is None else drop)
    missing = {name: reason for name, reason in found.reasons.items() if getattr(record.result, name) is None}
    record.add_reasons(**missing | {"telemetry_items_per_second": unsteady_speed(record.result)})
    process = max((size for size in (memory.device_process_bytes, found.device_peak_bytes) if size), default=None)
    known = [size for size in (process, memory.device_allocator_bytes) if size is not None]
    record.keep_part("memory", device_process_bytes=process, device_peak_bytes=max(known) if known else None)
    return ends


def _layers(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    found = session.layer_times(spec.layer_rounds)
    if isinstance(found, str):
        record.add_reasons(layers=found)
    else:
        record.keep(layers=[LayerRecord(name=one.name, milliseconds=one.milliseconds) for one in found])


def _outputs(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    del spec
    session.run_round()
    record.keep_arrays(OUTPUTS_NAME, session.read_outputs())


def _accuracy(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    from perfharness.bench.accuracy.run import GROUND_TRUTH, measure_accuracy

    given = spec.accuracy
    assert given is not None  # otherwise there is no such pass
    baseline = given.baseline if given.baseline is not None and given.baseline.is_dir() else None
    found = measure_accuracy(
        session,
        input_shapes(session.inputs, spec),
        given.settings,
        against=given.against if baseline is not None else GROUND_TRUTH,
        baseline=baseline,
        store=record.folder / OUTPUTS_FOLDER if given.store else None,
        details=record.folder,
    )
    if baseline is None and not given.store:
        why = f"{given.against} has no outputs for these samples"
        found = found.model_copy(update={"reasons": {**found.reasons, "baseline": why}})
    record.keep(accuracy=found)


def in_ms(nanoseconds: int) -> float:
    """Convert to milliseconds, to the nanosecond."""
    return round(nanoseconds / NS_PER_MS, 6)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CASE_ENTRY, measure_case, CaseSpec))
