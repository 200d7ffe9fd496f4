"""A plan -> a measured run in its staging folder: start, watch, collect. Whoever launches analyses and places it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from perfharness.errors import LaunchError, LaunchInterruptedError, PerfHarnessError
from perfharness.files import reason_of
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import FindingRecord, ProcessRecord, RunManifest
from perfharness_launcher.children import rank_findings, unfollowed, with_measured
from perfharness_launcher.clocks import maximized_clocks, noted_clocks
from perfharness_launcher.collect import collect
from perfharness_launcher.conditions import Condition, Run, StartedProcess
from perfharness_launcher.contention import contention_findings
from perfharness_launcher.cool_down import cooled_down
from perfharness_launcher.gpu_users import other_users
from perfharness_launcher.interrupts import Interrupts, noting_interrupts
from perfharness_launcher.machine_load import machine_load
from perfharness_launcher.nsys import GpuSampling, find_gpu_metrics, gpu_metrics_hz
from perfharness_launcher.outcome import (
    annotation_findings,
    planned_record,
    process_findings,
    process_record,
)
from perfharness_launcher.plan import LaunchPlan
from perfharness_launcher.process import planned_command
from perfharness_launcher.staging import Staging, new_run_id, staging, unfinished_runs
from perfharness_launcher.supervise import Observer, Patience, Supervisor
from perfharness_launcher.telemetry import sampled

ALMOST_FULL_BYTES = 1 << 20
"""With less space than this at the end of a run, something was perhaps not written."""

LAUNCHED_WITH = {
    "script", "script_arguments", "module", "gpus_per_process", "settings", "warmup_batches", "domain",
    "batch_pattern", "cpu_bind", "capture_batches", "parallel",
}  # fmt: skip
"""Options that the manifest has under their own names."""


@dataclass
class FinishedRun:
    """A measured run, complete but for its results, in a staging folder.

    Attributes:
        folder: its staging folder.
        placed: its final folder; None: not moved yet.
    """

    manifest: RunManifest
    folder: Path
    _stage: Staging
    _interrupts: Interrupts
    placed: Path | None = None

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C or a signal came in while it was measured."""
        return bool(self._interrupts)

    def add_findings(self, findings: Sequence[Finding]) -> None:
        """Add to the findings of the manifest. Raises `OSError`."""
        records = [FindingRecord(**finding.to_json()) for finding in findings]
        self._change_manifest(findings=[*self.manifest.findings, *records])

    def mark_explained(self) -> None:
        """Note in the manifest that a profiling pass is in the folder. Raises `OSError`."""
        self._change_manifest(explained=True)

    def _change_manifest(self, **values: Any) -> None:
        self.manifest = self.manifest.model_copy(update=values)
        self._stage.write_manifest(self.manifest)

    def put_in_place(self) -> Path:
        """Put it into the output folder, or next to an earlier run there that has numbers where this one has none.

        Returns:
            The folder that it is in now.

        Raises:
            LaunchError: it could not be moved.
        """
        self._interrupts.raises = False
        self.placed = self._stage.finish()
        return self.placed


def conditions_of(plan: LaunchPlan, say: Callable[[str], None]) -> list[Condition]:
    """The conditions that the options ask for, in the order in which they are entered.

    Args:
        say: called with a line for what a condition waits for before the run begins.
    """
    options = plan.options
    conditions: list[Condition] = [other_users(required=options.require_exclusive), noted_clocks]
    if options.cool_down_c is not None:  # before the clocks are locked, for an idle GPU with locked clocks stays warmer
        conditions.append(cooled_down(options.cool_down_c, options.cool_down_limit_s, say))
    if options.maximize_clocks:  # before the sampler, so that the idle power is that of the clocks of the run
        conditions.append(maximized_clocks)
    if options.telemetry:
        conditions.append(sampled(options.measure_idle_s))
    return [*conditions, machine_load]


