"""Repeat: fresh launches of the same one after another, of several cases in shuffled rounds (`repeat.json`)."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import combinations
from pathlib import Path
from typing import Any

from perfharness.errors import PerfHarnessError, ResultError, UsageError
from perfharness.files import write_model
from perfharness.model.conditions import GpuWait
from perfharness.model.findings import Severity
from perfharness.runs.files.run_folder import RunSummary, read_manifest
from perfharness.runs.launch import LaunchResult, Observe, plan_launches, run_plan, unobserved
from perfharness.runs.series.repeat_file import (
    DEFAULT_COUNT,
    LAUNCH_FOLDER,
    MOST_LAUNCHES,
    REPEAT_NAME,
    Repeat,
    RepeatRequest,
    RepeatRow,
    read_repeat,
)
from perfharness.runs.series.repeat_numbers import LaunchNumbers, findings_of_repeat, numbers_of_repeat
from perfharness.runs.series.series_launch import SeriesLaunch
from perfharness.runs.series.sweep import why_it_failed
from perfharness_launcher.conditions import as_cool_as_first
from perfharness_launcher.interrupts import Interrupts, noting_interrupts
from perfharness_launcher.options import LaunchOptions, command_of, launch_options
from perfharness_launcher.plan import LaunchPlan, folders_of
from perfharness_launcher.staging import series_folder
from perfharness_launcher.supervise import Observer

INTERRUPTED = "the repeat was interrupted"
NO_NUMBERS = "nothing was measured in it"


@dataclass
class RepeatCase:
    """One thing that is launched again and again, and what was measured of it so far.

    Attributes:
        options: its `output_dir` is the folder of `repeat.json` and of the launches.
        run: makes a launch.
        needs_stages: whether a launch without times of a stage measured nothing.
    """

    options: LaunchOptions
    plans: Sequence[LaunchPlan]
    command: Sequence[str]
    request: RepeatRequest
    order: Sequence[str] = ()
    rows: list[RepeatRow] = field(default_factory=list)
    numbers: list[LaunchNumbers] = field(default_factory=list)
    """Of the rows whose status is `ok`."""

    placed: Path | None = None
    """Its folder, where an earlier run kept its place in the output folder."""

    @property
    def folder(self) -> Path:
        """Of `repeat.json`."""
        return self.placed or self.options.output_dir

    @property
    def launches(self) -> list[Path]:
        """Run folders of the launches that went well: what `compare` takes as one side."""
        return [self.folder / row.folder for row in self.rows if row.status == "ok"]

    @property
    def repeat(self) -> Repeat:
        """What was measured so far."""
        repeat = Repeat(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=list(self.command),
            script=self.options.script,
            script_arguments=list(self.options.script_arguments),
            asked=self.request,
            order=list(self.order),
            rows=self.rows,
            **numbers_of_repeat(self.numbers),
        )
        return repeat.model_copy(update={"findings": findings_of_repeat(repeat, self.numbers)})

    def add(self, row: RepeatRow, numbers: LaunchNumbers | None = None) -> None:
        """Take a launch, and write `repeat.json`. Raises `ResultError`."""
        self.rows.append(row)
        if row.status == "ok" and numbers is not None:
            self.numbers.append(numbers)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_model(self.folder / REPEAT_NAME, self.repeat)


@dataclass(frozen=True)
class RepeatedLaunch(SeriesLaunch[RepeatRow]):
    """One launch of a repeat.

    Attributes:
        case: its place among the cases.
        called_off: the user ended the repeat before it began.
    """

    case: int = 0
    called_off: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it, and with it the repeat."""
        return self.called_off or super().interrupted


def repeat_request(count: int | None = None, seed: int | None = None) -> RepeatRequest:
    """What is asked for, with what is not given filled in. Raises `UsageError`."""
    count = DEFAULT_COUNT if count is None else count
    if not 1 <= count <= MOST_LAUNCHES:
        raise UsageError(f"--repeat {count}: must be 1 to {MOST_LAUNCHES} launches")
    return RepeatRequest(count=count, seed=secrets.randbelow(2**32) if seed is None else seed)


