"""The same load on several numbers of replicas, in shuffled rounds, and which number to take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from perfharness.analysis.comparison.launches import mean_of_launches
from perfharness.analysis.load.choice import Choice, Contender, Placed, choose, without_nulls
from perfharness.errors import LaunchError, UsageError
from perfharness.files import write_model
from perfharness.load.profile import Profile, profile_of
from perfharness.load.replicas.plan import SHARINGS, PlannedCase, plan_replicas
from perfharness.load.replicas.result import REPLICAS_NAME, ReplicaCase, Replicas, Sharing
from perfharness.load.stress import LAUNCH_SETTINGS, MODEL, StressResult, model_spec, run_stress
from perfharness.model.findings import Finding, Severity
from perfharness.model.load import PhaseResult, TargetRecord
from perfharness.model.manifest import FindingRecord
from perfharness.runs.launch import LaunchResult, Observe, unobserved
from perfharness.runs.series.repeat import (
    RepeatCase,
    RepeatedLaunch,
    plan_repeats,
    repeat_options,
    repeat_request,
    run_repeats,
)
from perfharness.runs.series.repeat_file import RepeatRequest
from perfharness.runs.series.repeat_numbers import over_launches
from perfharness_launcher.plan.launch_plan import LaunchPlan
from perfharness_launcher.processes.supervise import Observer
from perfharness_launcher.staging import writing_to

RATE, GOODPUT = "answers_per_second", "goodput"
LATENCIES = ("p99_ms", "p95_ms", "p90_ms", "p50_ms")
"""The first that all launches have decides between cases that keep up with an open loop."""

MEGABYTE = 1e6
Figures = dict[str, float | None]


@dataclass(frozen=True)
class MeasuredLaunch:
    """One launch of a case.

    Args:
        problem: why its figures do not count; None: they do.
    """

    figures: Figures
    problem: str | None = None


@dataclass
class ReplicaRun:
    """A comparison of replicas, as it is measured: `launches` runs it, `result` is what it came to by then.

    Args:
        cases: planned ones.
        profile: the load, of all replicas together.
        folder: of `replicas.json`, and of a folder a case.
    """

    cases: Sequence[PlannedCase]
    profile: Profile
    folder: Path
    request: RepeatRequest
    command: Sequence[str]
    _repeats: list[RepeatCase] = field(default_factory=list, init=False)
    _measured: dict[Path, MeasuredLaunch] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        options = [self._options(case) for case in self.cases]
        plans = [
            [replace(case.plan.launch, options=each) for each in repeat_options(one, self.request)]
            for case, one in zip(self.cases, options, strict=True)
        ]
        self._repeats = plan_repeats(options, self.request, [self.command] * len(options), plans)
        for repeat, case in zip(self._repeats, self.cases, strict=True):
            repeat.run, repeat.needs_stages = self._runs(case), False

    def _options(self, case: PlannedCase) -> Any:
        return case.plan.launch.options.model_copy(update={"output_dir": self.folder / case.name})

    def _runs(self, case: PlannedCase) -> Callable[[LaunchPlan, Sequence[str], Observer], LaunchResult]:
        def run(plan: LaunchPlan, command: Sequence[str], observer: Observer) -> LaunchResult:
            found = run_stress(replace(case.plan, launch=plan), command, observer, case.companions())
            self._measured[found.launch.folder.absolute()] = measured_of(found, len(plan.processes))
            return found.launch

        return run

    def case_of(self, plan: LaunchPlan) -> PlannedCase:
        """The case that a launch is one of."""
        return next(one for one in self.cases if one.name == plan.options.output_dir.parent.name)

    def launches(self, observe: Observe = unobserved) -> Iterator[RepeatedLaunch]:
        """Make all launches, each when it is requested. Raises `LaunchError`, `ResultError`."""
        with writing_to(self.folder):
            yield from run_repeats(self._repeats, observe)

    @property
    def result(self) -> Replicas:
        """What was measured so far."""
        cases = [self._case(*pair) for pair in zip(self.cases, self._repeats, strict=True)]
        judged = judge(cases, self.profile, [self._places(one) for one in self._repeats])
        spec = self.cases[0].plan.spec
        return Replicas(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=list(self.command),
            target=TargetRecord(kind=spec.kind, name=spec.target),
            profile=self.profile.to_json(),
            asked=self.request,
            order=list(self._repeats[0].order),
            findings=[FindingRecord.model_validate(one.to_json()) for one in replica_findings(judged)],
            **judged,
        )

    def write(self) -> None:
        """Write the file. Raises `ResultError`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_model(self.folder / REPLICAS_NAME, self.result)

    def _counted(self, repeat: RepeatCase) -> dict[str, MeasuredLaunch]:
        """The launches whose figures count, by their folders."""
        found = {row.folder: self._measured.get((repeat.folder / row.folder).absolute()) for row in repeat.rows
                 if row.status == "ok"}  # fmt: skip
        return {folder: one for folder, one in found.items() if one is not None and one.problem is None}

    def _places(self, repeat: RepeatCase) -> list[int]:
        counted = self._counted(repeat)
        return [row.place for row in repeat.rows if row.folder in counted]

    def _case(self, case: PlannedCase, repeat: RepeatCase) -> ReplicaCase:
        counted = self._counted(repeat)
        left_out = []
        for row in repeat.rows:
            one = self._measured.get((repeat.folder / row.folder).absolute())
            problem = row.reason or (one.problem if one is not None else None)
            if row.folder not in counted and problem is not None:
                left_out.append(f"{row.folder}: {problem}")
        names = next((one.figures for one in counted.values()), {})
        values = {name: [one.figures[name] for one in counted.values()] for name in names}
        return ReplicaCase(
            name=case.name,
            sharing=case.sharing,
            replicas=case.replicas,
            processes=len(case.plan.launch.processes),
            gpus=[gpu.uuid for gpu in case.plan.launch.gpus],
            launches=list(counted),
            left_out=left_out,
            figures={name: over_launches(each, mean_of_launches(each)) for name, each in values.items()},
            standing="not-measured",
            judged_by="",
        )


