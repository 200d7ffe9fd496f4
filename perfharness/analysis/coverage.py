"""What is not in a trace: GPU work that was started and left no record, told from the trace alone.

A trace that lost events looks whole (nsys 2023.4 on CUDA 13 writes such files). Three signs give it away: launching
calls without an operation, operations without a call, and CUDA calls that stop while the ranges go on.
"""

from __future__ import annotations

import re

import numpy as np

from perfharness.analysis.projection import Launches
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import ApiCalls, Bool, GpuOperationKind, Int64, Trace, pid_of

KERNEL_LAUNCH = re.compile(
    r"^(cudaLaunch(Cooperative)?Kernel|cuLaunch(Cooperative)?Kernel|cudaGraphLaunch|cuGraphLaunch)"
)
COPY_CALL = re.compile(r"^cu(da)?Memcpy")
MEMSET_CALL = re.compile(r"^cu(da)?Memset")
BEGIN_CAPTURE = re.compile(r"^(cudaStreamBeginCapture|cuStreamBeginCapture)")
END_CAPTURE = re.compile(r"^(cudaStreamEndCapture|cuStreamEndCapture)")

MIN_SILENT_RANGES = 3
"""Fewer ranges than this without CUDA calls, at the end of a run, may be a pipeline that winds down."""

CUDA_OF_NSYS = (((2025, 3), 13), ((2022, 4), 12))
"""Newest CUDA major version that an nsys release knows: from (year, release) on. Older CUPTI loses events silently."""


def find_blind_spots(trace: Trace, launches: Launches) -> tuple[Bool, list[Finding]]:
    """Which ranges' GPU times can be trusted (False: not), and the findings that say why not."""
    known = np.ones(len(trace.ranges), dtype=np.bool_)
    findings = _driver_newer_than_nsys(trace)
    if trace.meta.gpu_coverage == "untraced":
        findings.append(
            Finding(
                "gpu-not-traced",
                Severity.WARNING,
                f"GPU times are null: {trace.meta.gpu_coverage_reason}.",
                "Run `perfharness doctor` to see what GPU tracing needs here.",
            )
        )
        return np.zeros_like(known), findings
    for check in (_launches_without_operation, _copies_without_operation, _calls_that_stop):
        affected, finding = check(trace, launches)
        if finding is not None:
            known &= ~affected
            findings.append(finding)
    findings.extend(_operations_without_call(trace, launches))
    return known, findings


def codes_matching(names: list[str], pattern: re.Pattern[str]) -> Int64:
    """Codes of the names that the pattern matches."""
    return np.asarray([code for code, name in enumerate(names) if pattern.match(name)], dtype=np.int64)


def _has_operation(api: ApiCalls, launches: Launches) -> Bool:
    """Which calls started an operation that is in the trace."""
    has_operation = np.zeros(len(api), dtype=np.bool_)
    has_operation[launches.call] = True
    return has_operation


def _launches_without_operation(trace: Trace, launches: Launches) -> tuple[Bool, Finding | None]:
    api = trace.api
    none = np.zeros(len(trace.ranges), dtype=np.bool_)
    is_launch = np.isin(api.name, codes_matching(trace.names, KERNEL_LAUNCH)) & (api.return_value == 0)
    has_operation = _has_operation(api, launches)
    missing = is_launch & ~has_operation
    if trace.meta.tracer == "embedded" or not missing.any():
        return none, None
    # A runtime launch encloses the driver launch that carries the operation, or the other way round.
    missing &= ~_touches_a_launch_with_operation(api, is_launch & has_operation) & ~_in_capture(trace)
    if not missing.any():
        return none, None
    affected = _contains_any(trace, np.flatnonzero(missing))
    total = int(is_launch.sum())
    return affected, Finding(
        "trace-missing-kernels",
        Severity.ERROR,
        f"{int(missing.sum())} of {total} kernel launches have no kernel in the trace; the GPU times of the "
        f"{int(affected.sum())} ranges around them are null.",
        "The tracer lost GPU events: use an nsys that knows this driver's CUDA, or `--tracer embedded`.",
    )


def _copies_without_operation(trace: Trace, launches: Launches) -> tuple[Bool, Finding | None]:
    """Copies or memsets were called for, and the trace holds not one of them: their table is gone.

    One without an operation is no loss: a copy of nothing starts nothing.
    """
    affected = np.zeros(len(trace.ranges), dtype=np.bool_)
    api = trace.api
    has_operation = _has_operation(api, launches)
    lost = []
    for what, pattern in (("copies", COPY_CALL), ("memsets", MEMSET_CALL)):
        calls = np.isin(api.name, codes_matching(trace.names, pattern)) & (api.return_value == 0)
        if calls.any() and not (calls & has_operation).any():
            calls &= ~_in_capture(trace)
        else:
            continue
        if calls.any() and trace.meta.tracer != "embedded":
            affected |= _contains_any(trace, np.flatnonzero(calls))
            lost.append(f"{int(calls.sum())} {what}")
    if not lost:
        return affected, None
    return affected, Finding(
        "trace-missing-copies",
        Severity.ERROR,
        f"The trace holds the calls of {' and '.join(lost)} and none of their operations; the GPU times of the "
        f"{int(affected.sum())} ranges around them are null.",
        "The tracer lost GPU events, or a table was removed from the file: export it again, or measure again.",
    )


