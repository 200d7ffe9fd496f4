"""Make one line per stage of a run, over all processes, for all tables of stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from perfharness.analysis.diagnosis import StageAgreement
from perfharness.analysis.stages.charts import Rest
from perfharness.analysis.stages.entries import sums_of_ranges
from perfharness.analysis.stages.roles import MANY_RARE
from perfharness.analysis.statistics import summarise
from perfharness.model.columns import Float64
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import TIMES, Path, ProcessResult, Statistics, Tree
from perfharness.runs.figures import stage_entries

REST = "(outside of stages)"
"""Last key of the path for time outside of stages."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its 95 % interval, or the reason why it is unknown."""

    value: float | None
    low: float | None
    high: float | None
    reason: str | None


@dataclass(frozen=True)
class StageLine:
    """A batch, a stage, or (`is_rest`) the time of batches outside of stages, without warm-up.

    Times are milliseconds: means over the batches with this stage. Shares are 0 to 1. None means not measured.

    Args:
        cpu_mean: its interval is within this launch.
        cpu_share: share of the time of all batches of its loop.
        gpu_busy_share: share of their busy time; stages may overlap on the GPU.
        agreement: how many processes have this limit (`3/4`), or None for all.
        has_id: whether the name contains an id (`names_with_ids`).
    """

    path: Path
    is_batch: bool
    batches: int
    cpu: Statistics
    gpu: Statistics | None
    gpu_busy: Statistics | None
    cpu_per_item: float | None
    gpu_per_item: float | None
    gpu_busy_per_item: float | None
    is_rest: bool = False
    cpu_mean: MeanInterval | None = None
    cpu_share: float | None = None
    gpu_busy_share: float | None = None
    limited_by: str | None = None
    agreement: str | None = None
    reason: str | None = None
    has_id: Annotated[bool, Field(exclude=True)] = False


@dataclass(frozen=True)
class RangeSum:
    """A range of a run without batches: sums over all occurrences in all processes."""

    path: Path
    count: float
    cpu: float | None
    gpu: float | None
    gpu_busy: float | None


def stage_lines(
    mean: Tree,
    results: Sequence[ProcessResult] = (),
    rests: Sequence[Mapping[Path, Rest]] = (),
    limits: Sequence[StageAgreement] = (),
) -> list[StageLine]:
    """Lines of all batches and stages of a mean: parents, their children, then the time outside of stages.

    Shares and intervals need `results`; times outside of stages need `rests` of the processes.
    """
    with_ids = set(names_with_ids(mean))
    lines = _lines(mean, results, rests, {one.path: one for one in limits})
    return [replace(line, has_id=True) if line.path in with_ids else line for line in lines]


def names_with_ids(mean: Tree) -> list[Path]:
    """Stages in only one batch per process, if so many that their names must contain ids."""
    processes = len(mean.get("throughput", {}).get("processes", ())) or 1
    batches: list[Path] = []
    rare: list[Path] = []
    for path, statistics in _measured(mean):
        is_rare = statistics["cpu_time"]["count"] <= processes
        if "total_items" in statistics:
            batches += [] if is_rare else [path]
        elif is_rare and any(path[: len(around)] == around for around in batches):
            rare.append(path)
    return rare if len(rare) > MANY_RARE else []


def without_ids(diagnoses: Mapping[str, Diagnosis], lines: Iterable[StageLine]) -> dict[str, Diagnosis]:
    """Remove stages whose names contain ids from diagnoses; their parents remain."""
    with_id = {line.path for line in lines if line.has_id}
    return {
        name: replace(one, stages=[stage for stage in one.stages if stage.path not in with_id])
        for name, one in diagnoses.items()
    }


def names_findings(mean: Tree) -> list[Finding]:
    """Report stages whose names contain ids."""
    found = names_with_ids(mean)
    if not found:
        return []
    message = f"{len(found)} stages occur in only one batch, such as '{found[0][-1]}': their names contain ids."
    hint = "Use the same name in all batches, so that times can be averaged."
    return [Finding("names-differ-by-batch", Severity.WARNING, message, hint)]


