"""Run a plan in a staging folder: start, watch, collect. The caller analyses the run and puts it in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from perfharness.errors import LaunchError, LaunchInterruptedError, PerfHarnessError
from perfharness.files import reason_of
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness_launcher.barrier import MayGo
from perfharness_launcher.clocks import maximized_clocks, noted_clocks
from perfharness_launcher.collect import collect
from perfharness_launcher.conditions import Condition, Run, cooled_down, machine_load, other_users
from perfharness_launcher.interrupts import Interrupts, noting_interrupts
from perfharness_launcher.nsys import find_gpu_metrics
from perfharness_launcher.outcome import (
    annotation_findings,
    contention_findings,
    planned_record,
    process_findings,
    process_record,
)
from perfharness_launcher.plan import LaunchPlan
from perfharness_launcher.process import RunningProcess, planned_command
from perfharness_launcher.staging import Staging, new_run_id, staging, unfinished_runs
from perfharness_launcher.supervise import Observer, Supervisor

ALMOST_FULL_BYTES = 1 << 20
"""With less free space per process at the end, data may be lost: the embedded tracer allocates this much."""

LAUNCHED_WITH = {
    "script", "script_arguments", "module", "gpus_per_process", "settings", "warmup_batches", "domain",
    "batch_pattern", "cpu_bind", "capture_batches", "parallel",
}  # fmt: skip
"""Options with the same name in the manifest."""


@dataclass
class FinishedRun:
    """A measured run without its results, in the staging folder `folder`, then in the final one (`placed`)."""

    manifest: RunManifest
    folder: Path
    _stage: Staging
    _interrupts: Interrupts
    placed: Path | None = None

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C or a signal interrupted the measurement."""
        return bool(self._interrupts)

    def note_explained(self, findings: Sequence[Finding]) -> None:
        """Note in the manifest that the folder has a profiling pass, or why not. Raises `OSError`."""
        found = [*self.manifest.findings, *findings]
        self.replace_manifest(self.manifest.model_copy(update={"explained": not findings, "findings": found}))

    def replace_manifest(self, manifest: RunManifest) -> None:
        """Write a new manifest. Raises `OSError`."""
        self.manifest = manifest
        self._stage.write_manifest(self.manifest)

    def put_in_place(self) -> Path:
        """Move the run into the output folder, or next to an earlier run if only that has numbers; return its folder.

        Raises `LaunchError` if it cannot be moved.
        """
        self._interrupts.raises = False
        self.placed = self._stage.finish()
        return self.placed


def conditions_of(plan: LaunchPlan, say: Callable[[str], None]) -> list[Condition]:
    """Conditions of the options, in the order to enter them; `say` gets a line when one waits."""
    options = plan.options
    conditions: list[Condition] = [partial(other_users, required=options.require_exclusive)]
    if (address := options.metrics) is not None:
        from perfharness.metrics.exposed_run import serving  # imports NumPy

        conditions.append(lambda run: serving(address, run.folder))
    if not plan.explaining:  # clocks are still high after the measured pass
        conditions.append(noted_clocks)
    if options.cool_down_c is not None:  # before -m, which keeps an idle GPU warm
        limit_s = options.cool_down_limit_s
        conditions.append(partial(cooled_down, target_c=options.cool_down_c, limit_s=limit_s, say=say))
    if options.maximize_clocks:  # before the sampler, which measures idle power
        conditions.append(maximized_clocks)
    if options.telemetry:
        from perfharness_launcher.telemetry import sampled  # imports NumPy

        conditions.append(partial(sampled, idle_s=options.measure_idle_s))
    return [*conditions, machine_load]


@contextmanager
def launch(
    plan: LaunchPlan,
    command: Sequence[str],
    observer: Observer,
    *,
    conditions: Sequence[Condition] = (),
    written_to: Path | None = None,
    may_go: MayGo | None = None,
) -> Iterator[FinishedRun]:
    """Run a plan; the `with` block reads the run, writes its results and puts it in place.

    While the block runs, the output folder is locked, and an interrupt raises `KeyboardInterrupt`. After an error in
    the block, the run is kept: in place of an earlier run, or next to it if only that has numbers.

    Args:
        command: command line of perfharness, for the manifest.
        conditions: entered in this order.
        written_to: current output folder, if inside an unfinished run (default: that of the options).
        may_go: decides when processes pass the start barrier (default: when all have arrived).

    Raises:
        LaunchError: no process could be started; the output folder is unchanged.
        PerfHarnessError: a condition cancelled the launch; the output folder is unchanged.
    """
    output_dir = written_to or plan.options.output_dir.absolute()
    plan = with_gpu_metrics(plan)
    with noting_interrupts() as interrupts, staging(output_dir, new_run_id(), observer.stage) as stage:
        manifest = _measure(plan, command, stage, interrupts, observer, conditions, may_go)
        with finishing(manifest, stage, interrupts, observer) as run:
            yield run


