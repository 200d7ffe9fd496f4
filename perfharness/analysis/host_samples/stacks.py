"""The sampled stacks of stages: which functions called which, and the host time of each.

Stages are frames, too: above the stack of a sample stand the stages that were open on its thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis.gpu.workload import stage_rows
from perfharness.analysis.host_samples.frames import shown_stack
from perfharness.analysis.host_samples.host_profile import Spans, rows_of_stage, without_suffixes
from perfharness.model.diagnosis import Path
from perfharness.model.host_samples import Frame, HostProbe

Stack = tuple[tuple[Frame, ...], float]
"""Frames, the outermost first, and their host time, ms a batch."""


def stage_frame(name: str) -> Frame:
    """A stage as a frame."""
    return Frame(f"[{name}]", "", 0)


def spans_of_stages(analysis: Analysis) -> list[Spans]:
    """The ranges of each stage that its numbers are made of, a parent before its children."""
    stages = analysis.stages
    return [
        Spans(
            stage.path, stages.thread[stage.rows], stages.start_ns[stage.rows], stages.end_ns[stage.rows], stage.batches
        )
        for stage in stage_rows(stages, analysis.stage_times)
    ]


def outermost(spans: Sequence[Spans]) -> list[Spans]:
    """Those that lie in no other stage."""
    paths = {one.path for one in spans}
    return [one for one in spans if not any(one.path[:length] in paths for length in range(1, len(one.path)))]


def stage_stacks(probe: HostProbe, spans: Spans) -> list[Stack]:
    """The stacks of a stage, below the stages inside it that were open; their times add up to its host time."""
    samples = probe.samples
    rows = rows_of_stage(samples, spans)
    rows = rows[samples.stack[rows] >= 0]
    length = samples.length_ns[rows].astype(np.float64)
    if not length.sum():
        return []
    pairs, group = np.unique(np.stack([samples.stage[rows], samples.stack[rows]]), axis=1, return_inverse=True)
    times = np.bincount(group.ravel(), weights=length) * spans.wall_ms / length.sum()
    own = without_suffixes(spans.path)
    inside = [_below(path, own) for path in samples.stage_paths]
    found = []
    for stage, stack, ms in zip(*pairs.tolist(), times.tolist(), strict=True):
        stages = inside[stage] if stage >= 0 else ()
        frames = (samples.frames[number] for number in shown_stack(samples, stack))
        found.append(((*map(stage_frame, stages), *frames), ms))
    return found


def _below(path: Path, outer: Path) -> Path:
    """The stages of a path inside another one."""
    return path[len(outer) :] if path[: len(outer)] == outer else ()
