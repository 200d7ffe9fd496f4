"""Findings about ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfharness.analysis.ranks.results import RankDelay, RankGroup
from perfharness.model.findings import Finding, Severity
from perfharness.model.result import path_text


def rank_findings(group: RankGroup, nodes: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Findings about one group of ranks. `nodes`: machine of each process, for a run on several."""
    if group.parallel is None:
        yield Finding(
            "ranks-not-compared",
            Severity.WARNING,
            f"Throughput not measured: {group.parallel_reason}.",
            "Give the option to `perfharness analyze`, or to the next launch.",
        )
    elif group.parallel_basis == "recognized":
        yield Finding(
            "ranks-share-items",
            Severity.WARNING,
            f"The items of {len(group.processes)} ranks count once, because all ranks have the same batches with "
            "equally many items and collectives.",
            "If each rank has items of its own, use --parallel data; else confirm with --parallel model or "
            "perf.batch(…, shared=True).",
        )
    if group.world_size is not None and group.world_size > len(group.processes):
        yield Finding(
            "ranks-missing",
            Severity.WARNING,
            f"{len(group.processes)} of {group.world_size} ranks have batches; waits for the others are unknown.",
            "Measure ranks on other machines with --nodes; for this machine, see stderr.log.",
        )
    if group.reason is not None and group.source is not None:
        message = f"It is unknown which rank the others wait for: {group.reason}."
        yield Finding("ranks-not-compared", Severity.WARNING, message)
    for delay in group.delays:
        error = "" if group.skew is None or not nodes else f" (clock error {group.skew.clock_error_ms:.3f} ms)"
        yield delay_finding(delay, (nodes or {}).get(delay.process, ""), error)


def delay_finding(delay: RankDelay, node: str, error: str) -> Finding:
    """Describe a rank that delays the others."""
    rank = f"{delay.rank} on {node}" if node else str(delay.rank)
    return Finding(
        "waiting-on-rank",
        Severity.NOTE,
        f"The other ranks wait {delay.waiting_ms:.3f} ms per batch ({100 * delay.batch_share:.0f} % of it) for rank "
        f"{rank} in {delay.operation} of '{path_text(delay.at_stage[1:])}'; {_origin(delay)}. It is "
        f"{delay.lag_ms:.3f} ms late{error} in {100 * delay.late_share:.0f} % of {delay.batches} batches.",
        "See the stages of that rank; `perfharness export` shows all ranks on one timeline.",
    )


def _origin(delay: RankDelay) -> str:
    """Clause about the stage in which a rank loses the time."""
    if delay.stage is None:
        return f"it is unknown where rank {delay.rank} loses the time ({delay.reason})"
    if not delay.stage:
        return f"rank {delay.rank} loses the time outside of all ranges, between batches"
    where = "between batches, in" if delay.between_batches else "in"
    work = "GPU work of" if delay.basis == "gpu" else "host time of"
    return f"rank {delay.rank} comes last: it loses the time {where} '{path_text(delay.stage[1:])}' ({work} that stage)"
