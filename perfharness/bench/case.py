"""The process of one case: `python -m perfharness.bench.case FOLDER/spec.json`; what it leaves is in `spec.py`.

Every piece is written when it is known, so that a crash keeps what was done before it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from perfharness.analysis.latency_statistics import autocorrelation, drift_percent, latency_stats, rate_estimate
from perfharness.backends import BackendOptions, ModelSource, Session, backend, model_source
from perfharness.backends.base import Backend
from perfharness.bench.inputs import input_arrays, input_shapes
from perfharness.bench.latency import (
    Timed,
    as_arrays,
    measure_device_time,
    measure_latency,
    one_round,
    quiet_collector,
    warm_up,
    work_for,
)
from perfharness.bench.memory import (
    GpuView,
    MemoryLimitError,
    MemoryWatchdog,
    host_bytes,
    host_peak_bytes,
    limit_host_memory,
    limit_sentence,
    size_on_disk,
)
from perfharness.bench.record import CaseRecord, write_whole
from perfharness.bench.spec import (
    EXIT_USAGE,
    FILES_NAME,
    OUTPUTS_FOLDER,
    OUTPUTS_NAME,
    CaseSpec,
    tokens_per_item,
)
from perfharness.errors import BackendUnavailableError, OutOfMemoryError, PerfHarnessError
from perfharness.model.bench import CaseStatus, LayerRecord
from perfharness.recorder import barrier
from perfharness.telemetry.nvml import open_nvml

NS_PER_MS = 1e6
MAX_CLOCK_DROP_PERCENT = 5.0
ALLOCATOR, RLIMIT = "the framework's allocator", "RLIMIT_DATA"
"""What may hold a memory limit, beside the watchdog."""

ALIKE = 0.5
"""Neighbouring iterations more alike than this are worth a word."""


def main(arguments: list[str]) -> int:
    """Run the case of a spec; the exit code."""
    begun_unix_ns = time.time_ns()
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m perfharness.bench.case FOLDER/spec.json\n")
        return EXIT_USAGE
    path = Path(arguments[0])
    try:
        spec = CaseSpec.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        sys.stderr.write(f"{path} is no spec of a case: {error}\n")
        return EXIT_USAGE
    return run_case(spec, path.parent.absolute(), begun_unix_ns)


def run_case(spec: CaseSpec, folder: Path, begun_unix_ns: int | None = None) -> int:
    """Everything that the spec asks for, in this process; the exit code.

    Args:
        folder: of the case; it exists.
        begun_unix_ns: when this process came to its first line.
    """
    record = CaseRecord(folder, spec)
    record.doing("start")
    try:
        with ExitStack() as stack:
            _run(spec, record, stack, begun_unix_ns)
    except Exception as error:
        status, reason = _verdict(error, record)
        if not isinstance(error, PerfHarnessError):
            traceback.print_exc()
        return record.end(status, reason)
    _keep_files(folder)
    return record.end("ok", None)


def _run(spec: CaseSpec, record: CaseRecord, stack: ExitStack, begun_unix_ns: int | None) -> None:
    if spec.spawned_unix_ns is not None and begun_unix_ns is not None:
        record.keep_part("startup", process_ms=_ms(begun_unix_ns - spec.spawned_unix_ns))
    record.keep_part("startup", file_cache=spec.file_cache)
    # These start processes of their own, which are to find the device as free as this one will.
    if "instances" in spec.passes:
        _instances(spec, record)
    if "stages" in spec.passes:
        _stages(spec, record)
    if {"instances", "stages"} & set(spec.passes) and spec.file_cache == "cold":
        record.keep_part("startup", file_cache="warm")
    view = _gpu_view(spec, stack)
    record.free_bytes = view.free_bytes() if view is not None else None
    watchdog = MemoryWatchdog(spec.memory_limit_bytes, _used(spec, view), lambda used: _over(record, spec, used))
    watchdog.start()
    session = stack.enter_context(_loaded(spec, record, view))
    warmup = _made_ready(spec, record, session)
    watchdog.stop()
    if "latency" in spec.passes:
        _latency(spec, record, session, view, warmup)
    _memory(spec, record, session, view)
    watchdog.check()
    for name, measure in (
        ("telemetry", _telemetry),
        ("layers", _layers),
        ("outputs", _outputs),
        ("accuracy", _accuracy),
    ):
        if name in spec.passes:
            with _not_fatal(record, name):
                measure(spec, record, session)


@contextmanager
def _loaded(spec: CaseSpec, record: CaseRecord, view: GpuView | None) -> Iterator[Session]:
    """The session, with what its start took."""
    record.doing("import")
    begin = time.perf_counter_ns()
    made: Backend = backend(spec.case.backend)
    versions = made.versions()
    record.keep_part("startup", import_ms=_ms(time.perf_counter_ns() - begin))
    record.keep(versions=versions)
    model: ModelSource = model_source(spec.model, spec.model_name)
    made.check_model(model)
    record.keep_part("memory", model_file_bytes=size_on_disk(model.path), limit_bytes=spec.memory_limit_bytes)
    record.because(model_file_bytes="the model is made by a function" if model.path is None else None)
    record.doing("load")
    gc.collect()
    host_before, device_before = host_bytes(), view.used_bytes() if view is not None else None
    begin = time.perf_counter_ns()
    session = made.load(model, options_of(spec))
    load_ms = _ms(time.perf_counter_ns() - begin)
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


def _made_ready(spec: CaseSpec, record: CaseRecord, session: Session) -> Timed:
    """Buffers, inputs, the first inference, the warm-up."""
    _hold_limit(spec, record, session)
    shapes = input_shapes(session.inputs, spec)
    record.doing("allocate")
    arrays = input_arrays(session.inputs, shapes, spec)
    built_before = session.build_ms or 0.0
    begin = time.perf_counter_ns()
    session.allocate(shapes)
    allocate_ms = _ms(time.perf_counter_ns() - begin)
    built = (session.build_ms or 0.0) - built_before
    record.keep_part("startup", allocate_ms=max(0.0, allocate_ms - built), build_ms=session.build_ms)
    session.write_inputs(arrays)
    record.keep(settings=session.settings())
    record.doing("first inference")
    begin = time.perf_counter_ns()
    one_round(session)
    record.keep_part("startup", first_inference_ms=_ms(time.perf_counter_ns() - begin))
    record.doing("warm-up")
    return warm_up(session, spec.latency)


def _latency(spec: CaseSpec, record: CaseRecord, session: Session, view: GpuView | None, warmup: Timed) -> None:
    """The timed rounds, then those with the device's events."""
    if (together := barrier.active()) is not None:
        record.doing("waiting for the other instances")
        together.wait("timed rounds")
    record.doing("latency")
    before = view.sm_clock_mhz() if view is not None else None
    timed = measure_latency(session, spec.latency)
    after = view.sm_clock_mhz() if view is not None else None
    record.keep_arrays(as_arrays(warmup, timed, np.zeros(0)))
    stats = latency_stats(timed.milliseconds, len(warmup.wall_ns), stable=timed.stable)
    assert stats is not None
    tokens = tokens_per_item(spec)
    items = spec.case.batch_size
    record.keep(
        latency=stats,
        items_per_second=rate_estimate(stats.mean, items),
        tokens_per_second=None if tokens is None else rate_estimate(stats.mean, items * tokens),
    )
    _clock_drop(record, before, after)
    record.because(
        latency="; ".join(_latency_notes(timed, record)) or None,
        tokens_per_second="the case counts no tokens" if tokens is None else None,
    )
    _compare_with_stages(record, stats.mean.value)
    record.doing("device time")
    device_ms = measure_device_time(session, spec.latency)
    record.keep_arrays(as_arrays(warmup, timed, device_ms))
    record.keep(execute_latency=latency_stats(device_ms, len(warmup.wall_ns) + len(timed.wall_ns)))
    record.because(execute_latency=None if len(device_ms) else "the session has no device with events of its own")