def repeat_options(options: LaunchOptions, request: RepeatRequest) -> list[LaunchOptions]:
    """The options of each launch of a case, in folders of their own. Raises `UsageError`."""
    if options.explain:
        raise UsageError(
            "--explain explains one launch, and --repeat makes several; give --no-explain, and explain one of them "
            "with `perfharness launch --explain`"
        )
    return [
        options.model_copy(update={"output_dir": options.output_dir / LAUNCH_FOLDER.format(number)})
        for number in range(request.count)
    ]


def shuffled_rounds(cases: int, request: RepeatRequest) -> list[int]:
    """The case of each launch: every round has each case once, in an order of its own, drawn with the seed."""
    drawn = random.Random(request.seed)
    return [case for _ in range(request.count) for case in drawn.sample(range(cases), cases)]


def plan_repeats(
    cases: Sequence[LaunchOptions],
    request: RepeatRequest,
    commands: Sequence[Sequence[str]],
    plans: Sequence[Sequence[LaunchPlan]] | None = None,
) -> list[RepeatCase]:
    """The launches of several cases.

    Args:
        cases: each with an output folder of its own.
        commands: command lines of perfharness itself, one a case, for the manifests.
        plans: of each case, where they are made already.

    Raises:
        UsageError: options contradict each other or the machine, or two cases have one folder.
        LaunchError: what is needed is not there.
    """
    for one, other in combinations([case.output_dir.absolute() for case in cases], 2):
        if one == other or one in other.parents or other in one.parents:
            raise UsageError(f"{one} and {other} are folders of two cases; neither may be in the other")
    made = plans or [plan_launches(repeat_options(case, request)) for case in cases]
    repeats = [
        RepeatCase(case, list(each), list(command), request)
        for case, each, command in zip(cases, made, commands, strict=True)
    ]
    numbers = [0] * len(cases)
    order = []
    for case in shuffled_rounds(len(cases), request):
        folder = LAUNCH_FOLDER.format(numbers[case])
        order.append(folder if len(cases) == 1 else f"{cases[case].output_dir.name}/{folder}")
        numbers[case] += 1
    for repeat_case in repeats:
        repeat_case.order = order
    return repeats