def _touches_a_launch_with_operation(api: ApiCalls, complete: Bool) -> Bool:
    """Calls that enclose, or lie inside, a launch whose operation is there (same thread)."""
    touches = np.zeros(len(api), dtype=np.bool_)
    at = np.flatnonzero(complete)
    if not len(at):
        return touches
    order = at[np.lexsort((api.start_ns[at], api.thread[at]))]
    for thread in np.unique(api.thread[order]):
        mine = order[api.thread[order] == thread]
        start, end = api.start_ns[mine], api.end_ns[mine]
        calls = np.flatnonzero(api.thread == thread)
        after = np.minimum(np.searchsorted(start, api.start_ns[calls]), len(mine) - 1)
        before = np.maximum(after - 1, 0)
        encloses = (start[after] >= api.start_ns[calls]) & (end[after] <= api.end_ns[calls])
        inside = (start[before] <= api.start_ns[calls]) & (end[before] >= api.end_ns[calls])
        touches[calls] = encloses | inside
    return touches


def _in_capture(trace: Trace) -> Bool:
    """Calls made while their thread captured a CUDA graph: they record a node and start nothing."""
    api = trace.api
    begins = np.flatnonzero(np.isin(api.name, codes_matching(trace.names, BEGIN_CAPTURE)))
    ends = np.flatnonzero(np.isin(api.name, codes_matching(trace.names, END_CAPTURE)))
    captured = np.zeros(len(api), dtype=np.bool_)
    for begin in begins:
        later = ends[(api.thread[ends] == api.thread[begin]) & (api.start_ns[ends] >= api.end_ns[begin])]
        stop = api.start_ns[later].min() if len(later) else trace.end_ns
        captured |= (api.thread == api.thread[begin]) & (api.start_ns >= api.start_ns[begin]) & (api.start_ns <= stop)
    return captured


def _contains_any(trace: Trace, calls: Int64) -> Bool:
    """Ranges with at least one of these calls inside, on the same thread."""
    ranges, api = trace.ranges, trace.api
    contains = np.zeros(len(ranges), dtype=np.bool_)
    for thread in np.unique(api.thread[calls]):
        times = np.sort(api.start_ns[calls[api.thread[calls] == thread]])
        mine = ranges.thread == thread
        first = np.searchsorted(times, ranges.start_ns[mine], side="left")
        last = np.searchsorted(times, ranges.end_ns[mine], side="right")
        contains[mine] = last > first
    return contains


def _calls_that_stop(trace: Trace, launches: Launches) -> tuple[Bool, Finding | None]:
    """Stages that always made CUDA calls make none any more, from one moment to the end of the run."""
    del launches
    ranges, api = trace.ranges, trace.api
    affected = np.zeros(len(ranges), dtype=np.bool_)
    made_calls = _contains_any(trace, np.arange(len(api)))
    silent_names: set[str] = set()
    last_call_ns = 0
    for process in np.unique(pid_of(api.thread)):
        mine = pid_of(ranges.thread) == process
        if not mine.any():
            continue
        last_ns = int(api.start_ns[pid_of(api.thread) == process].max())
        earlier, later = mine & (ranges.start_ns <= last_ns), mine & (ranges.start_ns > last_ns)
        always = np.setdiff1d(ranges.name[earlier & made_calls], ranges.name[earlier & ~made_calls])
        silent = later & np.isin(ranges.name, always)
        if silent.sum() >= MIN_SILENT_RANGES:
            affected |= mine & (ranges.end_ns > last_ns)
            silent_names |= {trace.names[code] for code in np.unique(ranges.name[silent])}
            last_call_ns = last_ns
    if not silent_names:
        return affected, None
    shown = ", ".join(f"'{name}'" for name in sorted(silent_names)[:5])
    return affected, Finding(
        "trace-cuda-calls-stop",
        Severity.ERROR,
        f"No CUDA call is recorded after {last_call_ns / 1e6:.3f} ms, although ranges go on until "
        f"{int(ranges.end_ns.max()) / 1e6:.3f} ms and {shown} made CUDA calls before; "
        f"the GPU times of {int(affected.sum())} ranges are null.",
        "The tracer lost CUDA events: use an nsys that knows this driver's CUDA, or `--tracer embedded`.",
    )


def _operations_without_call(trace: Trace, launches: Launches) -> list[Finding]:
    started = np.zeros(len(trace.operations), dtype=np.bool_)
    started[launches.operation] = True
    # Copies that the driver makes by itself (managed memory) have correlation id 0 and belong to no call.
    lost = ~started & ((trace.operations.kind != GpuOperationKind.MEMCPY) | (trace.operations.correlation != 0))
    if not lost.any():
        return []
    return [
        Finding(
            "trace-missing-calls",
            Severity.ERROR,
            f"{int(lost.sum())} of {len(trace.operations)} GPU operations have no API call in the trace, "
            "so they are in no range; GPU times may be too small.",
            "Trace CUDA API calls too (`nsys profile --trace cuda`), or use `--tracer embedded`.",
        )
    ]


def _driver_newer_than_nsys(trace: Trace) -> list[Finding]:
    meta = trace.meta
    release = re.match(r"(\d{4})\.(\d+)", meta.tracer_version or "")
    if meta.tracer != "nsys" or release is None or meta.cuda_driver is None or not len(trace.api):
        return []
    version = (int(release[1]), int(release[2]))
    newest = next((cuda for since, cuda in CUDA_OF_NSYS if version >= since), None)
    driver = meta.cuda_driver // 1000
    if newest is None or driver <= newest:
        return []
    return [
        Finding(
            "nsys-older-than-driver",
            Severity.ERROR,
            f"nsys {meta.tracer_version} knows CUDA up to {newest}, the driver has CUDA {driver}; such a pair loses "
            "GPU events without a word.",
            "Use a newer nsys, or `--tracer embedded`.",
        )
    ]
