"""Record the next batches of running processes as a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from perfharness.distribution import VERSION
from perfharness.errors import LaunchError, NothingRecordedError, UsageError
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import JOURNAL_NAME
from perfharness.model.manifest import GpuRecord, RunManifest, TracerRecord
from perfharness.runs.files.run_folder import analyze_run
from perfharness.runs.launch import LaunchResult
from perfharness.telemetry.processes import FollowedProcess
from perfharness_launcher.children import with_measured
from perfharness_launcher.collect import collect, trace_in
from perfharness_launcher.conditions import Condition, Run, machine_load, users_of
from perfharness_launcher.interrupts import Interrupts, noting_interrupts
from perfharness_launcher.machine import MachineFacts, gather
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.program import read_python_command
from perfharness_launcher.staging import Staging, new_run_id, staging
from perfharness_launcher.windows import Progress, Recordable, Target, find_targets, hang_up, wait


def record(
    target: int | str | Path,
    *,
    batches: int = 50,
    output_dir: str | Path = "win",
    timeout_s: float = 60.0,
    telemetry: bool = True,
    command: Sequence[str] = (),
    progress: Progress = lambda done, wanted: None,
    say: Callable[[str], None] = lambda line: None,
) -> LaunchResult:
    """Record a window of running processes, as `perfharness record` does.

    Args:
        target: a pid (including its children), or the output folder of a running launch.
        batches: number of batches per process.
        output_dir: folder of the run.
        timeout_s: longest time without a batch.
        telemetry: whether to sample GPUs, host and processes.
        command: command line of perfharness, for the manifest.
        progress: called with the numbers of ended and wanted batches.
        say: called with a line about each step.

    Raises:
        UsageError: no process can be recorded, or a setting is wrong.
        NothingRecordedError: no batch ran; the output folder is unchanged.
        LaunchError: a process is being recorded already, or cannot write to the folder.
    """
    if batches < 1 or not timeout_s > 0:
        raise UsageError(f"batches is {batches}, timeout_s is {timeout_s:g}; both must be more than 0.")
    targets = find_targets(target if isinstance(target, int) else Path(target))
    processes = [process for one in targets for process in one.processes]
    folder = Path(output_dir).absolute()
    is_new = not folder.exists()
    try:
        facts = gather(_options(processes[0], folder), os.environ)
        targets = [_with_gpus(one, facts.gpus.gpus) for one in targets]
        with noting_interrupts() as interrupts, staging(folder, new_run_id(), say) as stage:
            planned = _manifest(targets, facts, stage.run_id, batches, command)
            given = {uuid for one in targets for uuid in one.record.given_gpus}
            gpus = tuple(gpu for gpu in facts.gpus.gpus if gpu.uuid in given)
            run = Run(stage.path, stage.run_id, gpus, lambda: bool(interrupts))
            try:
                stage.write_manifest(planned)
                duration_s = _open(targets, run, batches, timeout_s, telemetry, progress)
                _check(processes, timeout_s, was_interrupted=bool(interrupts))
            except BaseException:
                run.leave()
                stage.discard()
                raise
            manifest = _complete(planned, targets, stage, run, duration_s, batches, interrupts)
            say("reading the traces")
            summary = analyze_run(stage.path, manifest)
            place = stage.finish()
    finally:
        hang_up(processes)
        with suppress(OSError):
            if is_new:
                folder.rmdir()  # if empty
    return LaunchResult(manifest, place, summary, place != folder, was_interrupted=bool(interrupts))


def _options(process: Recordable, output_dir: Path) -> LaunchOptions:
    """Options to launch the same program."""
    facts = process.facts
    words = [facts["executable"], *facts["arguments"]]
    command = read_python_command(words)
    options = LaunchOptions(
        script=words[0], script_arguments=tuple(words[1:]), tracer="embedded", output_dir=output_dir
    )
    if command is None:
        return options
    changes = {
        "script": command.target if command.is_module else str(Path(facts["working_dir"], command.target)),
        "script_arguments": command.arguments,
        "module": command.is_module,
        "python_command": (command.python, *command.options),
    }
    return options.model_copy(update=changes)


def _with_gpus(target: Target, gpus: Sequence[GpuRecord]) -> Target:
    """Find the GPUs of a target and name its folder, unless a launch did."""
    if target.record.command:
        return target
    pids = {process.pid for process in target.processes}
    used = [gpu for gpu, (users, _) in zip(gpus, users_of(gpus), strict=True) if users.keys() & pids]
    if not used and any(process.facts["uses_cuda"] for process in target.processes):
        used = list(gpus)  # the driver does not know pids of a container
    facts = target.processes[0].facts
    changes = {
        "gpu_index": used[0].index if used else 0,
        "gpu_uuid": used[0].uuid if used else None,
        "gpu_uuids": [gpu.uuid for gpu in used] if len(used) > 1 else [],
        "folder": f"proc_0_gpu_{'-'.join(str(gpu.index) for gpu in used) or 0}",
        "command": [facts["executable"], *facts["arguments"]],
    }
    return Target(target.record.model_copy(update=changes), target.processes)


def _manifest(
    targets: Sequence[Target], facts: MachineFacts, run_id: str, batches: int, command: Sequence[str]
) -> RunManifest:
    script = facts.program.script
    pids = ", ".join(str(process.pid) for one in targets for process in one.processes)
    return RunManifest(
        run_id=run_id,
        complete=False,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command) or ["perfharness", "record", str(targets[0].record.pid), "--batches", str(batches)],
        script=script.target if script is not None else facts.program.command[0],
        module=script is not None and script.is_module,
        script_arguments=list(facts.program.script_arguments),
        num_processes_per_gpu=1,
        warmup_batches=0,
        working_dir=str(Path.cwd()),
        tracer=TracerRecord(kind="embedded", version=VERSION, reason=f"a window of {batches} batches of pid {pids}"),
        environment=facts.environment,
        source=facts.source,
        processes=[one.record.model_copy(update={"ended": "cut_off", "start_unix_ns": None}) for one in targets],
    )


def _open(
    targets: Sequence[Target], run: Run, batches: int, timeout_s: float, telemetry: bool, progress: Progress
) -> float:
    """Open a window in each process, and wait for their ends; return the duration."""
    conditions: list[Condition] = [machine_load]
    if telemetry:
        from perfharness_launcher.telemetry import sampled  # imports NumPy

        followed = [
            FollowedProcess(one.record.folder, one.record.pid or 0, tuple(one.record.given_gpus)) for one in targets
        ]
        conditions.insert(0, partial(sampled, running=followed))
    run.enter(conditions)
    begin_s = time.monotonic()
    for one in targets:
        folder = run.folder / one.record.folder
        folder.mkdir()
        for process in one.processes:
            file_name = JOURNAL_NAME if process.pid == one.record.pid else f"recorder_{process.pid}.json"
            process.open(folder, file_name, batches)
    wait([process for one in targets for process in one.processes], batches, timeout_s, progress, run.interrupted)
    duration_s = time.monotonic() - begin_s
    run.leave()
    return duration_s


def _check(processes: Sequence[Recordable], timeout_s: float, *, was_interrupted: bool) -> None:
    """Raise `LaunchError` if a process refused, `NothingRecordedError` if no batch ran."""
    refused = next((one for one in processes if one.problem), None)
    if refused is not None:
        raise LaunchError(f"Process {refused.pid} cannot be recorded: {refused.problem}.")
    if any(one.batches for one in processes):
        return
    if was_interrupted:
        raise NothingRecordedError("Interrupted before the end of a batch; nothing was recorded.")
    if not any(one.is_closed for one in processes):
        raise NothingRecordedError("The process ended before the end of a batch; nothing was recorded.")
    hint = "Give the process work, or use a longer --timeout. A batch that was already running does not count."
    raise NothingRecordedError(f"No batch ended within {timeout_s:g} s. {hint}")


def _complete(
    planned: RunManifest,
    targets: Sequence[Target],
    stage: Staging,
    run: Run,
    duration_s: float,
    batches: int,
    interrupts: Interrupts,
) -> RunManifest:
    """Make the traces, and write the complete manifest."""
    folders = {stage.path / one.record.folder: one.record.pid for one in targets}
    findings = [*run.findings, *(finding for found in collect(None, folders, interrupts) for finding in found)]
    records = []
    for target in targets:
        ended = "ok" if all(one.is_closed for one in target.processes) else "cut_off"
        changes = {"ended": ended, "duration_s": duration_s, "trace": trace_in(stage.path / target.record.folder)}
        record = target.record.model_copy(
            update={**changes, "start_unix_ns": None, **run.of_processes.get(target.record.folder, {})}
        )
        records.append(with_measured(stage.path, record, share_trace=False))
        findings += [one for process in target.processes for one in _findings(process, record.folder, batches)]
    update = {"complete": True, "processes": records, "findings": findings, "companions": run.records}
    manifest = planned.model_copy(update=update)
    stage.write_manifest(manifest)
    return manifest


def _findings(process: Recordable, folder: str, batches: int) -> list[Finding]:
    what, name = f"{process.batches} of {batches} batches", f"Process {process.pid}"
    if not process.is_closed:
        message = f"{name} ended in the window, after at least {what}. Their records are kept."
        return [Finding("window-process-ended", Severity.ERROR, message, "", folder)]
    if not process.batches:
        message = f"{name} ran no batch in the window and is not in the results."
        return [Finding("window-idle-process", Severity.NOTE, message, "", folder)]
    if process.batches < batches:
        message = f"The window ended after {what} of process {process.pid}."
        return [Finding("window-incomplete", Severity.ERROR, message, "Use a longer --timeout.", folder)]
    return []