@contextmanager
def finishing(
    manifest: RunManifest, stage: Staging, interrupts: Interrupts, observer: Observer
) -> Iterator[FinishedRun]:
    """Yield a measured run, and put it in place unless the `with` block did."""
    run = FinishedRun(manifest, stage.path, stage, interrupts)
    interrupts.raises = True
    try:
        yield run
    except BaseException as error:
        interrupts.raises = False
        if run.placed is not None:
            raise
        raise _with_location(error, stage.finish(), observer) from error
    if run.placed is None:
        run.put_in_place()


def with_gpu_metrics(plan: LaunchPlan) -> LaunchPlan:
    """Add nsys's GPU counters to a profiling pass, or a finding why they are unavailable."""
    if not plan.explaining or plan.nsys is None or not plan.gpus:
        return plan
    used = [gpu.uuid for spec in plan.processes for gpu in spec.gpus]
    try:
        if len(set(used)) < len(used):
            raise LaunchError("several processes share a GPU")
        if any(gpu.mig for gpu in plan.gpus):
            raise LaunchError("the GPU is in MIG mode")
        environ = {**os.environ, **plan.processes[0].environment}
        found = find_gpu_metrics(plan.nsys.install, environ, plan.measured_s)
    except LaunchError as error:
        message = f"The profiling pass has no GPU counters: {error}."
        finding = Finding("gpu-metrics-unavailable", Severity.NOTE, message)
        return replace(plan, findings=(*plan.findings, finding))
    return replace(plan, nsys=replace(plan.nsys, gpu_metrics=found))


def _measure(
    plan: LaunchPlan,
    command: Sequence[str],
    stage: Staging,
    interrupts: Interrupts,
    observer: Observer,
    conditions: Sequence[Condition],
    may_go: MayGo | None,
) -> RunManifest:
    """Run the processes, and write the complete manifest."""
    run = Run(stage.path, stage.run_id, plan.gpus, lambda: bool(interrupts))
    limits = (plan.options.timeout_s, plan.options.barrier_timeout_s if plan.options.barrier else None)
    supervisor = Supervisor(plan.processes, run, interrupts, observer, plan.nsys, *limits, may_go)
    planned = _manifest(plan, command, stage.run_id)
    unfinished = [path for path in unfinished_runs(stage.output_dir) if path != stage.path]
    try:
        run.started.append(_keep_manifest(stage, planned))
        run.enter(conditions)
        endings = supervisor.watch()
        from perfharness_launcher.children import rank_findings, unfollowed, with_measured  # slow to load

        if plan.nsys is not None:
            observer.stage("exporting the traces")
        for ending in endings:  # a script may have removed its folder
            ending.folder.mkdir(parents=True, exist_ok=True)
        install = None if plan.nsys is None else plan.nsys.install
        collected = collect(install, {ending.folder: ending.pid for ending in endings}, interrupts)
        records, of_processes = [], list[Finding]()
        for ending, found, before in zip(endings, collected, planned.processes, strict=True):
            record = process_record(ending, before.command)
            record = with_measured(stage.path, record, share_trace=plan.nsys is not None)
            records.append(record.model_copy(update=run.of_processes.get(record.folder, {})))
            of_processes += [*found, *rank_findings(record)]
            of_processes += unfollowed(ending.folder, record.folder, plan.tracer.kind)
            of_processes += process_findings(ending, record, plan)
            if plan.facts.annotations is not None:
                of_processes += annotation_findings(ending.folder, record, plan.facts.annotations)
        barrier = supervisor.barrier
        findings = [*plan.findings, *_findings_of_run(stage, len(records), unfinished, supervisor.leftovers)]
        findings += run.findings
        findings += [*contention_findings(plan, records), *of_processes]
        findings += barrier.findings() if barrier is not None else ()
        if not supervisor.has_measured:
            reasons = [f"{one.process}: {one.message}" for one in findings if one.code.startswith("process-")]
            raise LaunchError("\n".join(["no process was started; earlier results are unchanged", *reasons]))
        manifest = planned.model_copy(
            update={
                "complete": True,
                "processes": records,
                "findings": findings,
                "companions": run.records,
                "start_barrier": barrier.record() if barrier is not None else None,
            }
        )
        stage.write_manifest(manifest)
    except BaseException as error:
        run.leave()
        if supervisor.has_measured:
            raise _with_location(error, stage.finish(), observer) from error
        stage.discard()
        if isinstance(error, PerfHarnessError) and (run.findings or interrupts):
            kind = LaunchInterruptedError if interrupts else type(error)
            # no manifest will hold the findings of the conditions, which may be the cause
            lines = [str(error), *(f"{finding.message} {finding.hint}" for finding in run.findings)]
            raise kind("\n".join(lines)) from error
        raise
    return manifest


