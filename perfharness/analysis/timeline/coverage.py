"""Detect GPU work that was started but left no record, from the trace alone.

A trace that lost events looks complete (nsys 2023.4 on CUDA 13 writes such files). Four signs: launching calls without
an operation, operations without a call, CUDA calls that stop while ranges go on, and nsys's message that it could not
collect a process's last events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

import numpy as np

from perfharness.analysis.timeline.busy import ThreadOrder
from perfharness.analysis.timeline.cuda_calls import (
    BEGINS_CAPTURE,
    ENDS_CAPTURE,
    STARTS_COPY,
    STARTS_KERNEL,
    STARTS_MEMSET,
    calls_named,
)
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.columns import Bool, Int64, Integers
from perfharness.model.findings import Finding, Severity
from perfharness.model.nsys_schema import CUPTI_FORKED, CUPTI_NOT_STARTED, CUPTI_STALLED, ONLY_RANGES
from perfharness.model.trace import ApiCalls, GpuOperationKind, NvtxRanges, Trace, pid_of

MIN_SILENT_RANGES = 3
"""Fewest ranges without CUDA calls, because the end of a pipeline may have a few."""

CUDA_OF_NSYS = (((2025, 3), 13), ((2022, 4), 12))
"""Newest CUDA major version known to nsys, from (year, release) on. An older CUPTI loses events silently."""

USE_NEWER_NSYS = "use an nsys that knows this driver's CUDA, or `--tracer embedded`."

Lost = tuple[Bool, Finding]
"""Ranges whose GPU times are unknown, and the reason."""

_UNTRACED = {
    ONLY_RANGES: (Severity.NOTE, ""),
    CUPTI_FORKED: (Severity.ERROR, "Start the workers by `spawn` or `forkserver`, or measure with `--tracer nsys`."),
    CUPTI_NOT_STARTED: (Severity.ERROR, "Measure with `--tracer nsys`."),
    CUPTI_STALLED: (Severity.ERROR, "Measure again; if it happens again, use `--tracer nsys`."),
}
"""Severity and hint by reason."""


def find_untraced_work(trace: Trace, launched: Integers, operations: Integers) -> tuple[Bool, list[Finding]]:
    """Mask of ranges with reliable GPU times, and findings with the reasons.

    `launched`: calls that started operations; `operations`: operations with a call.
    """
    known = np.ones(len(trace.ranges), dtype=np.bool_)
    findings = list(_driver_newer_than_nsys(trace))
    if trace.meta.gpu_coverage == "untraced":
        reason = trace.meta.gpu_coverage_reason
        severity, hint = _UNTRACED.get(
            reason, (Severity.WARNING, "Run `perfharness doctor` to see what GPU tracing needs here.")
        )
        findings.append(Finding("gpu-not-traced", severity, f"GPU times are null: {reason}.", hint))
        return np.zeros_like(known), findings
    started = np.zeros(len(trace.api), dtype=np.bool_)
    started[launched] = True
    # The embedded tracer keeps only calls with an operation.
    by_call = () if trace.meta.tracer == "embedded" else (_launches_without_operation, _copies_without_operation)
    of_calls = (check(trace, started) for check in by_call)
    for affected, finding in chain(*of_calls, _calls_that_stop(trace), _cut_off(trace)):
        known &= ~affected
        findings.append(finding)
    return known, [*findings, *_operations_without_call(trace, operations)]


def _launches_without_operation(trace: Trace, started: Bool) -> Iterator[Lost]:
    """Launches that started nothing, except failed and captured ones. Runtime and driver launches are nested and only
    one of them has the operation, so the neighbouring launches with an operation on its thread decide.
    """
    is_launch = calls_named(trace, STARTS_KERNEL) & (trace.api.return_value == 0)
    lost = np.flatnonzero(is_launch & ~started)
    if len(lost):
        lost = lost[~_near_complete_call(trace.api, lost, np.flatnonzero(is_launch & started))]
        lost = lost[~_captured(trace, lost)]
    if len(lost):
        affected = _contains_any(trace.ranges, trace.api, lost)
        message = f"{len(lost)} of {int(is_launch.sum())} kernel launches have no kernel in the trace; "
        message += f"the GPU times of the {int(affected.sum())} ranges around them are null."
        yield affected, _incomplete(message, f"The tracer lost GPU events: {USE_NEWER_NSYS}")


def _incomplete(message: str, hint: str) -> Finding:
    return Finding("trace-incomplete", Severity.ERROR, message, hint)


def _near_complete_call(api: ApiCalls, missing: Int64, complete: Int64) -> Bool:
    """Mask of calls that contain, or lie in, a complete call of their thread."""
    near = np.zeros(len(missing), dtype=np.bool_)
    for thread in distinct(np.sort(api.thread[missing])):
        theirs = complete[api.thread[complete] == thread]
        if not len(theirs):
            continue
        theirs = theirs[np.argsort(api.start_ns[theirs], kind="stable")]
        start, end = api.start_ns[theirs], api.end_ns[theirs]
        mine = np.flatnonzero(api.thread[missing] == thread)
        my_start, my_end = api.start_ns[missing[mine]], api.end_ns[missing[mine]]
        after = np.minimum(np.searchsorted(start, my_start), len(start) - 1)
        before = np.maximum(after - 1, 0)
        encloses = (start[after] >= my_start) & (end[after] <= my_end)
        near[mine] = encloses | ((start[before] <= my_start) & (end[before] >= my_end))
    return near


def _captured(trace: Trace, some: Int64) -> Bool:
    """Mask of calls made during a CUDA graph capture of their thread, which record a node and start nothing."""
    api, captured = trace.api, np.zeros(len(some), dtype=np.bool_)
    begins, ends = (np.flatnonzero(calls_named(trace, name)) for name in (BEGINS_CAPTURE, ENDS_CAPTURE))
    for thread in distinct(np.sort(api.thread[begins])):
        begun, ended = begins[api.thread[begins] == thread], ends[api.thread[ends] == thread]
        stops = np.append(np.sort(api.start_ns[ended]), np.iinfo(np.int64).max)
        mine = np.flatnonzero(api.thread[some] == thread)
        start = api.start_ns[some[mine]]
        for begin, begin_end in zip(api.start_ns[begun].tolist(), api.end_ns[begun].tolist(), strict=True):
            captured[mine] |= (start >= begin) & (start <= stops[np.searchsorted(stops, begin_end)])
    return captured


def _copies_without_operation(trace: Trace, started: Bool) -> Iterator[Lost]:
    """Calls of copies or memsets of which the trace has no operation at all, so their table is missing. A single call
    without an operation is not a loss, because copies of 0 bytes start nothing.
    """
    affected = np.zeros(len(trace.ranges), dtype=np.bool_)
    lost = []
    for what, names in (("copies", STARTS_COPY), ("memsets", STARTS_MEMSET)):
        made = np.flatnonzero(calls_named(trace, names) & (trace.api.return_value == 0))
        if not len(made) or started[made].any():
            continue
        made = made[~_captured(trace, made)]
        if len(made):
            affected |= _contains_any(trace.ranges, trace.api, made)
            lost.append(f"{len(made)} {what}")
    if lost:
        message = f"The trace has calls of {' and '.join(lost)}, but none of their operations; the GPU times of the "
        message += f"{int(affected.sum())} ranges around them are null."
        hint = "The tracer lost GPU events, or a table was removed from the file: export it again, or measure again."
        yield affected, _incomplete(message, hint)


def _contains_any(ranges: NvtxRanges, api: ApiCalls, calls: Int64) -> Bool:
    """Mask of ranges with at least one of these calls starting inside, on the same thread."""
    lines = ThreadOrder(api.thread[calls], api.start_ns[calls], api.end_ns[calls])
    first, last = lines.slices(ranges.thread, ranges.start_ns, ranges.end_ns)
    return np.asarray(last > first, dtype=np.bool_)


def _calls_that_stop(trace: Trace) -> Iterator[Lost]:
    """Stages that always made CUDA calls, but make none from some time to the end of the run."""
    ranges = trace.ranges
    affected = np.zeros(len(ranges), dtype=np.bool_)
    silent_names: set[str] = set()
    last_call_ns = 0
    range_pid, call_pid, made_calls = pid_of(ranges.thread), pid_of(trace.api.thread), None
    for process in distinct(call_pid):
        last_ns = int(trace.api.start_ns[call_pid == process].max())
        mine = range_pid == process
        later = mine & (ranges.start_ns > last_ns)
        if np.count_nonzero(later) < MIN_SILENT_RANGES:
            continue
        if made_calls is None:
            made_calls = _contains_any(ranges, trace.api, np.arange(len(trace.api)))
        earlier = mine & (ranges.start_ns <= last_ns)
        always = np.setdiff1d(ranges.name[earlier & made_calls], ranges.name[earlier & ~made_calls])
        silent = later & np.isin(ranges.name, always)
        if silent.sum() >= MIN_SILENT_RANGES:
            affected |= mine & (ranges.end_ns > last_ns)
            silent_names |= {trace.names[code] for code in np.unique(ranges.name[silent])}
            last_call_ns = last_ns
    if silent_names:
        shown = ", ".join(f"'{name}'" for name in sorted(silent_names)[:5])
        message = f"No CUDA call is recorded after {last_call_ns / 1e6:.3f} ms, but ranges continue until "
        message += f"{int(ranges.end_ns.max()) / 1e6:.3f} ms and {shown} made CUDA calls before; "
        message += f"the GPU times of {int(affected.sum())} ranges are null."
        yield affected, _incomplete(message, f"The tracer lost CUDA events: {USE_NEWER_NSYS}")


def _cut_off(trace: Trace) -> Iterator[Lost]:
    """Ranges that end after the last CUDA event of a process that nsys cut off."""
    ranges, api, operations = trace.ranges, trace.api, trace.operations
    affected, pid = np.zeros(len(ranges), dtype=np.bool_), pid_of(ranges.thread)
    cut_off = sorted(trace.meta.cuda_cut_off.intersection(distinct(pid)))
    for process in cut_off:
        ends = (api.end_ns[pid_of(api.thread) == process], operations.end_ns[pid_of(operations.process) == process])
        affected |= (pid == process) & (ranges.end_ns > np.max(np.concatenate(ends), initial=np.iinfo(np.int64).min))
    if affected.any():
        processes = ", ".join(map(str, cut_off))
        message = f"nsys could not collect the last CUDA events of process(es) {processes}, which ended without their "
        message += f"exit functions; the GPU times of {int(affected.sum())} ranges are null."
        hint = "Let the process end by itself, not by os._exit (as forked workers of multiprocessing do) or a signal; "
        yield affected, _incomplete(message, f"{hint}or use `--tracer embedded`.")


def _operations_without_call(trace: Trace, with_call: Integers) -> Iterator[Finding]:
    """Report operations without a call. Copies made by the driver itself (managed memory) have id 0."""
    operations = trace.operations
    lost = np.ones(len(operations), dtype=np.bool_)
    lost[with_call] = False
    lost &= (operations.kind != GpuOperationKind.MEMCPY) | (operations.correlation != 0)
    if lost.any():
        yield Finding(
            "trace-missing-calls",
            Severity.ERROR,
            f"{int(lost.sum())} of {len(operations)} GPU operations have no API call in the trace, "
            "so they are in no range; GPU times may be too small.",
            "Trace CUDA API calls too (`nsys profile --trace cuda`), or use `--tracer embedded`.",
        )


def _driver_newer_than_nsys(trace: Trace) -> Iterator[Finding]:
    meta = trace.meta
    release = re.match(r"(\d{4})\.(\d+)", meta.tracer_version or "")
    if meta.tracer != "nsys" or release is None or meta.cuda_driver is None or not len(trace.api):
        return
    version = (int(release[1]), int(release[2]))
    newest = next((cuda for since, cuda in CUDA_OF_NSYS if version >= since), None)
    driver = meta.cuda_driver // 1000
    if newest is not None and driver > newest:
        yield Finding(
            "tracer-too-old",
            Severity.ERROR,
            f"nsys {meta.tracer_version} supports CUDA up to {newest}, but the driver has CUDA {driver}; such a pair "
            "loses GPU events silently.",
            "Use a newer nsys, or `--tracer embedded`.",
        )


def never_closed(trace: Trace) -> Iterator[Finding]:
    """Report ranges that were never closed."""
    codes, counts = np.unique(trace.ranges.name[trace.ranges.is_open], return_counts=True)
    if len(codes):
        most = np.argsort(-counts, kind="stable")[:5]
        shown = ", ".join(f"'{trace.names[codes[at]]}' {counts[at]} times" for at in most.tolist())
        yield Finding(
            "range-never-closed",
            Severity.ERROR,
            f"{counts.sum()} range(s) were never closed ({shown}); their times run to the end of the trace.",
            "Pop every range, or use `with perf.range(...)`, which closes it on exceptions too.",
        )
