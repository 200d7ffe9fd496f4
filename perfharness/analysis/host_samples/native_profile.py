"""Which native functions the CPU time of stages went to, by the samples of the explaining pass.

A sample is of a stage where it lies in one of its ranges by the clock. Which line of Python a function was called at is
known from a sample of the Python stack of the same thread at almost the same moment (`NEAR_NS`): the two samplers do
not know of each other, so such moments are a random choice.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfharness.analysis.host_samples.frames import frames_of, own_frame
from perfharness.analysis.host_samples.host_profile import (
    COMPUTING,
    NEAR_NS,
    NS_PER_MS,
    TOP_FUNCTIONS,
    Z_95,
    Spans,
    inside,
    nearest,
    rows_during,
    wilson,
)
from perfharness.model.diagnosis import FunctionTime, NativeFunction, NativeProfile
from perfharness.model.host_samples import Frame, HostProbe, HostSamples, NativeSamples
from perfharness.model.trace import PID_SHIFT, Int64

MIN_PAIRS = 5
"""Moments with both samples, from which on a line is named."""

INTERPRETER = re.compile(r"(lib)?python[\d.]*[a-z]*(\.so[\d.]*)?")
"""Files of the interpreter: time in them is Python's own, which the lines of Python say more about."""
TRACERS = ("libToolsInjection", "libcupti", "libnvtx", "libInterceptorInjection")
"""What the names of tracers' libraries begin with."""


@dataclass(frozen=True)
class _Pairs:
    """Native samples, and the Python stacks that were sampled at almost the same moment; aligned."""

    function: npt.NDArray[np.int64]
    own: list[Frame]
    """The innermost frame outside of libraries, else the innermost."""


@dataclass(frozen=True)
class NativeOfStage:
    """The native samples of a stage's own threads."""

    samples: NativeSamples
    rows: Int64
    pairs: _Pairs


def native_of_stage(probe: HostProbe, spans: Spans) -> NativeOfStage | None:
    """None: no native code was sampled."""
    native = probe.native
    if native is None:
        return None
    rows = rows_during(native, spans.thread, spans.start_ns, spans.end_ns)
    return NativeOfStage(native, rows, _pairs(probe.samples, native, rows))


def native_profile(
    probe: HostProbe, spans: Spans, own: NativeOfStage, host_rows: Int64, on_cpu_ms: float | None
) -> NativeProfile:
    """The native functions of a stage's threads and of threads without Python meanwhile.

    Args:
        own: `native_of_stage`.
        host_rows: the stage's samples of Python stacks (`rows_of_stage`).
        on_cpu_ms: what the stage's threads ran a batch, in user space and in the kernel.
    """
    native, rows = own.samples, own.rows
    helpers, top = _rows_of_helpers(probe, native, spans), _top_line(probe.samples, host_rows)
    cpu_ms = _ms(native, rows, spans)
    # Sampled by a timer of CPU time, with a phase that is not known: at most as uncertain as a count of chance events.
    error_ms = Z_95 * math.sqrt(float(np.square(native.length_ns[rows].astype(np.float64)).sum())) / NS_PER_MS
    error_ms /= max(spans.batches, 1)
    kernel_ms = None if on_cpu_ms is None else on_cpu_ms - cpu_ms
    return NativeProfile(
        samples=len(rows),
        cpu_ms=cpu_ms,
        error_ms=error_ms,
        kernel_ms=None if kernel_ms is None or kernel_ms <= error_ms else kernel_ms,
        functions=_functions(native, rows, spans, lambda *one: _line_of(own.pairs, top, *one)),
        helper_threads=len(np.unique(native.thread[helpers])),
        helper_samples=len(helpers),
        helper_cpu_ms=_ms(native, helpers, spans),
        helper_functions=_functions(native, helpers, spans, lambda *_: None),
    )


def native_code_at(own: NativeOfStage, line: FunctionTime, line_share: float) -> NativeFunction | None:
    """The native function outside of the interpreter that takes most of the CPU time of a function of Python, with what
    it calls in libraries; None where less than half of its time is outside of the interpreter, or it is not known.

    Its `share` is of the CPU time of that function of Python, `cpu_ms` what that makes of `line.self_ms`. Where too few
    moments have both samples, it is the least that it can be.

    Args:
        line_share: of the stage's CPU time, what is that of the function of Python.
    """
    native, pairs = own.samples, own.pairs
    mine = [at for at, frame in enumerate(pairs.own) if (frame.function, frame.file) == (line.function, line.file)]
    counts = Counter(pairs.function[mine].tolist())
    outside = {number: count for number, count in counts.items() if not is_of_runtime(native.functions[number].file)}
    if len(mine) < MIN_PAIRS:
        return _at_least(native, own.rows, line, line_share)
    if sum(outside.values()) < len(mine) / 2:
        return None
    number = max(outside, key=lambda one: outside[one])
    share, error = outside[number] / len(mine), wilson(outside[number] / len(mine), len(mine))
    frame = native.functions[number]
    return NativeFunction(frame.file or None, frame.function or None, share * line.self_ms, share, error, line)


def _at_least(native: NativeSamples, rows: Int64, line: FunctionTime, line_share: float) -> NativeFunction | None:
    """What the shares alone prove: two parts of a whole that together exceed it have the excess in common."""
    if len(rows) < MIN_PAIRS or line_share <= 0:
        return None
    counts = np.bincount(native.function[rows], weights=native.length_ns[rows], minlength=len(native.functions))
    counts[[is_of_runtime(frame.file) for frame in native.functions]] *= 0
    total = float(native.length_ns[rows].sum())
    number = int(counts.argmax())
    frame, of_stage = native.functions[number], float(counts[number]) / total
    outside, share = ((part + line_share - 1) / line_share for part in (float(counts.sum()) / total, of_stage))
    if outside < 0.5 or share <= 0:
        return None
    error = wilson(of_stage, len(rows)) / line_share
    return NativeFunction(frame.file or None, frame.function or None, share * line.self_ms, share, error, line)