def _keep_manifest(stage: Staging, manifest: RunManifest) -> Callable[[RunningProcess], None]:
    """Write the first manifest; return a callback that adds pid and start of a process."""
    records = {record.folder: record for record in manifest.processes}

    def add(process: RunningProcess) -> None:
        started = {"pid": process.pid, "start_unix_ns": process.start_unix_ns}
        folder = process.spec.folder
        records[folder] = records[folder].model_copy(update=started)
        stage.write_manifest(manifest.model_copy(update={"processes": list(records.values())}))

    try:
        stage.write_manifest(manifest)
    except OSError as error:
        raise LaunchError(f"-o {stage.output_dir} cannot be written to: {reason_of(error)}") from error
    return add


def _with_location(error: BaseException, place: Path, observer: Observer) -> BaseException:
    where = f"its files are in {place}"
    if isinstance(error, KeyboardInterrupt):
        return LaunchInterruptedError(f"interrupted while reading; `perfharness analyze {place}` reads the rest")
    if isinstance(error, OSError):
        return LaunchError(f"the run could not be written completely ({reason_of(error)}); {where}")
    if isinstance(error, PerfHarnessError):
        return type(error)(f"{error}; {where}")
    observer.stage(where)
    return error


def _manifest(plan: LaunchPlan, command: Sequence[str], run_id: str) -> RunManifest:
    options = plan.options
    run_dir = options.output_dir.absolute()
    processes = [planned_record(spec, planned_command(spec, plan.nsys, run_dir)) for spec in plan.processes]
    return RunManifest(
        run_id=run_id,
        complete=False,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        container_start_unix_ns=plan.facts.container_start_unix_ns,
        command=list(command),
        **options.model_dump(include=LAUNCHED_WITH),
        num_processes_per_gpu=options.num_processes,
        explaining=plan.explaining,
        working_dir=str(Path.cwd()),
        placement_reason=plan.placement_reason,
        tracer=plan.tracer,
        environment=plan.facts.environment,
        source=plan.facts.source,
        processes=processes,
        node=plan.node,
    )


def _findings_of_run(
    stage: Staging, processes: int, unfinished: Sequence[Path], leftovers: Sequence[str]
) -> Iterator[Finding]:
    for path in unfinished:
        hint = f"`perfharness analyze {path}` reads it, `rm -r {path}` removes it."
        yield Finding("run-cut-off", Severity.WARNING, f"{path} is a run whose launcher was killed.", hint)
    if leftovers:
        message = f"Ended {len(leftovers)} processes that still ran at the end: {'; '.join(leftovers)}"
        hint = "Let the pipeline wait for the processes that it starts."
        yield Finding("leftover-processes", Severity.WARNING, message, hint)
    # a tracer that cannot write may be unable to report it
    free_bytes = shutil.disk_usage(stage.path).free
    if free_bytes < (1 + processes) * ALMOST_FULL_BYTES:
        message = f"The disk of {stage.output_dir} has {free_bytes >> 10} KiB left; the run may be incomplete."
        hint = "Free some space, or use -o with a folder on another disk."
        yield Finding("disk-full", Severity.WARNING, message, hint)
