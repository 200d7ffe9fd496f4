"""What a reader of a load test's numbers has to know."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.model.findings import Finding, Severity
from perfharness.model.load import LoadResult, PhaseResult

GENERATOR_LIMITED = "generator-limited"
LATE_SHARE = 0.2
"""Part of the latency, of its mean or its p99, that the generator's lateness may have."""

LATE_MS = 1.0
"""Lateness below that is not reported, whatever its part: a target may be as fast as a thread wakes up."""

KEPT_UP = 0.97
"""Part of the asked rate that has to be achieved; with less, the queue grows as long as the phase lasts."""


def load_findings(result: LoadResult) -> list[Finding]:
    """Of the phases that count, and of the run."""
    found = [one for phase in result.phases if not phase.is_warmup for one in _of_phase(phase, result)]
    return [*_of_run(result), *_over_the_limit(result), *found]


def _of_run(result: LoadResult) -> Iterator[Finding]:
    if result.status == "killed":
        yield Finding(
            "load-cut-off",
            Severity.ERROR,
            f"The load was cut off after {result.duration_s:.1f} s, for a process that sent it was killed or crashed; "
            "at most the last second before that is missing.",
            "stderr.log of the process, and the findings of the run, say how it ended",
        )
    if result.status == "ok" and result.status_reason is not None:
        yield Finding(
            "load-ended-early",
            Severity.WARNING,
            f"Not all of the profile was sent: {result.status_reason}.",
            "give the script more batches, or a shorter --duration",
        )
    if result.status == "stopped-by-errors":
        yield Finding(
            "load-stopped",
            Severity.ERROR,
            f"The load was stopped after {result.duration_s:.1f} s: {result.status_reason}.",
            "the errors are listed by kind, each with the first one",
        )


def _over_the_limit(result: LoadResult) -> Iterator[Finding]:
    """Of all phases that count, and of all processes."""
    limit = result.profile.get("max-error-rate")
    counted = [phase for phase in result.phases if not phase.is_warmup]
    failed = sum(sum(phase.errors.values()) for phase in counted)
    ended = failed + sum(phase.ok for phase in counted)
    if limit is None or not ended or failed <= limit * ended or result.status == "stopped-by-errors":
        return
    yield Finding(
        "load-errors-over-limit",
        Severity.ERROR,
        f"{failed} of {ended} requests failed ({failed / ended:.2%}), more than --max-error-rate {limit:g} allows.",
        "the errors are listed by kind, each with the first one",
    )


def _of_phase(phase: PhaseResult, result: LoadResult) -> Iterator[Finding]:
    limited = _late(phase)
    if limited is not None:
        yield Finding(
            GENERATOR_LIMITED,
            Severity.WARNING,
            f"{phase.name}: {limited} of the latency is the generator's own lateness, not the target's.",
            "a lower rate, fewer workers, a free CPU, or more processes (-np) that share the load",
        )
    unanswered = phase.errors.get("unanswered", 0)
    if unanswered:
        yield Finding(
            "requests-unanswered",
            Severity.WARNING,
            f"{phase.name}: {unanswered} of {phase.arrivals} requests had no answer when the grace period ended; "
            "percentiles count them as slower than all others.",
            "a lower rate, more workers (--concurrency), or a longer --grace",
        )
    if phase.arrivals and not phase.ok:
        yield Finding(
            "requests-all-failed",
            Severity.ERROR,
            f"{phase.name}: none of {phase.arrivals} requests was answered without error, so there is no latency.",
            "the errors are listed by kind, each with the first one",
        )
    asked, achieved = phase.asked_rate, phase.achieved_rate
    if asked and achieved is not None and achieved < KEPT_UP * asked and result.status == "ok" and phase.ok:
        yield Finding(
            "rate-not-achieved",
            Severity.WARNING,
            f"{phase.name}: {achieved:.4g} of {asked:.4g} requests a second were answered, so the queue grew; "
            "latencies are those of a queue that grows, and depend on how long the phase lasts.",
            "a lower rate, or more workers (--concurrency)",
        )


def _late(phase: PhaseResult) -> str | None:
    """How much of the latency is lateness, where it is too much."""
    for name, text in (("mean", "the mean"), ("p99", "p99")):
        late, latency = getattr(phase.lateness, name).value, getattr(phase.latency, name).value
        if late is not None and latency is not None and late > LATE_MS and late > LATE_SHARE * latency:
            return f"{late:.3g} of {latency:.3g} ms ({text})"
    return None
