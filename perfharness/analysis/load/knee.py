"""The highest rate that meets an objective: which rate to try next, and what is proven by then.

A rate meets the objective where the whole interval of the share of requests that are answered in time is above the
percentile, and that of the errors below their limit; it misses where one of them is on the other side, or where the
queue grew from the begin to the end. In between it is undecided, and tried for longer, up to a limit. Each look at a
rate has its part of the 5 % that may be wrong (Bonferroni), since looking until something is decided decides wrongly
more often.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from perfharness.analysis.load.proportions import ALPHA, NEVER_NS, Float64, Int64, Latencies, Share, WindowedCounts
from perfharness.analysis.load.trends import grows
from perfharness.model.load_judgement import Knee, KneeStep, LoadFigure, StepVerdict

Bool = npt.NDArray[np.bool_]

PRECISION = 0.1
MOST_LATE = 0.1
"""Of the objective: where 1 of 100 requests is sent later than that, the generator may be the limit."""

MOMENTS = 60
"""At which the length of the queue is taken."""

MOST_STEPS = 30
LOOKS = 6
"""At a rate, at most. Each one is judged with all that was measured at the rate before."""

BUDGET = 80.0
"""Of the whole search, in durations of a first look."""

SHARE_OF_A_LOOK = 0.25
"""Of what is left of the budget, that one look may take while other rates are not tried yet."""

GROWTH = 3.0
ENOUGH = 1.3
"""Times as long as the interval would need to decide, if the share stayed as it is: it will not quite."""


@dataclass(frozen=True)
class KneeObjective:
    """What a rate has to meet.

    Args:
        limit_ns: of the latency.
        percentile: of the requests that have to keep to it.
        max_error_rate: share of the requests that may fail.
    """

    limit_ns: int
    percentile: float
    max_error_rate: float


@dataclass(frozen=True)
class StepRequests:
    """The requests that were due at one rate.

    Args:
        intended_ns: when each was due, ascending.
        done_ns: when it was answered, or failed; `NEVER_NS`: it was not.
        failed: whether it was not answered, or with an error.
        late_ns: how late the generator sent each, which is its own fault; None: nothing is known to be late.
    """

    rate: float
    duration_s: float
    intended_ns: Int64
    done_ns: Int64
    failed: Bool
    late_ns: Int64 | None = None

    def and_then(self, more: StepRequests) -> StepRequests:
        """Requests of another phase at the same rate added, as if the other one had followed at once."""
        if not len(self.intended_ns) or not len(more.intended_ns):
            return replace(more if len(more.intended_ns) else self, duration_s=self.duration_s + more.duration_s)
        shift = int(self.intended_ns[0]) + round(self.duration_s * 1e9) - int(more.intended_ns[0])
        late = [np.zeros(len(one.done_ns), np.int64) if one.late_ns is None else one.late_ns for one in (self, more)]
        return StepRequests(
            self.rate,
            self.duration_s + more.duration_s,
            np.concatenate([self.intended_ns, more.intended_ns + shift]),
            np.concatenate([self.done_ns, np.where(more.done_ns == NEVER_NS, NEVER_NS, more.done_ns + shift)]),
            np.concatenate([self.failed, more.failed]),
            np.concatenate(late),
        )

    def as_if_in_time(self) -> StepRequests:
        """Had each been sent at its moment, as far as that is known: answers come no earlier than that."""
        late = np.zeros(len(self.done_ns), np.int64) if self.late_ns is None else self.late_ns
        return replace(self, done_ns=np.where(self.done_ns == NEVER_NS, NEVER_NS, self.done_ns - late), late_ns=None)

    @property
    def latency_ns(self) -> Int64:
        """Of each; `NEVER_NS` where it failed."""
        return np.where(self.failed | (self.done_ns == NEVER_NS), NEVER_NS, self.done_ns - self.intended_ns)

    @property
    def achieved_rate(self) -> float | None:
        """Answers a second, from the first request that was due to the last answer, or to the end of the step."""
        done = self.done_ns[~self.failed & (self.done_ns != NEVER_NS)]
        if not len(done):
            return None
        return len(done) / max(int(done.max() - self.intended_ns[0]) / 1e9, self.duration_s)

    def in_flight(self) -> Float64:
        """Requests that were due and not answered, at evenly spaced moments."""
        if not len(self.intended_ns):
            return np.empty(0)
        moments = self.intended_ns[0] + np.linspace(0, self.duration_s * 1e9, MOMENTS + 1)[1:].astype(np.int64)
        due = np.searchsorted(self.intended_ns, moments, side="right")
        done = np.searchsorted(np.sort(self.done_ns), moments, side="right")
        return np.asarray(due - done, dtype=np.float64)


def judge_step(
    requests: StepRequests, objective: KneeObjective, alpha: float = ALPHA, before: StepRequests | None = None
) -> KneeStep:
    """Whether a rate meets the objective.

    Args:
        before: what was measured at this rate earlier, which counts too.
    """
    last, requests = requests, requests if before is None else before.and_then(requests)
    latencies = Latencies(WindowedCounts.of_values(requests.intended_ns, requests.latency_ns), alpha)
    errors = WindowedCounts.of_values(requests.intended_ns, np.where(requests.failed, NEVER_NS, 0))
    within = latencies.share_within(objective.limit_ns)
    well = Latencies(errors, alpha).share_within(0)
    growing = grows(last.in_flight())
    verdict, reason = _verdict(within, well, growing, objective)
    late = requests.late_ns
    if verdict == "misses" and late is not None and len(late):
        is_late = float(np.percentile(late, 99)) > MOST_LATE * objective.limit_ns
        if is_late and judge_step(requests.as_if_in_time(), objective, alpha).verdict != "misses":
            verdict, reason = "undecided", "the generator sent requests too late to say what the target can do"
    return KneeStep(
        rate=requests.rate,
        achieved_rate=last.achieved_rate,
        duration_s=last.duration_s,
        measured_s=requests.duration_s,
        requests=len(requests.intended_ns),
        failed=int(np.count_nonzero(requests.failed)),
        percentile_ms=latencies.percentile(objective.percentile),
        within=_figure(within),
        is_growing=growing,
        verdict=verdict,
        reason=reason,
        decides_after_s=needed_s(within, well, objective, requests.duration_s) if verdict == "undecided" else None,
    )


def needed_s(within: Share | str, well: Share | str, objective: KneeObjective, measured_s: float) -> float | None:
    """How long the rate has to be measured in all until it is probably decided; None: nobody can tell.

    An interval of a share is narrower by the root of the time; of none or of all, in proportion to it.
    """
    if isinstance(within, str) or isinstance(well, str):
        return 2 * measured_s
    times = []
    for share, limit in ((within, objective.percentile / 100), (well, 1 - objective.max_error_rate)):
        distance = abs(share.value - limit)
        half = share.value - share.low if share.value >= limit else share.high - share.value
        if share.low < limit <= share.high:
            power = 1 if share.value in (0.0, 1.0) else 2
            times.append((half / distance) ** power if distance > 0 else np.inf)
    longest = max(times, default=np.inf)
    return float(ENOUGH * longest * measured_s) if np.isfinite(longest) else None


def _figure(share: Share | str) -> LoadFigure:
    if isinstance(share, str):
        return LoadFigure(reason=share)
    return LoadFigure(value=share.value, low=share.low, high=share.high)


def _verdict(
    within: Share | str, well: Share | str, growing: bool | None, objective: KneeObjective
) -> tuple[StepVerdict, str | None]:
    if growing:
        return "misses", "the queue grew all the time"
    if isinstance(within, str) or isinstance(well, str):
        return "undecided", within if isinstance(within, str) else str(well)
    share = objective.percentile / 100
    if within.high < share:
        return "misses", f"{within.value:.2%} of the requests were answered in time"
    if well.high < 1 - objective.max_error_rate:
        return "misses", f"{1 - well.value:.2%} of the requests failed"
    if within.low < share:
        return "undecided", f"{within.low:.2%} to {within.high:.2%} of the requests are answered in time"
    if well.low < 1 - objective.max_error_rate:
        return "undecided", f"{1 - well.high:.2%} to {1 - well.low:.2%} of the requests fail"
    return "meets", None


@dataclass
class KneeSearch:
    """Which rate comes next, and what was found: `next_step` until it is None, `add` after each.

    Args:
        lowest, highest: rates; the search begins at `start`, doubles or halves until it has one that meets and one that
            misses, and then halves the gap between them.
        duration_s: of the first look at a rate.
        budget_s: of all steps together; 0: `BUDGET` first looks.
    """

    objective: KneeObjective
    start: float
    lowest: float
    highest: float
    duration_s: float
    precision: float = PRECISION
    most_steps: int = MOST_STEPS
    looks: int = LOOKS
    budget_s: float = 0.0
    steps: list[KneeStep] = field(default_factory=list)
    _measured: dict[float, StepRequests] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.budget_s = self.budget_s or BUDGET * self.duration_s

    @property
    def alpha(self) -> float:
        """Of one look."""
        return ALPHA / self.looks

    def next_step(self) -> tuple[float, float] | None:
        """Rate and seconds of the next step; None: the search is over."""
        if len(self.steps) >= self.most_steps or self.left_s < self.duration_s:
            return None
        if not self.steps:
            return min(max(self.start, self.lowest), self.highest), self.duration_s
        last = self.steps[-1]
        if last.verdict == "undecided" and (more_s := self._more_s(last, self.left_s * SHARE_OF_A_LOOK)) is not None:
            return last.rate, more_s
        rate = self._next_rate()
        if rate is not None:
            return rate, self.duration_s
        again = [(more_s, step.rate) for step in self._open_ends() if (more_s := self._more_s(step)) is not None]
        return min(again, default=(0.0, 0.0))[::-1] if again else None

    @property
    def left_s(self) -> float:
        """Of the budget."""
        return self.budget_s - sum(step.duration_s for step in self.steps)

    @property
    def needs_s(self) -> float | None:
        """How much longer the open rates would have to be measured; None: none is open, or nobody can tell."""
        needed = [
            None if step.decides_after_s is None else step.decides_after_s - step.measured_s
            for step in self._open_ends()
        ]
        return sum(one for one in needed if one is not None) if needed and None not in needed else None

    def _open_ends(self) -> list[KneeStep]:
        """The last look at each rate that is undecided, and on which the answer rests."""
        last = {step.rate: step for step in self.steps}
        best = max((rate for rate, step in last.items() if step.verdict == "meets"), default=0.0)
        misses = [rate for rate, step in last.items() if step.verdict == "misses" and rate > best]
        above = min(misses, default=np.inf)
        return [step for rate, step in last.items() if step.verdict == "undecided" and best < rate < above]

    def _more_s(self, step: KneeStep, most_s: float | None = None) -> float | None:
        """How long the rate of an undecided step is measured again; None: not at all.

        What a short look predicts is not relied on for long: a look is at most three times as long as all before.

        Args:
            most_s: a longer look is left for later; None: what is left of the budget.
        """
        if self._looks_at(step.rate) >= self.looks or step.decides_after_s is None:
            return None
        needed_s = max(step.decides_after_s - step.measured_s, self.duration_s)
        more_s = min(needed_s, GROWTH * step.measured_s)
        if most_s is None:
            return more_s if needed_s <= self.left_s else None
        return more_s if more_s <= most_s else None

    def add(self, requests: StepRequests) -> KneeStep:
        """Judge a step that was run."""
        before = self._measured.get(requests.rate)
        step = judge_step(requests, self.objective, self.alpha, before)
        self._measured[requests.rate] = requests if before is None else before.and_then(requests)
        self.steps.append(step)
        return step

    def verdicts(self) -> dict[float, StepVerdict]:
        """The last verdict of each rate."""
        return {step.rate: step.verdict for step in self.steps}

    def result(self, *, interrupted: bool = False) -> Knee:
        """What is proven by now."""
        verdicts = self.verdicts()
        best = max((rate for rate, verdict in verdicts.items() if verdict == "meets"), default=None)
        misses = min(
            (rate for rate, verdict in verdicts.items() if verdict == "misses" and rate > (best or 0)), default=None
        )
        undecided = sorted(
            rate for rate, verdict in verdicts.items()
            if verdict == "undecided" and rate > (best or 0) and (misses is None or rate < misses)
        )  # fmt: skip
        below = [rate for rate, verdict in verdicts.items() if verdict != "meets" and rate < (best or 0)]
        is_close = best is not None and misses is not None and misses <= best * (1 + self.precision) * (1 + 1e-9)
        knee = Knee(
            objective_ms=self.objective.limit_ns / 1e6,
            percentile=self.objective.percentile,
            max_error_rate=self.objective.max_error_rate,
            precision=self.precision,
            rate=best,
            misses_at=misses,
            proven=is_close and not below and not interrupted,
            ended_by="found",
            undecided=undecided,
            steps=self.steps,
            budget_s=self.budget_s,
            needs_s=None if is_close else self.needs_s,
        )
        ended, reason = self._end(knee, below, interrupted=interrupted)
        return knee.model_copy(update={"ended_by": ended, "reason": reason})

    def _end(self, knee: Knee, below: list[float], *, interrupted: bool) -> tuple[str, str | None]:
        if interrupted:
            return "interrupted", "it was interrupted; what was measured by then is kept"
        if len(self.steps) >= self.most_steps and not knee.proven:
            return "steps", f"{self.most_steps} steps were run, and the gap is wider than {self.precision:.0%}"
        if knee.rate is None and knee.misses_at is not None and not knee.undecided:
            return "lowest-misses", f"the lowest rate, {knee.misses_at:g}/s, misses it"
        if knee.misses_at is None and knee.rate is not None and not knee.undecided:
            return "highest-meets", f"the highest rate, {knee.rate:g}/s, meets it"
        if below:
            return "undecided", f"at {below[0]:g}/s, a lower rate, it is not met for certain"
        if not knee.proven:
            where = ", ".join(f"{rate:g}/s" for rate in knee.undecided)
            more = "" if knee.needs_s is None else f", and about {knee.needs_s:.0f} s more would decide it"
            if where:
                return "undecided", f"at {where} the intervals hold the objective{more}"
            return "budget", f"the budget of {self.budget_s:g} s is used up"
        return "found", None

    def _looks_at(self, rate: float) -> int:
        return sum(step.rate == rate for step in self.steps)

    def _next_rate(self) -> float | None:
        """Below what is undecided for good, the search goes on, and above it too: both ends move towards it."""
        verdicts = self.verdicts()
        meets = [rate for rate, verdict in verdicts.items() if verdict == "meets"]
        misses = [rate for rate, verdict in verdicts.items() if verdict == "misses" and rate > max(meets, default=0)]
        if not misses:
            top = max(verdicts)
            return None if top >= self.highest else min(top * 2, self.highest)
        if not meets:
            bottom = min(verdicts)
            return None if bottom <= self.lowest else max(bottom / 2, self.lowest)
        low, high = max(meets), min(misses)
        edges = [low, *sorted(r for r, v in verdicts.items() if v == "undecided" and low < r < high), high]
        gaps = [(edges[0], edges[1]), (edges[-2], edges[-1])]
        close = 1 + self.precision if len(edges) == 2 else (1 + self.precision) ** 0.5
        wide = [(a, b) for a, b in gaps if b > a * close * (1 + 1e-9)]
        return None if not wide else round((wide[0][0] * wide[0][1]) ** 0.5, 6)