def _compare_with_stages(record: CaseRecord, engine_ms: float) -> None:
    """How much slower the engine was inside the traced pipeline: its tracer, its cold caches, its preprocessing."""
    traced = record.result.stages_ms.get("engine")
    if traced is not None:
        apart = 100 * (traced - engine_ms) / engine_ms
        said = f"in the traced pipeline the engine takes {traced:.4g} ms, alone {engine_ms:.4g} ms ({apart:+.1f} %)"
        record.because(stages_ms=said)


def _latency_notes(timed: Timed, record: CaseRecord) -> Iterator[str]:
    """What has to be known beside the latency."""
    if timed.ended is not None:
        yield timed.ended
    drift = drift_percent(timed.milliseconds)
    if drift is not None:
        side = "above" if drift > 0 else "below"
        yield f"it drifts: the median of the last third is {abs(drift):.1f} % {side} that of the first"
    alike = autocorrelation(timed.milliseconds)
    if alike is not None and alike > ALIKE:
        yield f"neighbouring iterations are alike (autocorrelation {alike:.2f}), so the intervals are wider"
    drop = record.result.clock_drop_percent
    if drop is not None and drop > MAX_CLOCK_DROP_PERCENT:
        yield f"the GPU's clock fell by {drop:.1f} % while it was measured"


