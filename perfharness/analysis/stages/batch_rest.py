"""Host time of batches outside of their stages: what nobody has annotated yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.model.result import Float64, Path

OVERLAP = "stages of one batch overlap in time"


@dataclass(frozen=True)
class Rest:
    """One value a batch (ms); None, with the reason, where stages of a batch overlap."""

    values_ms: Float64 | None
    reason: str | None = None


def rest_of_batches(analysis: Analysis) -> dict[Path, Rest]:
    """By path of the batch, warm-up left out; batches without any stage have none."""
    return dict(_rests(analysis))


def _rests(analysis: Analysis) -> Iterator[tuple[Path, Rest]]:
    stages, times = analysis.stages, analysis.stage_times
    batches = np.flatnonzero(stages.is_batch & ~times.warmup)
    inside = np.flatnonzero((stages.parent >= 0) & ~times.warmup)
    inside = inside[stages.is_batch[stages.parent[inside]]]
    inside = inside[np.lexsort((stages.start_ns[inside], stages.parent[inside]))]
    parent, start, end = stages.parent[inside], stages.start_ns[inside], stages.end_ns[inside]
    overlapping = np.unique(parent[1:][(parent[1:] == parent[:-1]) & (start[1:] < end[:-1])])
    cpu_ms, count = times.times["cpu_time"], len(stages)
    spent = np.bincount(parent, weights=cpu_ms[inside], minlength=count)
    has_stages = np.bincount(parent, minlength=count) > 0
    path = stages.paths.code[batches]
    for code in np.unique(path).tolist():
        rows = batches[path == code]
        if not has_stages[rows].any():
            continue
        overlaps = np.isin(rows, overlapping).any()
        yield stages.paths.names(code), Rest(None, OVERLAP) if overlaps else Rest(cpu_ms[rows] - spent[rows])
