"""The functions on the sampled stacks of a stage, by their time."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.diagnosis.stacks import Stacks
from perfharness.analysis.host_samples.frames import is_instrument, is_recording, program_frames
from perfharness.analysis.segments import SampleTimes
from perfharness.model.diagnosis import FunctionShare
from perfharness.model.host_samples import Frame

MOST = 20

Function = tuple[str, str]


def functions(stacks: Stacks, mine: SampleTimes) -> list[FunctionShare]:
    """Every function of the program and its libraries, those with most time of their own first.

    The time in which perfharness itself was at work is no function's own.
    """
    stack = mine.samples.stack[mine.sample]
    spent = np.bincount(stack[stack >= 0], weights=mine.ns[stack >= 0], minlength=1)
    whole = float(mine.ns.sum())
    own: dict[Function, float] = {}
    total: dict[Function, float] = {}
    lines: dict[Function, dict[int, float]] = {}
    for one in np.flatnonzero(spent).tolist():
        ns, frames = float(spent[one]), stacks.frames[one]
        is_ours = is_recording(frames)
        if is_ours:
            frames = frames[next(at for at, frame in enumerate(frames) if is_instrument(frame.file)) :]
        frames = [frame for frame in program_frames(frames) if not is_instrument(frame.file)]
        innermost: dict[Function, Frame] = {}
        for frame in frames:
            innermost.setdefault((frame.function, frame.file), frame)
        for key, frame in innermost.items():
            mine_ns = ns if frame is frames[0] and not is_ours else 0.0
            own[key], total[key] = own.get(key, 0.0) + mine_ns, total.get(key, 0.0) + ns
            at = lines.setdefault(key, {})
            at[frame.line] = at.get(frame.line, 0.0) + mine_ns
    most = sorted(own, key=lambda key: (-own[key], -total[key]))[:MOST]
    return [
        FunctionShare(*key, max(lines[key], key=lambda line: lines[key][line]), own[key] / whole, total[key] / whole)
        for key in most
    ]