def measured_of(found: StressResult, processes: int) -> MeasuredLaunch:
    """The figures of a launch: of the longest phase that counts."""
    load = found.load
    phase = max((one for one in load.phases if not one.is_warmup), key=lambda one: one.duration_s, default=None)
    if load.status != "ok" or phase is None:
        return MeasuredLaunch({}, load.status_reason or f"the load was {load.status}")
    metrics = found.launch.summary.mean.get("gpu_metrics") or {}
    shares = [gpu["busy_share"] for gpu in metrics.get("gpus") or []]
    resident = [window.rss_mb for window in load.windows if window.phase == phase.name]
    known = [one for one in resident if one is not None]
    ended = phase.ok + sum(phase.errors.values())
    return MeasuredLaunch(
        {
            RATE: answers_per_second(phase),
            "items_per_second": phase.items_per_second,
            GOODPUT: phase.goodput,
            **{f"{name}_ms": getattr(phase.latency, name).value for name in ("p50", "p90", "p95", "p99")},
            "error_share": sum(phase.errors.values()) / ended if ended else None,
            "gpu_busy_share": sum(shares) / len(shares) if shares and None not in shares else None,
            "gpu_memory_mb": _largest(metrics, "gpu_memory_bytes"),
            "memory_mb": max(known) / processes if known else _largest(metrics, "resident_memory_bytes"),
        }
    )


def answers_per_second(phase: PhaseResult) -> float | None:
    """Answers without error a second; None: no time passed."""
    if phase.achieved_rate is None:
        return None
    return phase.achieved_rate * phase.ok / phase.completed if phase.completed else 0.0


