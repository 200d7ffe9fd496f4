"""Compare the ranks of a run: find their processes and clocks, and change results accordingly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import with_rank_delays
from perfharness.analysis.ranks import (
    Parallel,
    RankClock,
    RankGroup,
    RankInput,
    RankWork,
    RunRanks,
    compare_ranks,
    rank_work,
)
from perfharness.analysis.ranks.findings import rank_findings
from perfharness.analysis.stages.throughput import Sharing
from perfharness.analysis.timeline.clock import monotonic_offset
from perfharness.model.findings import Finding
from perfharness.model.manifest import ProcessRecord, RunManifest
from perfharness.model.result import ProcessResult

GPU_CLOCK_ERROR_NS = 2_000
"""Error of CUPTI's interpolation between the clocks of host and GPU."""


@dataclass
class RankComparison:
    """Collect the work of ranks while their traces are loaded, then compare it; `parallel` is found out if None."""

    manifest: RunManifest
    parallel: Parallel | None = None
    _seen: dict[str, tuple[RankWork, RankClock | None]] = field(default_factory=dict)
    """Work by folder, and clock against CLOCK_MONOTONIC (with several nodes: UTC of node 0)."""

    def visit(self, process: ProcessRecord, analysis: Analysis) -> None:
        """Keep the work of a process, if it is a rank with batches."""
        work = None if process.rank is None else rank_work(analysis)
        if work is None:
            return
        if self.manifest.nodes:
            utc = analysis.trace.meta.clock
            offset = None if utc is None else (utc.unix_origin_ns, utc.error_ns)
        else:
            offset = monotonic_offset(analysis.trace)
        error_ns = GPU_CLOCK_ERROR_NS if work.kind == "gpu" else 0
        clock = None if offset is None else RankClock(offset[0], offset[1] + error_ns)
        self._seen[process.folder] = work, clock

    def compare(self) -> RunRanks | None:
        """Compare all groups of ranks; None with fewer than two ranks."""
        groups = [self._compare(processes) for processes in self._groups()]
        return RunRanks(groups) if groups else None

    def _groups(self) -> Iterator[list[ProcessRecord]]:
        """Ranks of each launched process, or all if each process has one rank of a program."""
        ranks = [process for process in self.manifest.measured_processes if process.folder in self._seen]
        has_one_each = len({process.index for process in ranks}) == len(ranks)
        if has_one_each and len({process.rank for process in ranks}) == len(ranks) > 1:
            yield ranks
        else:
            yield from (each for each in self._by_launched(ranks).values() if len(each) > 1)

    def _by_launched(self, ranks: Sequence[ProcessRecord]) -> dict[int, list[ProcessRecord]]:
        """Ranks of each launched process, or of the processes at the same position on all nodes."""
        by_launched: dict[int, list[ProcessRecord]] = {}
        over_nodes: dict[int, list[ProcessRecord]] = {}
        first = {process.node: process.index for process in reversed(self.manifest.processes)}
        for process in ranks:
            by_launched.setdefault(process.index, []).append(process)
            over_nodes.setdefault(process.index - first[process.node], []).append(process)
        has_each_once = all(len({process.rank for process in each}) == len(each) for each in over_nodes.values())
        return over_nodes if has_each_once else by_launched

    def _compare(self, processes: list[ProcessRecord]) -> RankGroup:
        sizes = {process.measured_self.world_size for process in processes}
        shares_trace = len({process.trace_path(Path()) for process in processes}) == 1
        inputs = []
        for process in processes:
            (work, clock), rank = self._seen[process.folder], process.rank
            assert rank is not None, "only ranks are kept"
            if shares_trace:
                clock = RankClock(0, GPU_CLOCK_ERROR_NS if work.kind == "gpu" else 0)
            inputs.append(RankInput(process.folder, rank, work, clock))
        return compare_ranks(inputs, world_size=sizes.pop() if len(sizes) == 1 else None, asked=self.parallel)


def sharing_of(ranks: RunRanks) -> Sharing:
    """Groups of processes whose items count once, and why this may be unknown."""
    unknown = next((group.parallel_reason for group in ranks.groups if group.parallel is None), None)
    return Sharing([group.processes for group in ranks.groups if group.parallel == "model"], unknown)


def with_ranks(
    results: Mapping[str, ProcessResult], ranks: RunRanks, manifest: RunManifest
) -> tuple[dict[str, ProcessResult], list[Finding]]:
    """Add waits for other ranks to the results, and return findings about the groups."""
    changed = dict(results)
    for group in ranks.groups:
        for process in group.processes:
            result = results.get(process)
            if result is not None and result.diagnosis is not None:
                judged = with_rank_delays(result.diagnosis, group.delays, process)
                changed[process] = replace(result, diagnosis=judged)
    nodes = {
        one.folder: node.name for one in manifest.measured_processes if (node := manifest.node_of(one)) is not None
    }
    return changed, [finding for group in ranks.groups for finding in rank_findings(group, nodes)]