@contextmanager
def launch(
    plan: LaunchPlan,
    command: Sequence[str],
    observer: Observer,
    *,
    conditions: Sequence[Condition] = (),
    patience: Patience | None = None,
    written_to: Path | None = None,
) -> Iterator[FinishedRun]:
    """Run a plan; the `with` block reads the run, writes its results and puts it in place.

    While the block runs, the output folder is locked, and an interrupt raises `KeyboardInterrupt`. Whatever the block
    raises, what was measured is kept: in place of the earlier run, or next to it where only that has numbers.

    Args:
        command: the command line of perfharness itself, for the manifest.
        conditions: of the processes, in the order in which they are entered.
        written_to: the output folder as long as the run that this one is a part of is not in place; None: that of the
            options.

    Raises:
        LaunchError: no process could be started; the output folder is as it was.
        PerfHarnessError: a condition called the launch off; the same.
    """
    output_dir = written_to or plan.options.output_dir.absolute()
    run_id = new_run_id()
    plan = _with_gpu_metrics(plan)
    with noting_interrupts() as interrupts, staging(output_dir, run_id, observer.stage) as stage:
        manifest = _measure(plan, command, run_id, stage, interrupts, observer, conditions, patience or Patience())
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


def _with_gpu_metrics(plan: LaunchPlan) -> LaunchPlan:
    """The plan of a profiling pass with nsys's counters of the GPUs, or with a finding why there are none."""
    if not plan.explaining or plan.nsys is None or not plan.gpus:
        return plan
    if len({gpu.uuid for spec in plan.processes for gpu in spec.gpus}) < sum(len(spec.gpus) for spec in plan.processes):
        sampling = GpuSampling(None, "several processes share a GPU, and nsys samples it for one alone")
    elif any(gpu.mig for gpu in plan.gpus):
        sampling = GpuSampling(None, "the GPU is divided (MIG)")
    else:
        sampling = find_gpu_metrics(plan.nsys.install, {**os.environ, **plan.processes[0].environment})
    if sampling.gpus is not None:
        hz = gpu_metrics_hz(plan.measured_s)
        return replace(plan, nsys=replace(plan.nsys, gpu_metrics=sampling.gpus, gpu_metrics_hz=hz))
    finding = Finding(
        "gpu-metrics-unavailable",
        Severity.NOTE,
        f"nsys does not sample the GPU's counters in the profiling pass: {sampling.reason}.",
        sampling.hint,
    )
    return replace(plan, findings=(*plan.findings, finding))


