"""Findings about what was annotated: nothing, no batches, no items, a warm-up that leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfharness.analysis.stages.roles import NOT_COUNTED, StageTable
from perfharness.analysis.stages.stage_times import StageTimes
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import Int64, pid_of

MUCH_OF_A_RANGE = 0.01
"""A wait of other threads that is less of a range does not matter for its time."""


def stage_findings(stages: StageTable, stage_times: StageTimes, warmup_batches: int) -> Iterator[Finding]:
    """Findings about ranges, batches, items and the warm-up cut."""
    batches = np.flatnonzero(stages.is_batch)
    if any(finding.code in ("domain-not-found", "batch-pattern-not-found") for finding in stages.findings):
        pass  # the findings already give the reason
    elif not len(stages):
        yield Finding(
            "no-ranges",
            Severity.ERROR,
            "The trace holds no range to report.",
            "Annotate the script with PerfRecorder; or leave it as it is and name its functions in a file (launch "
            "--annotate FILE.toml) or take PyTorch's modules (--annotate-torch DEPTH).",
        )
    elif not len(batches):
        yield Finding(
            "no-batches",
            Severity.WARNING,
            "No range is a batch, so there is nothing per item and no warm-up.",
            "Take batches from perf.batches(…), or push them with batch_idx."
            if stages.from_recorder
            else "Say which ranges are batches: perfharness analyze --batch-pattern REGEX.",
        )
    else:
        yield from _all_warmup(stages, stage_times, batches, warmup_batches)
    uncounted = int((stages.items[batches] == NOT_COUNTED).sum())
    if uncounted:
        yield Finding(
            "batch-without-items",
            Severity.WARNING,
            f"{uncounted} of {len(batches)} batches counted no items, so their numbers per item are null.",
            "Say how many a batch holds: perf.batches(…, items=len), or total_items where it is pushed or popped."
            if stages.from_recorder
            else "Plain NVTX cannot count items; use PerfRecorder for that.",
        )
    waited = np.flatnonzero(stages.barrier_wait_ns > 0)
    if len(waited):
        yield Finding(
            "start-barrier-wait",
            Severity.NOTE,
            f"{stages.barrier_wait_ns.max() / 1e6:.1f} ms at the start barrier lie inside {_shown(stages, waited)}; "
            "they are excluded from cpu_time there, while gpu_time, from the first GPU operation to the last, spans "
            "them.",
            "--no-barrier starts the processes' measured batches as they come.",
        )


def _shown(stages: StageTable, rows: Int64) -> str:
    return ", ".join(f"'{name}'" for name in dict.fromkeys(stages.names[code] for code in stages.name[rows]))


def _all_warmup(stages: StageTable, stage_times: StageTimes, batches: Int64, warmup_batches: int) -> Iterator[Finding]:
    """An error where the warm-up leaves no batch at all, a warning where it leaves none of some name."""
    groups = group_rows(stage_times.path[batches])
    left = np.bincount(groups.code, weights=~stage_times.warmup[batches], minlength=len(groups))
    if left.all():
        return
    shown = _shown(stages, batches[groups.first[left == 0]])
    theirs = batches[left[groups.code] == 0]
    count, loops = len(theirs), len(np.unique(stage_times.loop[theirs]))
    yield Finding(
        "warmup-leaves-nothing",
        Severity.WARNING if left.any() else Severity.ERROR,
        f"-w {warmup_batches} excludes all {count} batches {shown} as warm-up: {warmup_batches} at the front and "
        f"{warmup_batches} at the end of each loop, of which there are {loops}; their numbers without warm-up are "
        "null.",
        f"Run more than {2 * warmup_batches} batches in a loop, or give a smaller -w.",
    )


def barrier_wait_findings(stages: StageTable, stage_times: StageTimes) -> list[Finding]:
    """A warning about ranges around no batch of their own that were open while other threads waited at the barrier.

    Whether such a range waited for those threads (`join`) or worked meanwhile is not in a trace, so that the wait stays
    in its time.

    Args:
        stages, stage_times: the ranges that results are made of.
    """
    waits = stages.barrier_waits
    longest: dict[str, int] = {}
    around = np.flatnonzero((stage_times.batch < 0) & (stages.barrier_wait_ns == 0))
    for thread in np.unique(stages.thread[around]).tolist() if len(waits) else []:
        others = (waits.thread != thread) & (pid_of(waits.thread) == pid_of(np.asarray([thread])))
        rows = around[stages.thread[around] == thread]
        start, end = stages.start_ns[rows], stages.end_ns[rows]
        waited_ns = BusyLine(waits.start_ns[others], waits.end_ns[others]).within(start, end)
        is_much = waited_ns > MUCH_OF_A_RANGE * (end - start)
        for row, waited in zip(rows[is_much].tolist(), waited_ns[is_much].tolist(), strict=True):
            name = stages.names[stages.name[row]]
            longest[name] = max(longest.get(name, 0), waited)
    if not longest:
        return []
    shown = ", ".join(f"'{name}' ({waited_ns / 1e6:.1f} ms)" for name, waited_ns in longest.items())
    return [
        Finding(
            "start-barrier-wait-of-other-threads",
            Severity.WARNING,
            f"While {shown} lasted, other threads of the process waited at the start barrier; where it waited for these"
            " threads, that time is in its cpu_time.",
            "Read the ranges on the threads that waited: their times are without it. --no-barrier starts the processes'"
            " measured batches as they come.",
        )
    ]


def negative_time_finding(names: list[str]) -> Finding:
    """The finding for holders whose time less that of their warm-up batches is below zero."""
    shown = ", ".join(f"'{name}'" for name in sorted(set(names))[:5])
    return Finding(
        "negative-without-warmup",
        Severity.WARNING,
        f"The warm-up batches inside {shown} overlap in time, so that their times add up to more than the range's own; "
        "the times without warm-up there are null.",
        "Read stats_minus_warmup, which does not subtract.",
    )
