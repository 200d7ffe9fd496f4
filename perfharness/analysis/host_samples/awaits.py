"""Where coroutines wait: an event loop that waits shows only itself on its thread's stack.

Such a sample gets the user's functions of the coroutine that ran last on the thread, in the same stage, below the
loop's wait: where it was seen at its last step, which is where it goes on, or a few lines before. Functions that it
called there have returned: where it is known which are coroutines, the innermost of these is the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfharness.analysis.host_samples.frames import is_library
from perfharness.model.host_samples import Frame, HostSamples, HostState
from perfharness.model.trace import Bool, Int64

STEP = ("asyncio/events.py", "_run")
"""Runs a step of a coroutine, or a callback."""
LOOP: Mapping[str, frozenset[str]] = {
    "asyncio/base_events.py": frozenset({"_run_once", "run_forever", "run_until_complete"}),
    "asyncio/runners.py": frozenset({"run"}),
    STEP[0]: frozenset({STEP[1]}),
}
"""Functions of event loops, by the ends of their files; of native ones only `asyncio.run` is on a Python stack."""
SELECTS = "/selectors.py"
COMPUTING = (HostState.RUNNING, HostState.RUNNABLE, HostState.UNKNOWN)


def with_awaits(samples: HostSamples) -> HostSamples:
    """The same samples; those in a waiting event loop have the coroutine on their stacks. What the loop itself
    computes, or waits for a CPU with, stays its own.
    """
    frames = samples.frames
    is_loop = [
        any(one.file.endswith(f"/{file}") and one.function.rpartition(".")[2] in names for file, names in LOOP.items())
        for one in frames
    ]
    inside = [next((at for at, one in enumerate(stack) if is_loop[one]), -1) for stack in samples.stacks]
    own = [_own(frames, stack, at) for stack, at in zip(samples.stacks, inside, strict=True)]
    waits = [
        at >= 0
        and not frames[stack[at]].file.endswith(f"/{STEP[0]}")
        and all(frames[one].file.endswith(SELECTS) for one in stack[:at])
        for stack, at in zip(samples.stacks, inside, strict=True)
    ]
    waiting = np.flatnonzero(np.asarray([*waits, False])[samples.stack] & ~np.isin(samples.state, COMPUTING))
    if not len(waiting):
        return samples
    last = _last_steps(samples, np.asarray([*map(bool, own), False])[samples.stack])[waiting]
    waiting, last = waiting[last >= 0], last[last >= 0]
    stacks, column = list(samples.stacks), samples.stack.copy()
    count = len(stacks)
    pairs, which = np.unique(samples.stack[waiting].astype(np.int64) * count + samples.stack[last], return_inverse=True)
    column[waiting] = count + which
    for wait, step in (divmod(pair, count) for pair in pairs.tolist()):
        at, stack = inside[wait], samples.stacks[wait]
        stacks.append((*stack[:at], *own[step], *stack[at:]))
    return replace(samples, stack=column, stacks=stacks)


def _own(frames: list[Frame], stack: tuple[int, ...], at: int) -> tuple[int, ...]:
    """The frames of what an event loop runs, from the innermost of the user's own on that may be suspended."""
    own = [position for position in range(at) if not is_library(frames[stack[position]].file)]
    first = next((position for position in own if frames[stack[position]].suspends), own[0] if own else None)
    return () if first is None else stack[first:at]


def _last_steps(samples: HostSamples, is_step: Bool) -> Int64:
    """Of each sample, the last one before it on its thread and in its stage that is in a coroutine, else the first one
    after it; -1: none.
    """
    order = np.lexsort((np.arange(len(samples)), samples.stage, samples.thread))
    thread, stage, runs = samples.thread[order], samples.stage[order], is_step[order]
    is_new = np.r_[True, (thread[1:] != thread[:-1]) | (stage[1:] != stage[:-1])]
    group, position = np.cumsum(is_new), np.arange(len(order))
    before = np.maximum.accumulate(np.where(runs, position, -1))
    after = np.minimum.accumulate(np.where(runs, position, len(order))[::-1])[::-1]
    chosen = np.where((before >= 0) & (group[before] == group), before, after)
    is_there = chosen < len(order)
    is_there[is_there] = group[chosen[is_there]] == group[is_there]
    found = np.full(len(order), -1, dtype=np.int64)
    found[order[is_there]] = order[chosen[is_there]]
    return found