def _clock_drop(record: CaseRecord, before: float | None, after: float | None) -> None:
    if before and after is not None:
        record.keep(clock_drop_percent=round(100 * (before - after) / before, 3))
    else:
        record.because(clock_drop_percent="no GPU's clock could be read")


def _memory(spec: CaseSpec, record: CaseRecord, session: Session, view: GpuView | None) -> None:
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
    if not known:
        why = "the case has no GPU" if spec.case.device == "cpu" else "neither the framework nor NVML tells"
        record.because(device_peak_bytes=why)


def _telemetry(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    from perfharness.bench.beside import measure_beside

    record.doing("telemetry")

    def work() -> int:
        with quiet_collector():
            return work_for(session, spec.telemetry.seconds)

    found = measure_beside(record.folder, spec.telemetry, spec.case.batch_size, work)
    memory = record.result.memory
    drop = record.result.clock_drop_percent
    record.keep(
        utilization_percent=found.utilization_percent,
        power_mean_w=found.power_mean_w,
        energy_per_item_j=found.energy_per_item_j,
        clock_drop_percent=found.clock_drop_percent if drop is None else drop,
    )
    reasons = {name: reason for name, reason in found.reasons.items() if getattr(record.result, name) is None}
    record.because(**reasons)
    process = max((size for size in (memory.device_process_bytes, found.device_peak_bytes) if size), default=None)
    known = [size for size in (process, memory.device_allocator_bytes) if size is not None]
    record.keep_part("memory", device_process_bytes=process, device_peak_bytes=max(known) if known else None)


def _layers(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    record.doing("layers")
    found = session.layer_times(spec.layer_rounds)
    if isinstance(found, str):
        record.because(layers=found)
    else:
        record.keep(layers=[LayerRecord(name=one.name, milliseconds=one.milliseconds) for one in found])


def _outputs(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    record.doing("outputs")
    one_round(session)
    hidden = record.folder / f".{OUTPUTS_NAME}"
    outputs: dict[str, Any] = session.read_outputs()
    np.savez(hidden, **outputs)
    hidden.replace(record.folder / OUTPUTS_NAME)


def _accuracy(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    from perfharness.bench.accuracy.of_case import measure_accuracy

    if spec.accuracy is None:
        record.because(accuracy="the suite has no [accuracy], which says on what data")
        return
    record.doing("accuracy")
    given = spec.accuracy
    store = record.folder / OUTPUTS_FOLDER if given.store else None
    found = measure_accuracy(
        session,
        input_shapes(session.inputs, spec),
        given.settings,
        against=given.against,
        baseline=given.baseline,
        store=store,
        details=record.folder,
    )
    record.keep(accuracy=found)


def _instances(spec: CaseSpec, record: CaseRecord) -> None:
    from perfharness.bench.instances import measure_instances

    record.doing("instances")
    with _not_fatal(record, "instances"):
        found = measure_instances(spec, record.folder)
        record.keep(instances=found)
        record.because(instances=found.reason)


def _stages(spec: CaseSpec, record: CaseRecord) -> None:
    from perfharness.bench.stages import measure_stages

    record.doing("stages")
    with _not_fatal(record, "stages_ms"):
        found = measure_stages(spec, record.folder)
        record.keep(stages_ms=found.stages_ms, stages_gpu_busy_ms=found.gpu_busy_ms)
        record.because(stages_ms=found.reason)


@contextmanager
def _not_fatal(record: CaseRecord, name: str) -> Iterator[None]:
    """A pass beside the latency: where it fails, the field is empty with the reason, and the case goes on."""
    try:
        yield
    except PerfHarnessError as error:
        names = ("utilization_percent", "power_mean_w", "energy_per_item_j") if name == "telemetry" else (name,)
        record.because(**dict.fromkeys(names, str(error)))


def _gpu_view(spec: CaseSpec, stack: ExitStack) -> GpuView | None:
    if spec.case.device == "cpu" or not spec.telemetry.gpu_uuids:
        return None
    return GpuView(stack.enter_context(open_nvml()), spec.telemetry.gpu_uuids[0])


def _used(spec: CaseSpec, view: GpuView | None) -> Any:
    """What the watchdog looks at: the memory that the limit is of."""
    if spec.case.device == "cpu":
        return host_bytes
    return view.used_bytes if view is not None else lambda: None


def _hold_limit(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    """Whatever can hold the limit, from here on; libraries and weights are there, and were watched."""
    if spec.memory_limit_bytes is None:
        return
    holders = [ALLOCATOR] if session.enforces_memory_limit else []
    if spec.case.device == "cpu":
        problem = limit_host_memory(spec.memory_limit_bytes)
        record.because(limit_held_by=problem)
        holders += [] if problem else [RLIMIT]
    record.keep_part("memory", limit_held_by=", ".join([*holders, "a watchdog outside of the timed rounds"]))


def _over(record: CaseRecord, spec: CaseSpec, used: int) -> None:
    """The watchdog's word."""
    assert spec.memory_limit_bytes is not None
    record.end_at_once("memory-limit", limit_sentence(used, spec.memory_limit_bytes))


def options_of(spec: CaseSpec) -> BackendOptions:
    """What the backend is told of a case."""
    case = spec.case
    return BackendOptions(
        device=case.device,
        precision=case.precision,
        mode=case.mode,
        threads=spec.threads,
        extra=spec.extra,
        cache_dir=spec.cache_dir,
        memory_limit_bytes=spec.memory_limit_bytes if case.device == "cuda" else None,
    )


def _verdict(error: Exception, record: CaseRecord) -> tuple[CaseStatus, str]:
    """What an exception means for the case."""
    told = str(error) or type(error).__name__
    if isinstance(error, BackendUnavailableError):
        return "unavailable", told
    if isinstance(error, MemoryLimitError):
        return "memory-limit", told
    if isinstance(error, OutOfMemoryError | MemoryError):
        limit = record.result.memory.limit_bytes
        if limit is not None and _is_limits_doing(record, limit):
            return "memory-limit", f"no room within the limit of {limit / 1e9:.3f} GB: {told}"
        return "out-of-memory", told
    if isinstance(error, PerfHarnessError):
        return "failed", told
    return "failed", f"{type(error).__name__} while in {record.doing_now}: {told}"


def _is_limits_doing(record: CaseRecord, limit_bytes: int) -> bool:
    """Whether it was the limit that left no room, and not the device, which may have had less to begin with."""
    if record.free_bytes is not None:
        return record.free_bytes >= limit_bytes
    held = (record.result.memory.limit_held_by or "").split(", ")
    return bool({ALLOCATOR, RLIMIT} & set(held))


def _keep_files(folder: Path) -> None:
    """What this process has mapped or open, so that a parent can put it out of the file cache."""
    from perfharness_launcher.page_cache import files_of

    write_whole(folder / FILES_NAME, json.dumps(sorted(map(str, files_of(os.getpid())))))


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / NS_PER_MS, 6)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