def run_repeats(
    cases: Sequence[RepeatCase], observe: Observe = unobserved, say: Callable[[str], None] = lambda line: None
) -> Iterator[RepeatedLaunch]:
    """Launch all, one after the other, each when it is requested; `repeat.json` is written after each.

    A launch that fails is a row with the reason, and the others go on; an interrupt ends them.

    Args:
        say: called with a line where an earlier run is moved.

    Raises:
        LaunchError: another command writes to the folder of a case.
        ResultError: `repeat.json` cannot be written.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(series_folder(case.folder, folders_of(case.plans), say)) for case in cases]
        yield from _run_repeats(cases, observe)
    for case, folder in zip(cases, folders, strict=True):
        case.placed = folder.path


def _run_repeats(cases: Sequence[RepeatCase], observe: Observe) -> Iterator[RepeatedLaunch]:
    request = cases[0].request
    interrupted = False
    first_c: dict[str, int] = {}
    for place, number in enumerate(shuffled_rounds(len(cases), request)):
        case = cases[number]
        plan = case.plans[len(case.rows)]
        folder = plan.options.output_dir.name
        if interrupted:
            row = RepeatRow(folder=folder, place=place, status="not_run", reason=INTERRUPTED)
            launched, numbers = RepeatedLaunch(row, case=number), None
        else:
            launched, numbers = _launch_one(case, plan, place, number, observe, first_c)
        case.add(launched.row, numbers)
        interrupted = interrupted or launched.interrupted
        yield launched


def repeat_cases(
    cases: Sequence[LaunchOptions],
    *,
    count: int = DEFAULT_COUNT,
    seed: int | None = None,
    command: Sequence[str] | None = None,
    observe: Observe = unobserved,
) -> list[RepeatCase]:
    """Launch several cases again and again, in shuffled rounds; one `repeat.json` in the folder of each.

    Args:
        cases: what is compared, each with an output folder of its own.
        count: launches of each.
        seed: of the order; None: drawn, and stored.
        command: the command line of perfharness itself, for the manifests; None: one that does the same.
        observe: opens an observer of each launch.

    Raises:
        UsageError: as in `perfharness.launch`, of any of the launches, before the first.
        LaunchError: what is needed is not there.
        ResultError: `repeat.json` cannot be written.
    """
    request = repeat_request(count, seed)
    commands = [command_of(case, "--repeat", str(count)) if command is None else command for case in cases]
    repeats = plan_repeats(cases, request, commands)
    for _ in run_repeats(repeats, observe):
        pass
    return repeats


def repeat(
    script: str | Path,
    *script_arguments: str,
    count: int = DEFAULT_COUNT,
    config: str | Path | None = None,
    **settings: Any,
) -> RepeatCase:
    """Launch a script several times, one after the other; what `perfharness launch --repeat` does.

    Args:
        script, script_arguments, config, settings: as in `perfharness.launch`.
        count: of launches.

    Raises:
        UsageError, LaunchError, ResultError: as in `repeat_cases`.
    """
    options = launch_options(script, script_arguments, settings, config)
    (case,) = repeat_cases([options], count=count)
    return case


def update_repeat(folder: Path, summaries: Sequence[RunSummary]) -> Repeat | None:
    """`repeat.json` with the launches' new numbers, written; None where the folder has none.

    What the launches recorded stays. Raises `ResultError` where the file is damaged.
    """
    before = read_repeat(folder)
    if before is None:
        return None
    by_folder = {summary.folder: summary for summary in summaries}
    found = [by_folder.get(folder / row.folder) for row in before.measured]
    if any(summary is None for summary in found):
        return before
    numbers = [
        LaunchNumbers.of(row.folder, read_manifest(summary.folder), summary, is_only=before.asked.count == 1)
        for row, summary in zip(before.measured, found, strict=True)
        if summary is not None
    ]
    updated = before.model_copy(update=numbers_of_repeat(numbers))
    updated = updated.model_copy(update={"findings": findings_of_repeat(updated, numbers)})
    with suppress(ResultError):  # where nothing can be written, the analysis of the runs has reported it
        write_model(folder / REPEAT_NAME, updated)
    return updated


def _launch_one(
    case: RepeatCase, plan: LaunchPlan, place: int, number: int, observe: Observe, first_c: dict[str, int]
) -> tuple[RepeatedLaunch, LaunchNumbers | None]:
    folder = plan.options.output_dir.name
    waits: list[GpuWait] = []
    try:
        with observe(plan) as observer:
            with noting_interrupts() as interrupts:
                waits = _cool_down(plan, first_c, interrupts, observer)
            if interrupts:
                row = RepeatRow(folder=folder, place=place, status="not_run", reason=INTERRUPTED, waits=waits)
                return RepeatedLaunch(row, case=number, called_off=True), None
            result = run_plan(plan, case.command, observer)
    except PerfHarnessError as error:
        row = RepeatRow(folder=folder, place=place, status="failed", reason=str(error).splitlines()[0], waits=waits)
        return RepeatedLaunch(row, error=error, case=number), None
    numbers = LaunchNumbers.of(folder, result.manifest, result.summary, is_only=case.request.count == 1)
    row = _row(case, place, result, numbers).model_copy(update={"waits": waits})
    return RepeatedLaunch(row, result, case=number), numbers


def _cool_down(plan: LaunchPlan, first_c: dict[str, int], interrupts: Interrupts, observer: Observer) -> list[GpuWait]:
    """Wait between launches, unless each waits by itself (--cool-down)."""
    if plan.options.cool_down_c is not None:
        return []
    return as_cool_as_first(
        plan.gpus,
        first_c,
        limit_s=plan.options.cool_down_limit_s,
        interrupted=lambda: bool(interrupts),
        say=observer.stage,
    )


def _row(case: RepeatCase, place: int, result: LaunchResult, numbers: LaunchNumbers) -> RepeatRow:
    manifest = result.manifest
    bad = [process for process in manifest.processes if process.ended != "ok"]
    reason = None
    if bad:
        reason = why_it_failed(len(bad), len(manifest.processes), result.summary.findings)
    elif not numbers.stages:
        reason = NO_NUMBERS
    return RepeatRow(
        folder=result.folder.relative_to(case.folder.absolute()).as_posix(),
        place=place,
        status="ok" if reason is None else "failed",
        reason=reason,
        run_id=manifest.run_id,
        created=manifest.created,
        exit_codes=[process.exit_code for process in manifest.processes],
        findings=sorted({finding.code for finding in result.findings if finding.severity is not Severity.NOTE}),
    )
