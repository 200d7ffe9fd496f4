"""What tracing costs: the same launch traced and untraced in turns (`overhead.json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from perfharness.analysis.comparison.compare import Judgement, Pair, Reason, Rule, compare
from perfharness.analysis.comparison.launches import mean_of_launches
from perfharness.analysis.statistics import ALPHA
from perfharness.errors import UsageError
from perfharness.files import write_model
from perfharness.model.base import Record
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import TracerRecord
from perfharness.model.rounding import figure
from perfharness.runs.figures import QUANTILES
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.launch import Observe, unobserved
from perfharness.runs.series.file import OVERHEAD_NAME, TRACED, UNTRACED
from perfharness.runs.series.repeat import (
    RepeatCase,
    plan_repeats,
    repeat_options,
    repeat_request,
    run_repeats,
)
from perfharness.runs.series.repeat_file import OfLaunches, OverLaunches, Repeat, RepeatRequest
from perfharness.runs.series.repeat_numbers import over_launches
from perfharness_launcher.options import LaunchOptions, command_of, launch_options
from perfharness_launcher.staging import series_folder

WARN_ABOVE, DISTRUST_ABOVE = 0.10, 0.20
"""Shares of the untraced time."""

TIME = "cpu_time"

Grade = Literal["fine", "warn", "distrust", "undecided"]
"""Where the whole interval lies: `distrust` above 20 %, `warn` above 10 %, `fine` below 10 %. `undecided`: it reaches
over 10 %, or traced launches were faster by more than 10 %, or there is no interval.
"""

RANK: tuple[Grade, ...] = ("distrust", "warn", "undecided", "fine")
"""The worst first."""


class OverheadRow(Record):
    """One number with and without tracing. What is not known is None; `reason` has the reason."""

    untraced: OverLaunches | None
    traced: OverLaunches | None
    overhead: float | None = None
    """Traced over untraced, less 1: 0.1 is 10 % more. Of geometric means over launches."""

    low: float | None = None
    high: float | None = None
    """The 95 % interval of `overhead`, over launches (Welch's, of logarithms); of this row alone."""

    grade: Grade = "undecided"
    reason: str | None = None
    launches_needed: int | None = None
    """Of each kind, with which it is probably decided whether the overhead is more or less than 10 %."""


class Overhead(OfLaunches):
    """The file."""

    tracer: TracerRecord | None
    """Of the traced launches; None: none was measured."""

    grade: Grade
    """The worst of the batches; where there are none, of all stages."""

    stages: dict[str, OverheadRow]
    """By path: host time of a batch (`cpu_time`), excluded batches left out."""

    medians: dict[str, OverheadRow] = Field(default_factory=dict)
    """By path: the same of the median batch of each launch, which a few slow batches do not move."""

    latency: dict[str, dict[str, OverLaunches]] = Field(default_factory=dict)
    """Of each loop, untraced: `cpu_time` of a batch and its percentiles over batches, `cpu_time_p95`."""

    run: dict[str, OverheadRow] = Field(default_factory=dict)
    """`items_per_second` (a loss is negative), and of the processes of a launch, from start to end, `duration_s` and
    `cpu_s`."""


def overhead_cases(options: LaunchOptions) -> list[LaunchOptions]:
    """The options of the traced and of the untraced launches. Raises `UsageError`."""
    if options.tracer in ("ranges", "none"):
        raise UsageError(
            f"--overhead measures what a tracer costs, and --tracer {options.tracer} traces nothing; leave one away"
        )
    if options.explain:
        raise UsageError("--overhead measures a launch in one pass, and --explain makes two; leave one of them away")
    untraced = {"tracer": "ranges", "nsys": None, "trace_os": False, "history": False}  # no run of the script as it is
    return [
        options.model_copy(update={"output_dir": options.output_dir / TRACED}),
        options.model_copy(update={"output_dir": options.output_dir / UNTRACED, **untraced}),
    ]


def overhead_options(options: LaunchOptions, request: RepeatRequest) -> list[LaunchOptions]:
    """The options of all launches, the traced ones first. Raises `UsageError`."""
    return [each for case in overhead_cases(options) for each in repeat_options(case, request)]


def measure_overhead(
    script: str | Path,
    *script_arguments: str,
    count: int | None = None,
    seed: int | None = None,
    config: str | Path | None = None,
    observe: Observe = unobserved,
    **settings: Any,
) -> Overhead:
    """Launch a script traced and untraced in turns; what `perfharness launch --overhead` does.

    Args:
        script, script_arguments, config, settings: as in `perfharness.launch`.
        count: launches of each kind.
        seed: of the order; None: drawn, and stored.

    Raises:
        UsageError, LaunchError, ResultError: as in `repeat_cases`.
    """
    options = launch_options(script, script_arguments, settings, config)
    request = repeat_request(count, seed)
    command = command_of(options, "--overhead", "--repeat", str(request.count))
    cases = plan_repeats(overhead_cases(options), request, [command, command])
    with series_folder(options.output_dir, (TRACED, UNTRACED)):
        for _ in run_repeats(cases, observe):
            pass
        return summarize_overhead(options, cases, command)


def summarize_overhead(options: LaunchOptions, cases: Sequence[RepeatCase], command: Sequence[str]) -> Overhead:
    """What tracing costs, written to `overhead.json`.

    Args:
        cases: the traced and the untraced launches, run.

    Raises:
        ResultError: it cannot be written.
    """
    traced, untraced = (case.repeat for case in cases)
    places = [np.array([row.place for row in repeat.measured], dtype=np.int64) for repeat in (untraced, traced)]
    paths = list(dict.fromkeys([*untraced.stages, *traced.stages]))
    stages, medians = (
        {path: _row(_metric(untraced.stages, path, time), _metric(traced.stages, path, time), places) for path in paths}
        for time in (TIME, f"{TIME}_p50")
    )
    run = {
        name: _row(untraced.run.get(name), traced.run.get(name), places, more_is_better=True)
        for name in dict.fromkeys([*untraced.run, *traced.run])
    }
    run |= {name: _row(*found, places) for name, found in _process_figures(cases).items()}
    judged = [stages[path] for path in untraced.loops if path in stages] or list(stages.values())
    grade: Grade = min((row.grade for row in judged), key=RANK.index) if judged else "undecided"
    overhead = Overhead(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        script=options.script,
        script_arguments=list(options.script_arguments),
        asked=cases[0].request,
        order=list(cases[0].order),
        tracer=read_manifest(cases[0].launches[0]).tracer if cases[0].launches else None,
        confidence=1 - ALPHA,
        grade=grade,
        loops=untraced.loops,
        stages=stages,
        medians={path: row for path, row in medians.items() if row.overhead is not None},
        latency={path: _latency(untraced, path) for path in untraced.loops},
        run=run,
        findings=[
            *_findings(stages),
            *(replace(one, process=TRACED) for one in traced.findings),
            *(replace(one, process=UNTRACED) for one in untraced.findings),
        ],
    )
    options.output_dir.mkdir(parents=True, exist_ok=True)
    write_model(options.output_dir / OVERHEAD_NAME, overhead)
    return overhead


def _metric(stages: Mapping[str, Mapping[str, OverLaunches]], path: str, time: str) -> OverLaunches | None:
    return stages.get(path, {}).get(time)


def _latency(repeat: Repeat, path: str) -> dict[str, OverLaunches]:
    found = repeat.stages.get(path, {})
    return {name: found[name] for name in (TIME, *(f"{TIME}_{quantile}" for quantile in QUANTILES)) if name in found}


def _process_figures(cases: Sequence[RepeatCase]) -> dict[str, tuple[OverLaunches, OverLaunches]]:
    """Untraced and traced: how long the processes of a launch took and what CPU time they used, all together."""
    found = []
    for case in reversed(cases):
        records = [read_manifest(folder).processes for folder in case.launches]
        durations = [_total([process.duration_s for process in launch]) for launch in records]
        users = [_total([process.user_s for process in launch]) for launch in records]
        systems = [_total([process.system_s for process in launch]) for launch in records]
        cpus = [_total(pair) for pair in zip(users, systems, strict=True)]
        found.append(tuple(over_launches(values, mean_of_launches(values)) for values in (durations, cpus)))
    (untraced_s, untraced_cpu_s), (traced_s, traced_cpu_s) = found
    return {"duration_s": (untraced_s, traced_s), "cpu_s": (untraced_cpu_s, traced_cpu_s)}


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _row(
    untraced: OverLaunches | None,
    traced: OverLaunches | None,
    places: Sequence[np.typing.NDArray[np.int64]],
    *,
    more_is_better: bool = False,
) -> OverheadRow:
    """Compare one number.

    Args:
        places: of the untraced and the traced launches, in the order of all.
    """
    for kind, found in ((UNTRACED, untraced), (TRACED, traced)):
        if found is None or found.mean is None:
            why = found.reason if found is not None and found.reason else f"no {kind} launch has it"
            return OverheadRow(untraced=untraced, traced=traced, reason=why)
    assert untraced is not None
    assert traced is not None
    base, new = (
        np.array([np.nan if value is None else value for value in side.values], dtype=np.float64)
        for side in (untraced, traced)
    )
    pair = Pair(base, new, base_at=places[0], new_at=places[1])
    (judged,) = compare([pair], Rule(min_effect=WARN_ABOVE))
    low = high = None
    if judged.interval is not None and isfinite(judged.interval.high):
        low, high = judged.interval.low - 1, judged.interval.high - 1
    overhead = None if judged.ratio is None else judged.ratio - 1
    grade, reason = _grade(overhead, low, high, judged.reason, more_is_better=more_is_better)
    return OverheadRow(
        untraced=untraced,
        traced=traced,
        overhead=_figure(overhead),
        low=_figure(low),
        high=_figure(high),
        grade=grade,
        reason=reason,
        launches_needed=_launches_needed(pair, judged) if grade == "undecided" else None,
    )


def _launches_needed(pair: Pair, judged: Judgement) -> int | None:
    """Of each kind, with which the interval probably lies on one side of 10 %; None: not known.

    That a pair is the same is judged by one end of an interval of 90 %, and `fine` by that of 95 %.
    """
    if judged.ratio is not None and judged.ratio <= 1 + WARN_ABOVE:
        (judged,) = compare([pair], Rule(alpha=ALPHA / 2, min_effect=WARN_ABOVE))
    return judged.launches_needed


def _grade(
    overhead: float | None, low: float | None, high: float | None, why: Reason | None, *, more_is_better: bool
) -> tuple[Grade, str | None]:
    if overhead is None:
        return "undecided", "a launch has no value, or 0"
    if more_is_better:  # a rate: what takes 10 % longer is done 9 % less often
        overhead, low, high = (None if one is None else 1 / (1 + one) - 1 for one in (overhead, high, low))
        assert overhead is not None
    if low is None or high is None:
        one = "one launch of each kind does not show how launches differ; measure more (--repeat)"
        return "undecided", one if why is Reason.ONE_LAUNCH else "the launches differ too much for an interval"
    if low > DISTRUST_ABOVE:
        return "distrust", None
    if low > WARN_ABOVE:
        return "warn", None
    if high > WARN_ABOVE:
        return "undecided", "the interval reaches over 10 %: the launches differ too much, or are too few"
    if overhead < -WARN_ABOVE:
        return "undecided", "traced launches were faster, so launches differ by more than tracing costs"
    return "fine", None


def _findings(stages: Mapping[str, OverheadRow]) -> list[Finding]:
    """Where times of traced launches mislead."""
    found = []
    for grade in RANK[:2]:
        paths = [path for path, row in stages.items() if row.grade == grade]
        if not paths:
            continue
        worst = max(stages[path].overhead or 0 for path in paths)
        who = ", ".join(paths[:3]) + (" and others" if len(paths) > 3 else "")
        found.append(
            Finding(
                "tracing-costs-much" if grade == "distrust" else "tracing-costs-some",
                Severity.ERROR if grade == "distrust" else Severity.WARNING,
                f"Traced, {who} took up to {worst:.0%} longer.",
                "Take the untraced times: what limits a stage may be the tracer; fewer ranges cost less.",
            )
        )
    return found


def _figure(value: float | None) -> float | None:
    return None if value is None else figure(value)
