"""How each process ended and what it reported, as a record for the manifest and as findings for the user."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from perfharness.analysis.stages.checks import without_consequences
from perfharness.model import environment
from perfharness.model.annotations import NOTES, Annotations, FunctionNote
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import PlacementRecord, ProcessRecord, TracerRecord
from perfharness_launcher.collect import Collected
from perfharness_launcher.nsys import TRACER_LOG
from perfharness_launcher.process import STDERR_LOG, STDOUT_LOG, ProcessSpec, RunningProcess, cpu_list
from perfharness_launcher.program import PYTHON_NAME

Ended = Literal["ok", "failed", "timeout", "interrupted", "not_started"]

LOST = "was killed together with the helper between it and its tracer"
IGNORED_SIGNALS = "did not end when it was asked to (SIGINT, then SIGTERM), and was killed"
END_WHEN_ASKED = (
    "What it writes at its end is missing, its trace perhaps; a server ends when it is sent SIGINT or SIGTERM."
)
TAIL_LINES = 15
TAIL_BYTES = 16_384


def process_record(ending: RunningProcess, collected: Collected, command: list[str]) -> ProcessRecord:
    """The record of one process."""
    report = ending.ended or {}
    number = report.get("signal")
    known = {name: report.get(name) for name in ("exit_code", "user_s", "system_s", "max_rss_bytes")}
    return planned_record(ending.spec, command).model_copy(
        update={
            **known,
            "pid": ending.pid,
            "signal": signal_name(number) if number is not None else None,
            "ended": _ended(ending),
            "start_unix_ns": ending.start_unix_ns,
            "duration_s": report["duration_ns"] / 1e9 if report else None,
            "trace": collected.trace,
            "placement": _placement(ending),
        }
    )


def planned_record(spec: ProcessSpec, command: list[str]) -> ProcessRecord:
    """The record of a process whose end is not known."""
    return ProcessRecord(
        index=spec.index,
        gpu_index=spec.gpus[0].index if spec.gpus else 0,
        gpu_uuid=spec.gpus[0].uuid if spec.gpus else None,
        gpu_uuids=[gpu.uuid for gpu in spec.gpus] if len(spec.gpus) > 1 else [],
        folder=spec.folder,
        command=command,
        ended="cut_off",
    )


def _placement(ending: RunningProcess) -> PlacementRecord | None:
    wanted = ending.spec.placement
    if ending.pid is None:
        return None
    return PlacementRecord(
        cpus=cpu_list(ending.cpus) if ending.cpus is not None else None,
        bound=bool(wanted.cpus),
        how=wanted.how,
        problems=ending.placement_problems,
    )


def _ended(ending: RunningProcess) -> Ended:
    if ending.pid is None:
        return "interrupted" if ending.stopped == "interrupted" else "not_started"
    if ending.stopped == "done":
        return "failed" if ending.lost or _was_killed(ending) else "ok"
    if ending.stopped is not None:
        return ending.stopped
    return "ok" if ending.ended and ending.ended["exit_code"] == 0 else "failed"


def _was_killed(ending: RunningProcess) -> bool:
    """Of a process that was no longer needed: whether it did not end when it was asked to."""
    ended = ending.ended
    return ending.stopped == "done" and ended is not None and ended.get("signal") == signal.SIGKILL


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 35` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def process_findings(
    ending: RunningProcess,
    record: ProcessRecord,
    tracer: TracerRecord,
    timeout_s: float | None,
    captured: str | None = None,
) -> Iterator[Finding]:
    """Findings about how a process ended and about a missing trace.

    Args:
        captured: batches that were to be traced; None: all.
    """
    if record.ended != "ok":
        yield _ended_badly(ending, record, tracer, timeout_s)
    if record.placement is not None and record.placement.problems:
        yield Finding(
            "placement-failed",
            Severity.WARNING,
            f"The process is {' and '.join(record.placement.problems)}",
            "A container may forbid it (Docker: add --cap-add SYS_NICE). Without binding: --cpu-bind none.",
            record.folder,
        )
    if ending.tracer_restarts:
        yield Finding(
            "tracer-restarted",
            Severity.NOTE,
            f"nsys ended before the process began, and was started again ({ending.tracer_restarts} times)",
            f"nothing was lost; {record.folder}/{TRACER_LOG} has its output",
            record.folder,
        )
    if tracer.kind == "nsys" and record.pid is not None and (died := _tracer_death(ending)):
        yield Finding(
            "tracer-died",
            Severity.ERROR,
            f"nsys {died}, so the trace may lack its end",
            f"see {record.folder}/{TRACER_LOG}; a machine out of memory or disk space is a usual cause",
            record.folder,
        )
    lacks_trace = tracer.kind != "none" and not record.left_traces and record.pid is not None
    if record.pid is not None and not (ending.folder / STDOUT_LOG).exists():
        lost = "its output and its trace are" if lacks_trace else "its output is"
        yield Finding(
            "output-folder-removed",
            Severity.ERROR if lacks_trace else Severity.WARNING,
            f"The program removed the folder of its results, {record.folder}, so {lost} lost",
            "a script that empties its output folder should spare this one, or be given another; where it parses "
            f"perfharness's own arguments, --output_dir is this folder ({environment.OUTPUT_DIR})",
            record.folder,
        )
    elif lacks_trace:
        logs = (STDERR_LOG, TRACER_LOG) if record.ended == "ok" else ()
        end_of_output = _end_of_output(ending.folder, logs) if logs else "; it ended before one was written"
        hint = _hint_without_trace(ending.spec.command, tracer) if record.ended == "ok" else ""
        if record.ended == "ok" and captured:
            end_of_output = f": no loop reached the batches {captured} of --capture-batches"
            hint = "Choose smaller numbers; the first batch of a loop is 0."
        yield Finding(
            "trace-missing",
            Severity.ERROR,
            f"The process left no trace ({tracer.kind}){end_of_output}",
            hint,
            record.folder,
        )


def _hint_without_trace(command: Sequence[str], tracer: TracerRecord) -> str:
    """The next step where a program ended well and left no trace."""
    if tracer.kind == "nsys":
        return "perfharness doctor says what is missing"
    name = Path(command[0]).name
    if PYTHON_NAME.fullmatch(name):
        return "annotate what it runs (PerfRecorder, nvtx, --annotate): it made no range, and no GPU work"
    return (
        f"The embedded tracer records Python, and {name} started no Python process that made ranges or GPU work. Use "
        "--tracer nsys for other programs."
    )


def _ended_badly(
    ending: RunningProcess, record: ProcessRecord, tracer: TracerRecord, timeout_s: float | None
) -> Finding:
    command = shlex.join(ending.spec.command)
    folder = ending.folder
    how = {
        "failed": LOST if ending.lost else IGNORED_SIGNALS if _was_killed(ending) else _how_it_failed(record),
        "timeout": f"was ended after --timeout {timeout_s:g} seconds" if timeout_s else "was ended",
        "interrupted": "was interrupted",
        "not_started": f"did not start ({ending.not_started})",
    }[record.ended]
    logs = (TRACER_LOG,) if record.pid is None else (STDERR_LOG, STDOUT_LOG)
    return Finding(
        f"process-{record.ended.replace('_', '-')}",
        Severity.ERROR,
        f"The process {how}: {command}{_end_of_output(folder, logs)}",
        _next_step(ending, record, folder, tracer),
        record.folder,
    )


def _next_step(ending: RunningProcess, record: ProcessRecord, folder: Path, tracer: TracerRecord) -> str:
    if _was_killed(ending):
        return END_WHEN_ASKED
    return failure_hint(record, log_tail(folder / STDERR_LOG), ending.spec.command[0], tracer)


CRASHES = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"})
ENDED_BY_EOF = re.compile(r"^\s*EOFError\b", re.MULTILINE)
BLOCKS_FORKS_BEFORE = (2024, 1)
"""nsys 2023.4 blocks a process one of whose threads forks while another runs, with or without perfharness."""


def failure_hint(record: ProcessRecord, stderr: str, program: str, tracer: TracerRecord) -> str:
    """The next step that fits how a process ended; empty where there is none.

    Args:
        stderr: the end of what it wrote there.
        program: what was started: the interpreter of a Python script.
    """
    if record.ended in ("timeout", "interrupted"):
        longer = "Give it longer (--timeout), or see where it hangs: `py-spy dump --pid PID` while it runs."
        hints = (longer if record.ended == "timeout" else "", _blocked_by_tracer(tracer))
        return " ".join(filter(None, hints))
    if record.ended != "failed":
        return ""
    code = record.exit_code
    number = code - 128 if record.signal is None and code is not None and 128 < code < 160 else None
    signal_of_end = record.signal or (signal_name(number) if number is not None else None)
    if signal_of_end == "SIGKILL":
        return "The kernel kills a process where memory runs out (see `dmesg`). Use fewer processes or smaller batches."
    if signal_of_end in CRASHES:
        return "Native code crashed. PYTHONFAULTHANDLER=1 shows where; --tracer none whether it does so untraced."
    if signal_of_end is not None:
        return "Another program or a person sent the signal."
    if Path(program).name == "nsys" and tracer.kind == "nsys":
        return "nsys cannot run inside nsys. Launch the program without nsys, or add --tracer embedded."
    if ENDED_BY_EOF.search(stderr):
        return "A launch closes standard input, so input() fails. Pass what the script asks for as an argument."
    return "" if stderr else "Run it without perfharness to see the same."


def _blocked_by_tracer(tracer: TracerRecord) -> str:
    version = tuple(int(part) for part in re.findall(r"\d+", tracer.version or "")[:2])
    if tracer.kind != "nsys" or version >= BLOCKS_FORKS_BEFORE:
        return ""
    return (
        "If it hung: this nsys blocks programs that fork in a thread, as Pool(maxtasksperchild=…) does. Install a newer"
        " one, or add --tracer embedded."
    )


def _end_of_output(folder: Path, logs: tuple[str, ...]) -> str:
    """The end of the first log that is not empty."""
    for log in logs:
        if text := log_tail(folder / log):
            return f"; the end of {log}:\n{text}"
    return "; it wrote nothing"


def _how_it_failed(record: ProcessRecord) -> str:
    if record.signal is not None:
        return f"was killed by {record.signal}"
    return f"ended with exit code {record.exit_code}" if record.exit_code is not None else "vanished"


def _tracer_death(ending: RunningProcess) -> str | None:
    if ending.tracer_killed:
        return "was still writing its report when the time limit ended, and was killed"
    code = ending.tracer_exit_code
    return f"was killed by {signal_name(-code)}" if code is not None and code < 0 else None


def log_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, indented; empty where there is nothing."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])


def last_lines(text: str, lines: int = 5) -> str:
    """The last lines that a process printed, in one line behind a colon; empty where there are none."""
    printed = [line.strip() for line in text.strip().splitlines()[-lines:]]
    return f": {' | '.join(printed)}" if printed else ""


# ---- what a process reported about its annotations ----

NEVER_CALLED = (
    "it was there and never called",
    "Another module may have taken it before it was replaced, or a Python that cannot be followed called it.",
)
NO_MODULE_CALLED = (
    "no call of a module was recorded",
    "One that is compiled in place (`model.compile()`) is not: use `torch.compile(model)`, or annotate what calls it.",
)
NEVER_DEFINED = (
    "the script never reached its definition",
    "Name a function that is defined on every way through the script.",
)
NEVER_IMPORTED = (
    "its module was never imported",
    "Name it in the module that the pipeline uses, or omit it.",
)


def annotation_findings(folder: Path, record: ProcessRecord, annotations: Annotations) -> Iterator[Finding]:
    """Findings of one process; none of one that was killed before it could report."""
    notes = read_notes(folder)
    if notes is None:
        if record.ended == "ok":
            yield Finding(
                "annotations-not-told",
                Severity.WARNING,
                "The process ended without reporting which annotated functions it found and called.",
                "A script that leaves by os._exit, or replaces itself by another program, cannot report it.",
                record.folder,
            )
        return
    for note in notes:
        for finding in without_consequences(list(_findings_of(note, annotations)), ended_well=record.ended == "ok"):
            yield Finding(finding.code, finding.severity, finding.message, finding.hint, record.folder)


def read_notes(folder: Path) -> list[FunctionNote] | None:
    """The notes of a launched process and those that it started, merged and removed; None: there are none."""
    merged: list[FunctionNote] | None = None
    for path in sorted(folder.glob(NOTES)):
        with contextlib.suppress(OSError, ValueError, TypeError):
            notes = [FunctionNote(**content) for content in json.loads(path.read_text(encoding="utf-8"))]
            merged = notes if merged is None else list(map(_merged, merged, notes))
            path.unlink()
    return merged


def _merged(one: FunctionNote, other: FunctionNote) -> FunctionNote:
    """What two processes found and called; where one has the function, it is no problem that the other has not."""
    both = {name: value or getattr(other, name) for name, value in vars(one).items()}
    if one.problem != other.problem and (one.found or other.found):
        both["problem"] = None
    return FunctionNote(**both)


def _findings_of(note: FunctionNote, annotations: Annotations) -> Iterator[Finding]:
    is_torch = note.function == "torch"
    what, has = ("PyTorch's modules", "have") if is_torch else (note.function, "has")
    if note.problem is not None:
        yield Finding(
            "annotation-not-found",
            Severity.ERROR,
            f"{what} could not be annotated: {note.problem}.",
            "Name a function, or a method of a class written in Python, that is there once its module is imported.",
        )
    elif note.compiled:
        yield Finding(
            "ranges-in-compiled-code",
            Severity.NOTE if note.recorded else _severity(note, annotations),
            f"{what} {has} no ranges where torch.compile compiled it with its caller.",
            "What is compiled is one piece: annotate the call of the compiled function, or measure without "
            "torch.compile.",
        )
    elif not note.called:
        never_called = NO_MODULE_CALLED if is_torch else NEVER_CALLED
        why, hint = NEVER_IMPORTED if not note.imported else never_called if note.found else NEVER_DEFINED
        yield Finding("annotation-never-called", _severity(note, annotations), f"{what} {has} no ranges: {why}.", hint)
    elif not note.recorded:
        yield Finding(
            "annotation-never-called",
            _severity(note, annotations),
            f"{what} {has} no ranges: it was called only while no range {annotations.within!r} was open.",
            "Let [recorder] within name a range around all that is to be measured.",
        )
    if note.items_problem is not None:
        yield Finding(
            "annotation-items-failed",
            Severity.WARNING,
            f"{what} has batches without items, or with counted indices: {note.items_problem}.",
            "An expression sees args, kwargs, self, result and the parameters of the function.",
        )


def _severity(note: FunctionNote, annotations: Annotations) -> Severity:
    """Without its batches, a launch measures nothing."""
    batches = {function.target for function in annotations.functions if function.is_batch}
    return Severity.ERROR if note.function in batches else Severity.WARNING
