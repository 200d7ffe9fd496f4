"""Attribute waits of an event loop to coroutines, because a waiting loop shows only itself on its thread's stack.

Such a sample gets the user's frames of the coroutine that last ran on the thread in the same stage, at the line of its
last step. Frames of functions that have returned since are left out if it is known which frames are coroutines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfharness.analysis.host_samples.frames import is_library
from perfharness.model.columns import Bool, Int64
from perfharness.model.host_samples import Frame, HostSamples, HostState

STEP = ("asyncio/events.py", "_run")
"""Runs a step of a coroutine or a callback."""
LOOP: Mapping[str, frozenset[str]] = {
    "asyncio/base_events.py": frozenset({"_run_once", "run_forever", "run_until_complete"}),
    "asyncio/runners.py": frozenset({"run"}),
    STEP[0]: frozenset({STEP[1]}),
}
"""Functions of event loops by end of file name; native loops show only `asyncio.run` on a Python stack."""
SELECTS = "/selectors.py"
COMPUTING = (HostState.RUNNING, HostState.RUNNABLE, HostState.UNKNOWN)


def with_awaits(samples: HostSamples) -> HostSamples:
    """Add the coroutine to stacks of samples in a waiting event loop, unless the loop itself computes or is ready."""
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
    """Frames run by an event loop, up to the user's innermost frame that can suspend."""
    own = [position for position in range(at) if not is_library(frames[stack[position]].file)]
    first = next((position for position in own if frames[stack[position]].suspends), own[0] if own else None)
    return () if first is None else stack[first:at]


def _last_steps(samples: HostSamples, is_step: Bool) -> Int64:
    """Each sample's previous, else next, sample in a coroutine on its thread and in its stage; -1 if there is none."""
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