def _measure(
    plan: LaunchPlan,
    command: Sequence[str],
    run_id: str,
    stage: Staging,
    interrupts: Interrupts,
    observer: Observer,
    conditions: Sequence[Condition],
    patience: Patience,
) -> RunManifest:
    """Run the processes, and write the complete manifest."""
    output_dir = plan.options.output_dir.absolute()
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    run = Run(stage.path, run_id, plan.gpus, lambda: bool(interrupts))
    supervisor = Supervisor(plan.group, run, interrupts, observer, patience)
    unfinished = _unfinished_findings(stage.output_dir, stage.path)
    try:
        run.started.append(_keep_manifest(stage, make_manifest(plan, command, run_id, created)))
        run.enter(conditions)
        endings = supervisor.watch()
        observer.stage("exporting the traces" if plan.nsys else "looking for the traces")
        nsys = None if plan.nsys is None else plan.nsys.install
        folders = {ending.folder: ending.pid for ending in endings}
        for folder in folders:  # a script may have removed its own, and that of the run
            folder.mkdir(parents=True, exist_ok=True)
        collected = collect(nsys, folders, interrupts)
        records = [
            with_measured(
                stage.path,
                process_record(ending, found, planned_command(ending.spec, plan.nsys, output_dir)),
                share_trace=plan.nsys is not None,
            )
            for ending, found in zip(endings, collected, strict=True)
        ]
        records = [record.model_copy(update=run.of_processes.get(record.folder, {})) for record in records]
        findings = [*plan.findings, *unfinished, *_leftovers(supervisor.leftovers)]
        findings += run.findings
        findings += contention_findings(plan, records)
        for ending, record, found in zip(endings, records, collected, strict=True):
            findings += found.findings
            options = plan.options
            findings += rank_findings(record)
            findings += unfollowed(ending.folder, record.folder, plan.tracer.kind)
            findings += process_findings(ending, record, plan.tracer, options.timeout_s, options.capture_batches)
            if plan.annotations is not None:
                findings += annotation_findings(ending.folder, record, plan.annotations)
        findings += supervisor.barrier.findings() if supervisor.barrier is not None else ()
        findings += _full_disk(stage.path)
        if not supervisor.has_measured:
            _raise_not_started(findings)
        manifest = make_manifest(plan, command, run_id, created, records, findings).model_copy(
            update={
                "companions": run.records,
                "start_barrier": supervisor.barrier.record() if supervisor.barrier is not None else None,
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
            raise kind(_with_findings(error, run.findings)) from error
        raise
    return manifest


def _keep_manifest(stage: Staging, manifest: RunManifest) -> Callable[[StartedProcess], None]:
    """Write the manifest as the run begins, so that one whose launcher is killed can be read; returns what adds the pid
    and start of a process to it.
    """
    records = {record.folder: record for record in manifest.processes}

    def add(process: StartedProcess) -> None:
        started = {"pid": process.pid, "start_unix_ns": process.start_unix_ns}
        records[process.folder] = records[process.folder].model_copy(update=started)
        stage.write_manifest(manifest.model_copy(update={"processes": list(records.values())}))

    try:
        stage.write_manifest(manifest)
    except OSError as error:
        raise LaunchError(f"-o {stage.output_dir} cannot be written to: {reason_of(error)}") from error
    return add


def _with_location(error: BaseException, place: Path, observer: Observer) -> BaseException:
    """The error, with the folder of what was measured."""
    where = f"what was measured lies in {place}; `perfharness analyze {place}` reads it"
    if isinstance(error, KeyboardInterrupt):
        return LaunchInterruptedError(f"interrupted before all was read; {where}")
    if isinstance(error, OSError):
        return LaunchError(f"the run could not be written whole ({reason_of(error)}); {where}")
    if isinstance(error, PerfHarnessError):
        return type(error)(f"{error}; its logs, and what was measured, are in {place}")
    observer.stage(where)
    return error


def make_manifest(
    plan: LaunchPlan,
    command: Sequence[str],
    run_id: str,
    created: str,
    records: Sequence[ProcessRecord] | None = None,
    findings: Sequence[Finding] = (),
) -> RunManifest:
    """The manifest of a run; without records, as it begins: the ends of its processes are not known."""
    options = plan.options
    run_dir = options.output_dir.absolute()
    planned = (planned_record(spec, planned_command(spec, plan.nsys, run_dir)) for spec in plan.processes)
    return RunManifest(
        run_id=run_id,
        complete=records is not None,
        created=created,
        command=list(command),
        **options.model_dump(include=LAUNCHED_WITH),
        num_processes_per_gpu=options.num_processes,
        explaining=plan.explaining,
        working_dir=str(Path.cwd()),
        placement_reason=plan.placement_reason,
        tracer=plan.tracer,
        environment=plan.environment,
        source=plan.source,
        processes=list(planned if records is None else records),
        findings=[FindingRecord(**finding.to_json()) for finding in findings],
    )


def _raise_not_started(findings: Sequence[Finding]) -> NoReturn:
    reasons = [f"{finding.process}: {finding.message}" for finding in findings if finding.code.startswith("process-")]
    raise LaunchError("no process was started, so the results of the last run stay as they are\n" + "\n".join(reasons))


def _with_findings(error: PerfHarnessError, findings: Sequence[Finding]) -> str:
    """Its text; there is no manifest to take what the conditions found, and it may matter more than the error."""
    return "\n".join([str(error), *(f"{finding.message}; {finding.hint}" for finding in findings)])


def _full_disk(folder: Path) -> list[Finding]:
    """A tracer that cannot write any more may not be able to report it."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes >= ALMOST_FULL_BYTES:
        return []
    return [
        Finding(
            "disk-full",
            Severity.WARNING,
            f"The disk of {folder.parent} has {free_bytes >> 10} KiB left, so what was measured may not be whole",
            "free some space, or name a folder on another disk with -o",
        )
    ]


def _leftovers(command_lines: Sequence[str]) -> list[Finding]:
    text = f"{len(command_lines)} processes were still running at the end and were ended: {'; '.join(command_lines)}"
    hint = "a pipeline should wait for the processes that it starts"
    return [Finding("leftover-processes", Severity.WARNING, text, hint)] if command_lines else []


def _unfinished_findings(output_dir: Path, own: Path) -> list[Finding]:
    return [
        Finding(
            "unfinished-run",
            Severity.WARNING,
            f"{path} holds a run whose launcher was killed",
            f"`perfharness analyze {path}` reads what it measured, `rm -r {path}` removes it",
        )
        for path in unfinished_runs(output_dir)
        if path != own
    ]
