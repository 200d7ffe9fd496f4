"""Launch a script: plan, run, analyse, and put the run in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from perfharness.errors import PerfHarnessError
from perfharness.model.environment import HISTORY, HISTORY_OFF
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import EXPLAIN_NAME, RunManifest
from perfharness_launcher.conditions import Condition
from perfharness_launcher.conditions import Run as MeasuredRun
from perfharness_launcher.interrupts import noting_interrupts
from perfharness_launcher.launch import FinishedRun, conditions_of, finishing
from perfharness_launcher.launch import launch as measure
from perfharness_launcher.machine import gather
from perfharness_launcher.options import LaunchOptions, command_of, launch_options
from perfharness_launcher.plan import LaunchPlan, explaining_pass, make_plan
from perfharness_launcher.staging import new_run_id, staging
from perfharness_launcher.supervise import Observer

if TYPE_CHECKING:
    from perfharness.cluster.part import NodePart
    from perfharness.runs.files.run_folder import RunSummary
    from perfharness.runs.run import Run

ANALYSIS = "perfharness.runs.files.run_folder"
Observe = Callable[[LaunchPlan], AbstractContextManager[Observer]]
"""Open an observer for a launch of a series."""


def unobserved(_plan: LaunchPlan) -> AbstractContextManager[Observer]:
    """Open an observer that ignores everything."""
    return nullcontext(Observer())


@dataclass(frozen=True, repr=False)
class LaunchResult:
    """A launched and analysed run.

    Attributes:
        folder: the output folder, or a folder in it next to an earlier run with numbers (`is_aside`).
        history_findings: why the run is not in the history.
        handed_to: location of the results, if on another node or the driver in Ray.
        was_interrupted: whether Ctrl-C or a signal interrupted the measurement.
    """

    manifest: RunManifest
    folder: Path
    summary: RunSummary
    is_aside: bool = False
    history_findings: Sequence[Finding] = ()
    handed_to: str | None = None
    was_interrupted: bool = False

    def __repr__(self) -> str:
        return f"<LaunchResult {self.folder}: {len(self.manifest.measured_processes)} measured processes>"

    @property
    def all_processes_well(self) -> bool:
        """Whether all processes ended with 0 and left traces, if traced."""
        return self.manifest.all_processes_well

    @property
    def findings(self) -> list[Finding]:
        """All findings, including those about the folder and the history."""
        found = [*self.summary.findings, *self.history_findings]
        if self.summary.not_written is not None:
            hint = "Free some space, or choose another -o."
            found.append(Finding("results-not-written", Severity.ERROR, self.summary.not_written, hint))
        if self.is_aside:
            message = f"Kept the previous results in {self.folder.parent}; this incomplete run is in {self.folder}."
            found.append(Finding("earlier-run-kept", Severity.ERROR, message))
        return found

    def open(self) -> Run:
        """Open the run with its tables, as `open_run`."""
        from perfharness.runs.run import open_run

        return open_run(self.folder)


def launch(
    script: str | Path,
    *script_arguments: str,
    config: str | Path | None = None,
    observer: Observer | None = None,
    **settings: Any,
) -> LaunchResult:
    """Trace a script in N processes on M GPUs and analyse it, as `perfharness launch` does.

    Writes a run folder. Ctrl-C ends the processes; their results are analysed and returned.

    Args:
        script: a `.py` file, or a program.
        script_arguments: arguments of the script.
        config: TOML file with a `[launch]` table (default: `perfharness.toml` or `pyproject.toml` next to the script).
        observer: notified of the progress.
        settings: fields of `LaunchOptions`, such as `num_processes=2, gpus="0,1", output_dir="out"`.

    Raises:
        UsageError: a setting is unknown, has a wrong type, or conflicts with another or the machine.
        LaunchError: no process could be started; the output folder is unchanged.
    """
    options = launch_options(script, script_arguments, settings, config)
    if options.ray:
        return launch_on_ray(options, command_of(options), observer or Observer())
    (plan,) = plan_launches([options])
    return run_plan(plan, command_of(options), observer or Observer())


def launch_on_ray(options: LaunchOptions, command: Sequence[str], observer: Observer) -> LaunchResult:
    """Launch on nodes of a Ray cluster, and analyse their results here. Raises as `launch`."""
    from perfharness.cluster.ray import connected, reserved  # slow to import

    with (
        connected(options),
        noting_interrupts() as interrupts,
        staging(options.output_dir.absolute(), new_run_id(), observer.stage) as stage,
    ):
        try:
            with reserved(options, observer, interrupts) as nodes:
                nodes.plans()
                manifest = nodes.measure(command, stage.path)
        except BaseException:
            stage.discard()
            raise
        with finishing(manifest, stage, interrupts, observer) as run:
            run.replace_manifest(manifest)
            summary = _analyze(run.folder, manifest, observer)
            place = run.put_in_place()
    return _result(run, summary, options, place)


def plans_on_ray(options: LaunchOptions, observer: Observer) -> list[str]:
    """Plans of the nodes of a Ray cluster, as text. Raises as `launch`."""
    from perfharness.cluster.ray import connected, reserved

    with connected(options), noting_interrupts() as interrupts, reserved(options, observer, interrupts) as nodes:
        return nodes.plans()


def plan_launches(options: Sequence[LaunchOptions]) -> list[LaunchPlan]:
    """Plan the launches of a series for the current machine. Raises `UsageError`, `LaunchError`."""
    if len(options) > 1:  # the import must not disturb only the first launch
        import_module(ANALYSIS)
    facts = gather(options[0], os.environ)
    return [make_plan(each, facts) for each in options]


def run_plan(
    plan: LaunchPlan,
    command: Sequence[str],
    observer: Observer,
    conditions: Sequence[Condition] = (),
    complete: Callable[[FinishedRun], None] = lambda run: None,
) -> LaunchResult:
    """Run a plan and analyse its results. Raises `LaunchError`.

    Args:
        command: command line of perfharness, for the manifest.
        conditions: conditions besides those of the options.
        complete: called with the analysed run before it is in place; may write more results into its folder.
    """
    summary, is_on_ray = None, bool(plan.options.ray)
    with _taking_part(plan, observer) as part:
        all_conditions = [*conditions_of(plan, observer.stage), *conditions, loading_meanwhile]
        if part is not None:
            options = plan.options.model_copy(update={"output_dir": part.output_dir})
            plan = replace(plan, options=options, node=part.member.record())
            all_conditions.append(part.member.condition)
        may_go = None if part is None else part.member.may_go
        with measure(plan, command, observer, conditions=all_conditions, may_go=may_go) as run:
            if plan.options.explain:
                run.note_explained(_explain(plan, run, command, observer))
            if part is not None:
                part.complete(run)
            if not is_on_ray and (part is None or part.meeting is not None):
                summary = _analyze(run.folder, run.manifest, observer)
                complete(run)
            place = run.put_in_place()
        if part is not None and part.meeting is None:
            return _handed_over(part, run, place, observer)
    if summary is None:  # the driver in Ray analyses the run
        return _left_to(str(plan.options.ray), run, place)
    return _result(run, summary, plan.options, place)


def _result(run: FinishedRun, summary: RunSummary, options: LaunchOptions, place: Path) -> LaunchResult:
    """Add a run that is in place to the history, and return its result."""
    is_aside = place != options.output_dir.absolute()
    result = LaunchResult(run.manifest, place, summary, is_aside, was_interrupted=run.was_interrupted)
    if not options.history or os.environ.get(HISTORY) == HISTORY_OFF:
        return result
    from perfharness.runs.history import launch_entry, record  # slow to import

    return replace(result, history_findings=record(lambda: launch_entry(place)))


def _taking_part(plan: LaunchPlan, observer: Observer) -> AbstractContextManager[NodePart | None]:
    if not plan.options.nodes:
        return nullcontext()
    from perfharness.cluster.part import taking_part  # rarely needed

    return taking_part(plan.options, os.environ, observer.message)


def _analyze(folder: Path, manifest: RunManifest, observer: Observer) -> RunSummary:
    observer.stage("reading the traces")
    from perfharness.runs.files.run_folder import analyze_run

    return analyze_run(folder, manifest)


def _handed_over(part: NodePart, run: FinishedRun, place: Path, observer: Observer) -> LaunchResult:
    """Send the results of this node to node 0, or analyse and keep them if node 0 is gone."""
    where = part.member.hand_over(place, run.manifest.run_id)
    if where is not None:
        return _left_to(where, run, place)
    message = f"Node 0 is gone ({part.member.lost}); only the results of this node are in {place}."
    hint = f"Join them with other nodes: perfharness analyze NODE_0 {place} -o OUT"
    found = Finding("node-0-lost", Severity.ERROR, message, hint)
    manifest = run.manifest.model_copy(update={"findings": [*run.manifest.findings, found]})
    summary = _analyze(place, manifest, observer)
    return LaunchResult(manifest, place, summary, was_interrupted=run.was_interrupted)


def _left_to(where: str, run: FinishedRun, place: Path) -> LaunchResult:
    """Result of a run that is analysed and reported elsewhere."""
    from perfharness.runs.files.run_folder import RunSummary

    summary = RunSummary(place, {}, {}, [])
    return LaunchResult(run.manifest, place, summary, was_interrupted=run.was_interrupted, handed_to=where)


@contextmanager
def loading_meanwhile(run: MeasuredRun) -> Iterator[None]:
    """Import the analysis while processes start, because it takes half a second."""

    def load() -> None:
        os.nice(10)  # on Linux, only of this thread
        import_module(ANALYSIS)

    thread = Thread(target=load, name="perfharness-loading", daemon=True)
    run.started.append(lambda _: None if thread.ident else thread.start())
    yield
    if thread.ident:
        thread.join()


def _explain(plan: LaunchPlan, run: FinishedRun, command: Sequence[str], observer: Observer) -> list[Finding]:
    """Run the profiling pass in the folder of a measured run; report if it is missing."""
    from perfharness.runs.explain import explaining_pass_failed

    bad = [record.folder for record in run.manifest.processes if record.ended != "ok"]
    if bad or run.was_interrupted:
        why = f"{', '.join(bad)} failed in the measured pass" if bad else "the launch was interrupted"
        message = f"Profiling pass skipped: {why}."
        return [Finding("profiling-pass-missing", Severity.WARNING, message)]
    observer.stage("profiling pass: running the script again")
    longest_s = max((one.duration_s for one in run.manifest.processes if one.duration_s), default=None)
    second, folder = explaining_pass(plan, longest_s), run.folder / EXPLAIN_NAME
    try:
        with measure(
            second, command, observer, conditions=conditions_of(second, observer.stage), written_to=folder
        ) as explaining:
            explaining.put_in_place()
    except PerfHarnessError as error:
        with suppress(OSError):
            folder.rmdir()  # if nothing was measured
        reason = str(error).replace(str(folder), str(second.options.output_dir.absolute()))
        return [explaining_pass_failed(reason)]
    return []
