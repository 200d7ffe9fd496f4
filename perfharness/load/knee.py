"""The search for the knee in a worker: one phase a rate, until `KneeSearch` has its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfharness.analysis.load.knee import KneeObjective, KneeSearch, StepRequests
from perfharness.analysis.load.proportions import NEVER_NS as NO_ANSWER
from perfharness.load.generator.run import LoadRun
from perfharness.load.profile import PROBE, Phase, Profile
from perfharness.load.windows import NEVER_NS, Done
from perfharness.model.findings import Finding, Severity
from perfharness.model.load import LoadResult, Objective
from perfharness.model.load_judgement import Knee
from perfharness.model.manifest import FindingRecord

PROBE_S = 2.0
"""A closed loop in front, whose rate is where the search begins when no rate is given."""

PROBE_USERS = 16
"""Of it, at most: a service over HTTP may have a thousand connections, which are not all to be busy at once."""

PROBED_SHARE = 0.5
AROUND = 64.0
"""The search goes from so many times less to so many times more than the rate that it begins with."""

CUT_OFF = "the run was ended before the search was over"


def objective_of(objective: Objective) -> KneeObjective:
    """Without a limit of errors as many may fail as may be late."""
    errors = objective.max_error_rate
    may_fail = 1 - objective.percentile / 100 if errors is None else errors
    return KneeObjective(round(objective.latency_ms * 1e6), objective.percentile, may_fail)


def search_knee(run: LoadRun, template: Phase) -> None:
    """Search the knee with phases like the template, in a run whose profile asks for it."""
    KneeRun(run, template).search()


@dataclass
class KneeRun:
    """Runs phases for a search.

    Args:
        run: whose profile grows by a phase a step.
        template: the phase that counts: how requests arrive, and for how long at the first look at a rate.
    """

    run: LoadRun
    template: Phase
    _records: list[Done] = field(default_factory=list, init=False)

    def search(self) -> None:
        """All steps; each is in the file of windows when it is over."""
        run = self.run
        settings, objective = run.profile.knee, run.profile.objective
        assert settings is not None
        assert objective is not None
        kept, run.log.requests = run.log.requests, self._taking(run.log.requests)
        run.profile = run.profile.model_copy(update={"phases": run.profile.phases[:-1]})  # the template is no phase
        try:
            start = self.template.rate or self._probed_rate()
            if not start:
                run.fail("the target answered nothing in the first seconds, so there is no rate to begin with")
                return
            search = KneeSearch(
                objective_of(objective),
                start,
                settings.lowest or start / AROUND,
                settings.highest or start * AROUND,
                self.template.duration_s,
                settings.precision,
                settings.steps,
                budget_s=settings.budget_s or 0.0,
            )
            self._steps(search)
        finally:
            run.log.requests = kept

    def _steps(self, search: KneeSearch) -> None:
        while (step := search.next_step()) is not None and not self.run.log.stop.is_set():
            rate, duration_s = step
            look = sum(one.rate == rate for one in search.steps) + 1
            name = f"{rate:g}/s" + (f", look {look}" if look > 1 else "")
            phase = self.template.model_copy(update={"name": name, "rate": rate, "duration_s": duration_s})
            self._run_phase(phase, search)
            if self.run.log.stop.is_set():
                break
            search.add(self._requests(rate, duration_s))
            self._write(search)
        self._write(search)

    def _probed_rate(self) -> float:
        """Requests a second of a closed loop, less than it came to."""
        users = min(self.run.profile.concurrency, PROBE_USERS)
        self._run_phase(Phase(name=PROBE, duration_s=PROBE_S, concurrency=users, warmup=True), None)
        well = [one for one in self._records if one.error is None]
        if len(well) < 2:
            return 0.0
        seconds = (max(one.done_ns for one in well) - min(one.intended_ns for one in well)) / 1e9
        return PROBED_SHARE * len(well) / seconds

    def _run_phase(self, phase: Phase, search: KneeSearch | None) -> None:
        run = self.run
        self._records.clear()
        run.profile = run.profile.model_copy(update={"phases": (*run.profile.phases, phase)})
        self._write(search)
        run.workers.replace_abandoned()
        run.run_phase(len(run.profile.phases) - 1, phase)

    def _requests(self, rate: float, duration_s: float) -> StepRequests:
        rows = np.array(
            [(one.intended_ns, one.ready_ns, one.sent_ns, one.done_ns, one.error is not None) for one in self._records],
            np.int64,
        ).reshape(-1, 5)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        intended, ready, sent, done, failed = rows.T
        return StepRequests(
            rate,
            duration_s,
            intended,
            np.where(done == NEVER_NS, NO_ANSWER, done),
            failed.astype(bool),
            np.where(sent == NEVER_NS, 0, sent - np.maximum(intended, ready)),
        )

    def _write(self, search: KneeSearch | None) -> None:
        """What is known by now, and the phases that the run has."""
        knee = None if search is None else search.result(interrupted=self.run.log.stop.is_set()).model_dump(mode="json")
        self.run.log.write({"kind": "knee", "phases": phases_json(self.run.profile), "knee": knee})

    def _taking(self, kept: Callable[[str, list[Done]], None] | None) -> Callable[[str, list[Done]], None]:
        def take(phase: str, records: list[Done]) -> None:
            self._records.extend(records)
            if kept is not None:
                kept(phase, records)

        return take


def ran_profile(profile: Profile, lines: Iterable[Mapping[str, Any]]) -> Profile:
    """The profile with the phases that the search ran, as the lines of a process have them."""
    last = next((line for line in reversed(list(lines)) if line["kind"] == "knee"), None)
    if last is None:
        return profile
    return profile.model_copy(update={"phases": tuple(Phase.model_validate(phase) for phase in last["phases"])})


def with_knee(result: LoadResult, profile: Profile, lines: Iterable[Mapping[str, Any]]) -> LoadResult:
    """The result with what the search found, and the profile as it was given."""
    if profile.knee is None:
        return result
    text = next((line["knee"] for line in reversed(list(lines)) if line["kind"] == "knee" and line["knee"]), None)
    knee = None if text is None else Knee.model_validate(text)
    if knee is not None and result.status != "ok":
        knee = knee.model_copy(update={"ended_by": "interrupted", "proven": False, "reason": CUT_OFF})
    found = [FindingRecord.model_validate(one.to_json()) for one in knee_findings(knee)]
    return result.model_copy(
        update={"profile": profile.to_json(), "knee": knee, "findings": [*result.findings, *found]}
    )


def knee_findings(knee: Knee | None) -> Iterator[Finding]:
    """Where the search has no answer, or none that is proven."""
    if knee is None or knee.rate is None:
        why = "no rate was tried to the end" if knee is None else knee.reason
        yield Finding(
            "load-no-knee",
            Severity.ERROR,
            f"No rate is proven to meet the objective: {why}.",
            "Let it run to its end."
            if knee is None or knee.ended_by == "interrupted"
            else "Begin with a lower --rate, measure each rate for longer (--duration), or loosen the objective.",
        )
    elif not knee.proven:
        yield Finding(
            "load-knee-not-proven",
            Severity.WARNING,
            f"{knee.rate:g} requests/s meet the objective, and whether a higher rate does is not known: {knee.reason}.",
            "Measure each rate for longer (--duration)."
            if knee.needs_s is None or knee.budget_s is None
            else f"Give the search more time: --knee-budget {math.ceil((knee.budget_s + knee.needs_s) / 60)}m.",
        )


def phases_json(profile: Profile) -> list[dict[str, Any]]:
    """For a file."""
    return [phase.model_dump(mode="json", by_alias=True, exclude_defaults=True) for phase in profile.phases]
