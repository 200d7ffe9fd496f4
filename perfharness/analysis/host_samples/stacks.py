"""Sampled stacks of stages, with the host time of each.

Stages count as frames: a sample's stack starts with the stages open on its thread.
"""

from __future__ import annotations

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.host_samples.frames import shown_stack
from perfharness.analysis.segments import paint, sample_times
from perfharness.analysis.stages.times import stage_rows
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.diagnosis import Path
from perfharness.model.host_samples import Frame
from perfharness.model.units import NS_PER_MS

Stack = tuple[tuple[Frame, ...], float]
"""Frames, outermost first, and their host time, ms per batch."""


def stage_stacks(analysis: Analysis) -> dict[Path, list[Stack]]:
    """Stacks of each outermost stage with samples; their times add up to the stage's time."""
    stages, samples = analysis.stages, sample_times(analysis, paint(analysis))
    if samples is None:
        return {}
    samples = samples.select(samples.samples.stack[samples.sample] >= 0)
    every = stage_rows(stages, analysis.stage_times)
    paths = {one.path for one in every}
    found: dict[Path, list[Stack]] = {}
    for stage in every:
        if any(stage.path[:length] in paths for length in range(1, len(stage.path))):
            continue
        mine = samples.select(stages.inside(np.isin(np.arange(len(stages)), stage.rows))[samples.row])
        if not mine.ns.sum():
            continue
        stack = mine.samples.stack[mine.sample]
        groups = group_rows(mine.stage, stack)
        wall_ms = float((stages.end_ns - stages.start_ns)[stage.rows].sum()) / NS_PER_MS / stage.batches
        times = np.bincount(groups.code, weights=mine.ns) * wall_ms / mine.ns.sum()
        of_stage = found.setdefault(stage.path, [])
        for code, number, ms in zip(mine.stage[groups.first], stack[groups.first], times.tolist(), strict=True):
            inside = (Frame(f"[{name}]", "", 0) for name in stages.paths.names(int(code))[len(stage.path) :])
            frames = (mine.samples.frames[frame] for frame in shown_stack(mine.samples, int(number)))
            of_stage.append(((*inside, *frames), ms))
    return found