def _largest(metrics: Mapping[str, Any], name: str) -> float | None:
    """Of the telemetry of the processes: the largest during the launch, the mean over them; MB."""
    found = [(each.get("figures") or {}).get(name) for each in (metrics.get("processes") or {}).values()]
    most = [one.get("max") if one else None for one in found]
    known = [one for one in most if one is not None]
    return sum(known) / len(known) / MEGABYTE if known and len(known) == len(most) else None


def judge(cases: Sequence[ReplicaCase], profile: Profile, places: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The cases with their standings, and the choice, by the fields of `Replicas`.

    Args:
        places: of the launches of each case that count, in the order of all.
    """
    first = GOODPUT if profile.objective is not None else RATE
    choice = _choose(cases, places, first, more_is_better=True)
    judged = _placed(cases, choice, first)
    by = first
    counted = [phase for phase in profile.phases if not phase.warmup]
    is_open = max(counted, key=lambda phase: phase.duration_s).loop == "open"
    if first == RATE and is_open and choice.leader is not None:
        keep_up = [number for number, place in enumerate(choice.places) if place.standing in ("best", "same")]
        latency = next((name for name in LATENCIES if all(_has(cases[number], name) for number in keep_up)), None)
        if latency is not None and len(keep_up) > 1:
            by = latency
            among = _choose([cases[one] for one in keep_up], [places[one] for one in keep_up], by, more_is_better=False)
            faster = _placed([cases[one] for one in keep_up], among, by)
            judged = [faster[keep_up.index(one)] if one in keep_up else judged[one] for one in range(len(cases))]
            open_ends = any(place.standing == "undecided" for place in choice.places)
            choice = Choice(
                keep_up[among.leader] if among.leader is not None else None,
                keep_up[among.chosen] if among.chosen is not None else None,
                among.proven and not open_ends,
                choice.places,
            )
    best = None if choice.leader is None else judged[choice.leader].name
    chosen = None if choice.chosen is None else judged[choice.chosen].name
    return {
        "cases": judged,
        "judged_by": by,
        "best": best,
        "chosen": chosen,
        "proven": choice.proven,
        "reason": _reason(judged, best, chosen, by),
    }


def _has(case: ReplicaCase, name: str) -> bool:
    return name in case.figures and case.figures[name].mean is not None


def _choose(
    cases: Sequence[ReplicaCase], places: Sequence[Sequence[int]], name: str, *, more_is_better: bool
) -> Choice:
    contenders = [
        Contender(
            (case.replicas, SHARINGS.index(case.sharing)),
            without_nulls(case.figures[name].values if name in case.figures else []),
            np.array(at, np.int64),
        )
        for case, at in zip(cases, places, strict=True)
    ]
    return choose(contenders, more_is_better=more_is_better)


def _placed(cases: Sequence[ReplicaCase], choice: Choice, name: str) -> list[ReplicaCase]:
    return [_with_place(case, place, name) for case, place in zip(cases, choice.places, strict=True)]


def _with_place(case: ReplicaCase, place: Placed, name: str) -> ReplicaCase:
    low, high = (None, None) if place.interval is None else (place.interval.low, place.interval.high)
    reason = place.reason
    if place.standing == "not-measured" and case.left_out:
        reason = case.left_out[0]
    return case.model_copy(
        update={
            "standing": place.standing, "judged_by": name, "ratio": place.ratio, "low": low, "high": high,
            "launches_needed": place.launches_needed, "reason": reason,
        }
    )  # fmt: skip


def _reason(cases: Sequence[ReplicaCase], best: str | None, chosen: str | None, by: str) -> str:
    """One sentence: what is chosen, by which figures, and what is not known."""
    found = {case.name: case for case in cases}
    if best is None or chosen is None:
        return "no case was measured"
    figure = found[chosen].figures[by]
    text = f"{chosen} has {by} of {_number(figure.mean)}"
    if figure.low is not None and figure.high is not None:
        text += f" ({_number(figure.low)} to {_number(figure.high)})"
    if chosen != best:
        text += f", and {best}, the best, differs by less than 5 %"
    worse = [case for case in cases if case.standing == "worse"]
    if worse:
        text += f"; worse: {', '.join(case.name for case in worse)}"
    for standing, said in (("undecided", f"not told apart from {best}"), ("not-measured", "not measured")):
        if names := [case.name for case in cases if case.standing == standing]:
            text += f"; {said}: {', '.join(names)}"
    return text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def replica_findings(judged: Mapping[str, Any]) -> Iterator[Finding]:
    """Where there is no choice, or none that is proven."""
    cases: Sequence[ReplicaCase] = judged["cases"]
    if judged["best"] is None:
        why = next((case.left_out[0] for case in cases if case.left_out), "no launch was made")
        yield Finding("replicas-not-measured", Severity.ERROR, f"No number of replicas was measured: {why}.")
        return
    undecided = [case for case in cases if case.standing == "undecided"]
    if len(cases) > 1 and undecided:
        needed = max((case.launches_needed or 0 for case in undecided), default=0)
        yield Finding(
            "replicas-undecided",
            Severity.WARNING,
            f"Which case is best is not proven: {', '.join(case.name for case in undecided)} "
            f"{'is' if len(undecided) == 1 else 'are'} not told apart from {judged['best']} "
            f"({undecided[0].reason}).",
            f"--repeat {needed} would probably decide it" if needed else "Measure more launches, or longer ones",
        )
    if missing := [case for case in cases if case.standing == "not-measured"]:
        yield Finding(
            "replicas-case-failed",
            Severity.ERROR,
            f"{', '.join(case.name for case in missing)} could not be measured: {missing[0].reason}.",
        )


def compare_replicas(
    target: str,
    *script_arguments: str,
    replicas: Sequence[int],
    sharing: Sequence[Sharing] = ("plain",),
    starts_mps: bool = False,
    count: int | None = None,
    random_seed: int | None = None,
    profile: str | Path | None = None,
    observe: Observe = unobserved,
    **settings: Any,
) -> Replicas:
    """Put the same load on several numbers of replicas of a target; what `perfharness stress --replicas` does.

    Args:
        target, script_arguments, profile, settings: as in `perfharness.stress`; a URL is no target here.
        replicas: numbers of processes on a GPU.
        sharing: how they share it.
        starts_mps: whether a daemon of MPS is started for the launches that need one, and ended.
        count: launches of each case.
        random_seed: of the order; None: drawn, and stored.
        observe: opens an observer of each launch.

    Raises:
        UsageError: a setting is wrong, or what was asked for is not possible here.
        LaunchError: nothing was measured.
        ResultError: a file cannot be written.
    """
    launch = {name: settings.pop(name) for name in LAUNCH_SETTINGS if name in settings}
    model = model_spec(settings.pop("backend", None), {name: settings.pop(name) for name in MODEL if name in settings})
    load = profile_of(settings, None if profile is None else Path(profile))
    if unknown := set(sharing) - set(SHARINGS):
        raise UsageError(f"sharing: {sorted(unknown)[0]} is none of {', '.join(SHARINGS)}")
    with TemporaryDirectory(prefix="perfharness-mps-") as folder:
        cases = plan_replicas(
            target, load, launch, model, numbers=replicas, sharings=sharing, starts_mps=starts_mps,
            script_arguments=script_arguments, folder=Path(folder),
        )  # fmt: skip
        out = cases[0].plan.launch.options.output_dir
        command = ["perfharness", "stress", target, "--replicas", ",".join(map(str, replicas))]
        run = ReplicaRun(cases, load, out, repeat_request(count, random_seed), command)
        for _ in run.launches(observe):
            pass
    found = run.result
    run.write()
    if found.best is None:
        raise LaunchError(f"{target}: {found.findings[0].message}")
    return found