def _lines(
    mean: Tree,
    results: Sequence[ProcessResult],
    rests: Sequence[Mapping[Path, Rest]],
    limits: Mapping[Path, StageAgreement],
) -> Iterator[StageLine]:
    batch_paths: list[Path] = []
    pending: list[tuple[Path, StageLine]] = []
    for path, statistics in _measured(mean):
        while pending and path[: len(pending[-1][0])] != pending[-1][0]:
            yield pending.pop()[1]
        is_batch = "total_items" in statistics
        if is_batch:
            batch_paths.append(path)
        around = next((one for one in reversed(batch_paths) if path[: len(one)] == one), None)
        values = stage_values(results, path)
        whole = None if around is None else stage_values(results, around)
        limit = limits.get(path)
        yield StageLine(
            path=path,
            is_batch=is_batch,
            batches=statistics["cpu_time"]["count"],
            cpu=Statistics(**statistics["cpu_time"]),
            gpu=_statistics(statistics.get("gpu_time")),
            gpu_busy=_statistics(statistics.get("gpu_busy_time")),
            cpu_mean=_mean(values["cpu_time"]),
            cpu_per_item=statistics.get("cpu_time_per_item", {}).get("mean"),
            gpu_per_item=statistics.get("gpu_time_per_item", {}).get("mean"),
            gpu_busy_per_item=statistics.get("gpu_busy_time_per_item", {}).get("mean"),
            cpu_share=None if whole is None else _share(values["cpu_time"], whole["cpu_time"]),
            gpu_busy_share=None if whole is None else _share(values["gpu_busy_time"], whole["gpu_busy_time"]),
            limited_by=None if limit is None else next(iter(limit.verdicts)).value,
            agreement=None if limit is None else limit.votes,
        )
        if is_batch and (rest := _rest_line(path, values["cpu_time"], statistics, rests)) is not None:
            pending.append((path, rest))
    yield from (line for _, line in reversed(pending))


def _measured(mean: Tree) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """All stages outside of the warm-up, parents before children."""
    return (one for one in stage_entries(mean["stats_minus_warmup"]) if one[1]["cpu_time"]["count"])


def stage_values(results: Sequence[ProcessResult], path: Path) -> dict[str, Float64]:
    """Values per batch over all processes, by metric; empty if no process has the path."""
    own = [result.values_minus_warmup[path] for result in results if path in result.values_minus_warmup]
    return {key: np.concatenate([np.empty(0), *(columns[key] for columns in own)]) for key in TIMES}


def range_sums(results: Sequence[ProcessResult]) -> list[RangeSum]:
    """Sums of the ranges of a run without batches."""
    return [
        RangeSum(path, sums["count"] or 0.0, sums["cpu_time"], sums["gpu_time"], sums["gpu_busy_time"])
        for path, sums in sums_of_ranges([result.entries for result in results]).items()
    ]


def _statistics(found: Tree | None) -> Statistics | None:
    return None if found is None else Statistics(**found)


def _mean(values: Float64) -> MeanInterval | None:
    if not len(values) or np.isnan(values).any():
        return None
    from perfharness.analysis.suites.latency import mean_estimate  # needed for reports only

    found = mean_estimate(values)
    return MeanInterval(found.value, found.low, found.high, found.reason)


def _share(part: Float64, whole: Float64) -> float | None:
    total = float(whole.sum())
    found = float(part.sum()) / total if len(part) and total > 0 else float("nan")
    return None if np.isnan(found) else found


def _rest_line(
    path: Path, whole: Float64, statistics: Mapping[str, Any], rests: Sequence[Mapping[Path, Rest]]
) -> StageLine | None:
    """Line for the time of batches outside of stages, or None if they have no stages."""
    found = [rest[path] for rest in rests if path in rest]
    if not found:
        return None
    reason = next((rest.reason for rest in found if rest.values_ms is None), None)
    values = np.concatenate([rest.values_ms for rest in found if rest.values_ms is not None] or [np.empty(0)])
    known = reason is None and len(values) > 0
    items = statistics["total_items"]["mean"]
    per_item = float(values.mean()) / items if known and items and len(values) == len(whole) else None
    return StageLine(
        path=(*path, REST),
        is_batch=False,
        is_rest=True,
        batches=len(values) if known else len(whole),
        cpu=summarise(values) if known else Statistics(len(whole), *(None,) * 8),
        cpu_mean=_mean(values) if known else None,
        gpu=None,
        gpu_busy=None,
        cpu_per_item=per_item,
        gpu_per_item=None,
        gpu_busy_per_item=None,
        cpu_share=_share(values, whole) if known else None,
        reason=reason,
    )
