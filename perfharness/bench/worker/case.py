"""The process of one case: `python -m perfharness.bench.worker.case FOLDER/spec.json`; `spec.py` lists its files."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from perfharness.analysis.suites.bench_figures import MUCH_CLOCK_DROP_PERCENT, unsteady_speed
from perfharness.analysis.suites.latency import latency_stats, rate_estimate
from perfharness.backends import Session
from perfharness.bench.spec import CASE_ENTRY, OUTPUTS_FOLDER, OUTPUTS_NAME, CaseSpec, tokens_per_item
from perfharness.bench.worker.frame import gpu_view, in_ms, keep_memory, loaded, main, watched
from perfharness.bench.worker.inputs import input_arrays, input_shapes
from perfharness.bench.worker.latency import (
    Timed,
    as_arrays,
    measure_device_time,
    measure_latency,
    quiet_collector,
    warm_up,
    work_for,
)
from perfharness.bench.worker.memory import GpuView
from perfharness.bench.worker.record import CaseRecord
from perfharness.errors import PerfHarnessError
from perfharness.model.bench import LatencyStats, LayerRecord

FIELDS = {
    "telemetry": ("telemetry_items_per_second", "utilization_percent", "power_mean_w", "energy_per_item_j"),
}
"""Of the result, by pass, where they are not called like it."""


def measure_case(spec: CaseSpec, record: CaseRecord, stack: ExitStack) -> None:
    """Run all passes of the spec."""
    record.keep_part("startup", file_cache=spec.file_cache)
    view = gpu_view(spec, stack)
    watchdog = watched(spec, record, view)
    session = stack.enter_context(loaded(spec, record, view))
    warmup = _prepare(spec, record, session)
    watchdog.stop()
    if "latency" in spec.passes:
        keep_latency(spec, record, session, view, warmup)
    keep_memory(spec, record, session, view)
    watchdog.check()
    passes = {"telemetry": _telemetry, "layers": _layers, "outputs": _outputs, "accuracy": _accuracy}
    for done, measure in passes.items():
        if done in spec.passes:
            record.start_phase(done)
            with _not_fatal(record, done):
                measure(spec, record, session)


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
    record.add_reasons(build_ms=session.from_cache)
    session.write_inputs(arrays)
    record.keep(settings=session.settings())
    record.start_phase("first inference")
    begin = time.perf_counter_ns()
    session.run_round()
    record.keep_part("startup", first_inference_ms=in_ms(time.perf_counter_ns() - begin))
    record.start_phase("warm-up")
    return warm_up(session, spec.latency)


def keep_latency(spec: CaseSpec, record: CaseRecord, session: Session, view: GpuView | None, warmup: Timed) -> Timed:
    """Measure the timed rounds, which are returned, then those with device events."""
    record.start_phase("latency")
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
    record.add_reasons(
        latency="; ".join(_latency_notes(timed, stats, record)) or None,
        tokens_per_second="the case counts no tokens" if tokens is None else None,
    )
    record.start_phase("device time")
    device_ms = measure_device_time(session, spec.latency)
    record.keep_arrays(as_arrays(warmup, timed, device_ms))
    record.keep(execute_latency=latency_stats(device_ms, len(warmup.wall_ns) + len(timed.wall_ns)))
    record.add_reasons(execute_latency=None if len(device_ms) else "the session has no device with events of its own")
    return timed


def _latency_notes(timed: Timed, stats: LatencyStats, record: CaseRecord) -> Iterator[str]:
    if timed.ended is not None:
        yield timed.ended
    if stats.mean.reason is not None:
        yield f"the mean has no interval: {stats.mean.reason}"
    if (drift := stats.drift_percent) is not None:
        side = "above" if drift > 0 else "below"
        yield f"it drifts: the median of the last third is {abs(drift):.1f} % {side} that of the first"
    drop = record.result.clock_drop_percent
    if drop is not None and drop > MUCH_CLOCK_DROP_PERCENT:
        yield f"the GPU's clock fell by {drop:.1f} % while it was measured"


def _clock_drop(record: CaseRecord, before: float | None, after: float | None) -> None:
    if before and after is not None:
        record.keep(clock_drop_percent=round(100 * (before - after) / before, 3))
    else:
        record.add_reasons(clock_drop_percent="no GPU's clock could be read")


def _telemetry(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    from perfharness.bench.worker.telemetry import measure_telemetry

    def work() -> list[int]:
        with quiet_collector():
            return work_for(session, spec.telemetry.seconds)

    found = measure_telemetry(record.folder, spec.telemetry, spec.case.batch_size, work)
    memory = record.result.memory
    drop = record.result.clock_drop_percent
    record.keep(
        telemetry_items_per_second=found.telemetry_items_per_second,
        utilization_percent=found.utilization_percent,
        power_mean_w=found.power_mean_w,
        energy_per_item_j=found.energy_per_item_j,
        clock_drop_percent=found.clock_drop_percent if drop is None else drop,
    )
    reasons = {name: reason for name, reason in found.reasons.items() if getattr(record.result, name) is None}
    record.add_reasons(**reasons)
    record.add_reasons(telemetry_items_per_second=unsteady_speed(record.result))
    process = max((size for size in (memory.device_process_bytes, found.device_peak_bytes) if size), default=None)
    known = [size for size in (process, memory.device_allocator_bytes) if size is not None]
    record.keep_part("memory", device_process_bytes=process, device_peak_bytes=max(known) if known else None)


def _layers(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    found = session.layer_times(spec.layer_rounds)
    if isinstance(found, str):
        record.add_reasons(layers=found)
    else:
        record.keep(layers=[LayerRecord(name=one.name, milliseconds=one.milliseconds) for one in found])


def _outputs(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    session.run_round()
    hidden = record.folder / f".{OUTPUTS_NAME}"
    outputs: dict[str, Any] = session.read_outputs()
    np.savez(hidden, **outputs)
    hidden.replace(record.folder / OUTPUTS_NAME)


def _accuracy(spec: CaseSpec, record: CaseRecord, session: Session) -> None:
    from perfharness.bench.accuracy.of_case import measure_accuracy

    if spec.accuracy is None:
        record.add_reasons(accuracy="the suite has no [accuracy], which names the data")
        return
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


@contextmanager
def _not_fatal(record: CaseRecord, name: str) -> Iterator[None]:
    """For secondary passes: where one fails, its fields stay empty with the reason, and the case continues."""
    try:
        yield
    except PerfHarnessError as error:
        record.add_reasons(**dict.fromkeys(FIELDS.get(name, (name,)), str(error)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CASE_ENTRY, measure_case, CaseSpec))
