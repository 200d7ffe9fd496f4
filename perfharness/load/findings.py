"""Findings of a load test."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from perfharness.model.findings import Finding, Severity
from perfharness.model.load import UNANSWERED, LoadResult, PhaseResult

GENERATOR_LIMITED, NEVER_OVERLAPS = "generator-limited", "load-never-overlaps"
LATE_SHARE = 0.2
"""Maximum share of the generator's lateness in the latency, for its mean and its p99."""

LATE_MS = 1.0
"""Smaller lateness is not reported: a target may be as fast as the wake-up of a thread."""

SEE_ERRORS = "The table of errors lists the first of each kind"
COSTLY_TRACERS = ("nsys", "embedded")

KEPT_UP = 0.97
"""Minimum share of the target rate; below it the queue grows during the whole phase."""

BY_CHANCE = 2
"""Random variation of the number of open requests."""


def load_findings(result: LoadResult, never_overlapped: Collection[str] = ()) -> list[Finding]:
    """The findings of the measured phases and of the run.

    Args:
        never_overlapped: names of phases in which no two requests were in service at a time, although some waited.
    """
    found = [
        one
        for phase in result.phases
        if not phase.is_warmup
        for one in _of_phase(phase, result, is_alone=phase.name in never_overlapped)
    ]
    return [*_of_run(result), *found]


def _of_run(result: LoadResult) -> Iterator[Finding]:
    if result.status == "killed":
        yield Finding(
            "load-stopped",
            Severity.ERROR,
            f"The load was cut off after {result.duration_s:.1f} s: a sending process was killed or crashed. At "
            "most the last second is missing.",
            "See stderr.log of the process and the findings of the run",
        )
    if result.status == "stopped-by-errors":
        yield Finding(
            "load-stopped",
            Severity.ERROR,
            f"The load was stopped after {result.duration_s:.1f} s: {result.status_reason}.",
            SEE_ERRORS,
        )
    warm = [phase for phase in result.phases if phase.is_warmup]
    workers = max((phase.concurrency for phase in result.phases), default=0)
    if warm and result.target.kind != "http" and sum(phase.arrivals for phase in warm) < workers:
        yield Finding(
            "warmup-too-short",
            Severity.NOTE,
            f"The warm-up had {sum(phase.arrivals for phase in warm)} requests for {workers} workers, so the first "
            "request of some workers is in the results.",
            "Use a longer --warm-up",
        )
    limit = result.profile.get("max-error-rate")
    measured = [phase for phase in result.phases if not phase.is_warmup]
    failed = sum(sum(phase.errors.values()) for phase in measured)
    ended = failed + sum(phase.ok for phase in measured)
    if limit is not None and failed > limit * ended and result.status != "stopped-by-errors":
        yield Finding(
            "load-errors",
            Severity.ERROR,
            f"{failed} of {ended} requests failed ({failed / ended:.2%}); the limit (--max-error-rate) is {limit:g}.",
            "The table of errors lists the kinds, with the first of each",
        )


def _of_phase(phase: PhaseResult, result: LoadResult, *, is_alone: bool) -> Iterator[Finding]:
    limited = None if is_alone else _late(phase)
    if is_alone:
        yield Finding(
            NEVER_OVERLAPS,
            Severity.WARNING,
            f"{phase.name}: service never overlapped: no two requests were in service at a time, although others "
            f"waited and there were {phase.concurrency} workers. The target blocks the event loop.",
            "Run blocking calls of a coroutine in a thread (await asyncio.to_thread(…)), or use more processes (-np)",
        )
    if limited is not None:
        yield Finding(
            GENERATOR_LIMITED,
            Severity.WARNING,
            f"{phase.name}: the generator was late: {limited} of the latency passed between the due time and the "
            "sending, although a worker was free.",
            "Use a lower rate, fewer workers, a free CPU or more processes (-np)",
        )
    if phase.unanswered:
        yield Finding(
            "requests-failed",
            Severity.WARNING,
            f"{phase.name}: {phase.unanswered} of {phase.arrivals} requests had no answer when "
            f"{'the grace period' if result.status == 'ok' else 'the run'} ended; {phase.never_sent} were never "
            "sent because no worker was free. Percentiles count them as slower than all others.",
            "Use a lower rate, more workers (--concurrency), or a longer --grace",
        )
    if phase.arrivals and not phase.ok:
        yield Finding(
            "requests-failed",
            Severity.ERROR,
            f"{phase.name}: all {phase.arrivals} requests failed or had no answer; there is no latency.",
            SEE_ERRORS,
        )
    if not keeps_up(phase, result) and result.status in ("ok", "interrupted"):
        yield _not_kept_up(phase, result, is_limited=limited is not None)


def keeps_up(phase: PhaseResult, result: LoadResult) -> bool:
    """Whether the target answered about as many requests as were due; always true for a closed loop.

    The last answers come after the phase, delayed by the duration of a request. That is not a growing queue.
    """
    asked, achieved = phase.asked_rate, phase.achieved_rate
    if not (asked and achieved is not None and phase.ok and achieved < KEPT_UP * asked):
        return True
    return not _more_and_more_are_open(phase, result)


def _more_and_more_are_open(phase: PhaseResult, result: LoadResult) -> bool:
    """Whether the number of open requests grew throughout the second half of a phase; first it rises to its level.

    A varying rate may be too high for part of the phase.
    """
    windows = [one for one in result.windows if one.phase == phase.name]
    if not windows:
        return True
    ends = [phase.start_s, *(one.end_s for one in windows)]
    due = np.cumsum([0, *(one.arrivals for one in windows)])
    ended = np.cumsum([0, *(one.completed + one.errors.get(UNANSWERED, 0) for one in windows)])
    half, later, end = (phase.start_s + phase.duration_s * part for part in (0.5, 0.75, 1.0))
    growth = np.diff(np.interp([half, later, end], ends, due - ended))
    missing = (1 - KEPT_UP) * float(np.diff(np.interp([half, end], ends, due))[0])
    in_both = has_own_shape(phase, result) or growth.min() > growth.sum() / 4
    return bool(growth.sum() > missing + BY_CHANCE and in_both)


def has_own_shape(phase: PhaseResult, result: LoadResult) -> bool:
    """Whether the profile itself changes the rate over a phase."""
    asked = result.profile["phases"][result.phases.index(phase)]
    return "rate-to" in asked or "times-file" in asked


def _not_kept_up(phase: PhaseResult, result: LoadResult, *, is_limited: bool) -> Finding:
    """The achieved rate is about the target's maximum: it always had a request to serve."""
    hints = [f"Try {0.8 * (phase.achieved_rate or 0.0):.3g} requests per second, for a short queue"]
    if result.tracer in COSTLY_TRACERS:
        hints.append(f"measure without {result.tracer}, which adds overhead (--tracer none)")
    most = "" if is_limited else f", so the target's maximum is about {phase.achieved_rate:.4g}/s"
    return Finding(
        "rate-not-achieved",
        Severity.WARNING,
        f"{phase.name}: {phase.achieved_rate:.4g} of {phase.asked_rate:.4g} requests per second were answered{most}. "
        "The queue grew, so latencies depend on the duration of the phase.",
        "; ".join(hints),
    )


def _late(phase: PhaseResult) -> str | None:
    """The share of lateness in the latency, if too large."""
    for name, text in (("mean", "the mean"), ("p99", "p99")):
        late, latency = getattr(phase.lateness, name).value, getattr(phase.latency, name).value
        if late is not None and latency is not None and late > LATE_MS and late > LATE_SHARE * latency:
            return f"{late:.3g} of {latency:.3g} ms ({text})"
    return None