def is_of_runtime(library: str | None) -> bool:
    """Whether a library is the interpreter, or a tracer's."""
    name = (library or "").rpartition("/")[2]
    return bool(INTERPRETER.fullmatch(name)) or name.startswith(TRACERS)


def is_tracer(function: NativeFunction) -> bool:
    """Whether it is of a tracer: it would not run without."""
    return (function.library or "").rpartition("/")[2].startswith(TRACERS)


def _rows_of_helpers(probe: HostProbe, native: NativeSamples, spans: Spans) -> Int64:
    """Of threads that never ran Python, in the stage's processes, while any thread was in the stage."""
    is_helper = ~np.isin(native.thread, probe.samples.thread) & ~np.isin(native.thread, spans.thread)
    found: list[Int64] = []
    for process in np.unique(spans.thread >> PID_SHIFT):
        mine = np.flatnonzero(is_helper & (native.thread >> PID_SHIFT == process))
        of_process = spans.thread >> PID_SHIFT == process
        found.append(mine[inside(native.time_ns[mine], spans.start_ns[of_process], spans.end_ns[of_process])])
    return np.concatenate([np.empty(0, np.int64), *found])


def _ms(native: NativeSamples, rows: Int64, spans: Spans) -> float:
    return float(native.length_ns[rows].sum()) / NS_PER_MS / max(spans.batches, 1)


def _functions(
    native: NativeSamples, rows: Int64, spans: Spans, line_of: Callable[[int, float, float], FunctionTime | None]
) -> list[NativeFunction]:
    """By CPU time; `line_of`: of a function, its share, and its CPU time in ms, the line that called it."""
    lengths = native.length_ns[rows].astype(np.float64)
    spent = np.bincount(native.function[rows], weights=lengths, minlength=len(native.functions))
    total = float(spent.sum())
    # Samples of different length, where a long run was thinned out, count as fewer.
    count = total**2 / float(np.square(lengths).sum()) if len(rows) else 0.0
    found = []
    for number in np.argsort(-spent, kind="stable")[:TOP_FUNCTIONS].tolist():
        if not spent[number]:
            break
        frame, share = native.functions[number], float(spent[number]) / total
        cpu_ms = float(spent[number]) / NS_PER_MS / max(spans.batches, 1)
        line = line_of(number, share, cpu_ms)
        found.append(
            NativeFunction(frame.file or None, frame.function or None, cpu_ms, share, wilson(share, count), line)
        )
    return found


def _top_line(samples: HostSamples, rows: Int64) -> tuple[Frame, float, int] | None:
    """The line of the program's own code that most of the computing of these samples passed at, its share of it, and
    the number of samples that this rests on.
    """
    rows = rows[np.isin(samples.state[rows], COMPUTING) & (samples.stack[rows] >= 0)]
    if len(rows) < MIN_PAIRS:
        return None
    weights = samples.length_ns[rows].astype(np.float64)
    spent: defaultdict[Frame, float] = defaultdict(float)
    for stack, length in enumerate(np.bincount(samples.stack[rows], weights=weights).tolist()):
        if length:
            spent[own_frame(frames_of(samples, stack))] += length
    frame = max(spent, key=lambda one: spent[one])
    return frame, spent[frame] / float(weights.sum()), len(rows)


def _line_of(
    pairs: _Pairs, top: tuple[Frame, float, int] | None, number: int, of_stage: float, cpu_ms: float
) -> FunctionTime | None:
    """The line that most of a native function's time was called at: by moments with both samples, where there are
    enough, else as far as the shares prove it.
    """
    mine = np.flatnonzero(pairs.function == number).tolist()
    if len(mine) >= MIN_PAIRS:
        frame, count = Counter(pairs.own[at] for at in mine).most_common(1)[0]
        share, error = count / len(mine), wilson(count / len(mine), len(mine))
    elif top is not None and of_stage + top[1] - 1 >= of_stage / 2:
        frame, share = top[0], (of_stage + top[1] - 1) / of_stage
        error = wilson(top[1], top[2]) / of_stage
    else:
        return None
    own_ms, error_ms = cpu_ms * share, cpu_ms * error
    return FunctionTime(frame.function, frame.file, frame.line, frame.is_native, own_ms, own_ms, error_ms)


def _pairs(samples: HostSamples, native: NativeSamples, rows: Int64) -> _Pairs:
    functions: list[Int64] = []
    stacks_of_pairs: list[Int64] = []
    usable = np.isin(samples.state, COMPUTING) & (samples.stack >= 0)
    for thread in np.unique(native.thread[rows]):
        mine = rows[native.thread[rows] == thread]
        first, last = np.searchsorted(samples.thread, [thread, thread + 1])
        stacks = first + np.flatnonzero(usable[first:last])
        if not len(stacks):
            continue
        moments, times = native.time_ns[mine], samples.time_ns[stacks]
        at = nearest(times, moments)
        near = np.abs(times[at] - moments) <= NEAR_NS
        functions.append(native.function[mine[near]].astype(np.int64))
        stacks_of_pairs.append(samples.stack[stacks[at[near]]])
    function, stack = (np.concatenate([np.empty(0, np.int64), *each]) for each in (functions, stacks_of_pairs))
    own = {each: own_frame(frames_of(samples, each)) for each in np.unique(stack).tolist()}
    return _Pairs(function, [own[each] for each in stack.tolist()])
