"""What a reader of a load test's numbers has to know."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from perfharness.model.findings import Finding, Severity
from perfharness.model.load import UNANSWERED, LoadResult, PhaseResult

GENERATOR_LIMITED, NEVER_OVERLAPS = "generator-limited", "load-never-overlaps"
LATE_SHARE = 0.2
"""Part of the latency, of its mean or its p99, that the generator's lateness may have."""

LATE_MS = 1.0
"""Lateness below that is not reported, whatever its part: a target may be as fast as a thread wakes up."""

SEE_ERRORS = "The table of errors lists the first of each kind"
COSTLY_TRACERS = ("nsys", "embedded")

KEPT_UP = 0.97
"""Part of the asked rate that has to be achieved; with less, the queue grows as long as the phase lasts."""

BY_CHANCE = 2
"""So many more may be open at one moment than at another."""


def load_findings(result: LoadResult, never_overlapped: Collection[str] = ()) -> list[Finding]:
    """The findings of the phases that count, and of the run.

    Args:
        never_overlapped: names of phases in which no two requests were in service at a time, though they waited.
    """
    found = [
        one
        for phase in result.phases
        if not phase.is_warmup
        for one in _of_phase(phase, result, is_alone=phase.name in never_overlapped)
    ]
    return [*_of_run(result), *_over_the_limit(result), *found]


def _of_run(result: LoadResult) -> Iterator[Finding]:
    if result.status == "killed":
        yield Finding(
            "load-stopped",
            Severity.ERROR,
            f"The load was cut off after {result.duration_s:.1f} s: a process that sent it was killed or crashed. At "
            "most its last second is missing.",
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
            "request of some of them counts.",
            "Use a longer --warm-up",
        )


def _over_the_limit(result: LoadResult) -> Iterator[Finding]:
    """Too many errors in the phases that count, all processes together."""
    limit = result.profile.get("max-error-rate")
    counted = [phase for phase in result.phases if not phase.is_warmup]
    failed = sum(sum(phase.errors.values()) for phase in counted)
    ended = failed + sum(phase.ok for phase in counted)
    if limit is None or not ended or failed <= limit * ended or result.status == "stopped-by-errors":
        return
    yield Finding(
        "load-errors",
        Severity.ERROR,
        f"{failed} of {ended} requests failed ({failed / ended:.2%}), more than --max-error-rate {limit:g} allows.",
        "The errors are listed by kind, each with the first one",
    )


def _of_phase(phase: PhaseResult, result: LoadResult, *, is_alone: bool) -> Iterator[Finding]:
    limited = None if is_alone else _late(phase)
    if is_alone:
        yield Finding(
            NEVER_OVERLAPS,
            Severity.WARNING,
            f"{phase.name}: service never overlapped: no two requests were in service at a time, though others waited "
            f"and {phase.concurrency} workers were there. The target blocks the event loop.",
            "Run blocking calls of a coroutine in a thread (await asyncio.to_thread(…)), or use more processes (-np)",
        )
    if limited is not None:
        yield Finding(
            GENERATOR_LIMITED,
            Severity.WARNING,
            f"{phase.name}: the generator was late: {limited} of the latency passed between the due moment and the "
            "sending, though a worker was free.",
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
            f"{phase.name}: none of {phase.arrivals} requests was answered without error: there is no latency.",
            SEE_ERRORS,
        )
    if not keeps_up(phase, result) and result.status in ("ok", "interrupted"):
        yield _not_kept_up(phase, result, is_limited=limited is not None)


def keeps_up(phase: PhaseResult, result: LoadResult) -> bool:
    """Whether the target answered about as many requests as were asked for; of a closed loop always.

    The last answers come after the phase, as long after it as a request takes. That is not a queue: a queue grows.
    """
    asked, achieved = phase.asked_rate, phase.achieved_rate
    if not (asked and achieved is not None and phase.ok and achieved < KEPT_UP * asked):
        return True
    return not _more_and_more_are_open(phase, result)


def _more_and_more_are_open(phase: PhaseResult, result: LoadResult) -> bool:
    """Whether requests became due and not answered all through the second half of a phase; in the first the requests
    that are in service at a time come about. A rate that is not the same all the time may be too high for a part of it.
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
    """The rate that was achieved is about the most that there is: the target was never without a request."""
    hints = [f"Try {0.8 * (phase.achieved_rate or 0.0):.3g} requests per second, which leave a short queue"]
    if result.tracer in COSTLY_TRACERS:
        hints.append(f"measure without {result.tracer}, which costs time (--tracer none)")
    most = "" if is_limited else f", so about {phase.achieved_rate:.4g}/s is the most that the target answers"
    return Finding(
        "rate-not-achieved",
        Severity.WARNING,
        f"{phase.name}: {phase.achieved_rate:.4g} of {phase.asked_rate:.4g} requests per second were answered{most}. "
        "The queue grew, so latencies depend on how long the phase lasted.",
        "; ".join(hints),
    )


def _late(phase: PhaseResult) -> str | None:
    """How much of the latency is lateness, where it is too much."""
    for name, text in (("mean", "the mean"), ("p99", "p99")):
        late, latency = getattr(phase.lateness, name).value, getattr(phase.latency, name).value
        if late is not None and latency is not None and late > LATE_MS and late > LATE_SHARE * latency:
            return f"{late:.3g} of {latency:.3g} ms ({text})"
    return None
