"""Ends and reports of processes, as records for the manifest and findings for the user."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from perfharness.model import environment
from perfharness.model.annotations import NOTES, Annotations, FunctionNote
from perfharness.model.findings import Finding, Severity, without_consequences
from perfharness.model.manifest import PlacementRecord, ProcessRecord, TracerRecord
from perfharness_launcher.collect import trace_in
from perfharness_launcher.nsys import TRACER_LOG, is_2023, numbers
from perfharness_launcher.plan import LaunchPlan
from perfharness_launcher.process import STDERR_LOG, STDOUT_LOG, ProcessSpec, RunningProcess, cpu_list
from perfharness_launcher.program import PYTHON_NAME

Ended = Literal["ok", "failed", "timeout", "interrupted", "not_started"]

TAIL_LINES = 15
TAIL_BYTES = 16_384


def process_record(ending: RunningProcess, command: list[str]) -> ProcessRecord:
    """Record of a process that has ended."""
    report = ending.ended
    number = report.get("signal")
    known = {name: report.get(name) for name in ("exit_code", "user_s", "system_s", "max_rss_bytes")}
    placement = None
    if ending.pid is not None:
        placement = PlacementRecord(
            cpus=cpu_list(ending.started["cpus"]),
            bound=bool(ending.spec.cpus),
            how="the CPUs near its GPUs" if ending.spec.cpus else "not bound",
            problems=ending.started["problems"],
        )
    return planned_record(ending.spec, command).model_copy(
        update={
            **known,
            "pid": ending.pid,
            "signal": signal_name(number) if number is not None else None,
            "ended": _end_of(ending)[0],
            "start_unix_ns": ending.start_unix_ns or None,
            "duration_s": report["duration_ns"] / 1e9 if report else None,
            "trace": trace_in(ending.folder),
            "placement": placement,
        }
    )


def planned_record(spec: ProcessSpec, command: list[str]) -> ProcessRecord:
    """Record of a process that has not ended."""
    return ProcessRecord(
        index=spec.index,
        gpu_index=spec.gpus[0].index if spec.gpus else 0,
        gpu_uuid=spec.gpus[0].uuid if spec.gpus else None,
        gpu_uuids=[gpu.uuid for gpu in spec.gpus] if len(spec.gpus) > 1 else [],
        folder=spec.folder,
        command=command,
        ended="cut_off",
    )


def _end_of(ending: RunningProcess, timeout_s: float | None = None) -> tuple[Ended, str]:
    """End of a process, as a code and in words."""
    code, number = ending.ended.get("exit_code"), ending.ended.get("signal")
    if ending.stopped == "interrupted":
        return "interrupted", "was interrupted"
    if ending.pid is None:
        return "not_started", f"did not start ({ending.not_started})"
    if ending.stopped == "timeout":
        return "timeout", f"was ended after --timeout {timeout_s or 0:g} seconds"
    if ending.lost:
        return "failed", "was killed together with hold.py, which started it"
    if ending.stopped == "done" and number == signal.SIGKILL:
        return "failed", "ignored SIGINT and SIGTERM, and was killed"
    if number is not None:
        return "ok" if ending.stopped == "done" else "failed", f"was killed by {signal_name(number)}"
    return "ok" if code == 0 or ending.stopped == "done" else "failed", f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 35` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def process_findings(ending: RunningProcess, record: ProcessRecord, plan: LaunchPlan) -> Iterator[Finding]:
    """Findings about how a process ended and about a missing trace."""
    name, log, tracer = record.folder, f"{record.folder}/{TRACER_LOG}", plan.tracer
    if record.ended != "ok":
        how = f"The process {_end_of(ending, plan.options.timeout_s)[1]}: {shlex.join(ending.spec.command)}"
        output = _end_of_output(ending.folder, (TRACER_LOG,) if record.pid is None else (STDERR_LOG, STDOUT_LOG))
        if record.ended == "failed" and ending.stopped == "done" and not ending.lost:
            hint = "Its trace may be incomplete. Let the server end on SIGINT or SIGTERM."
        else:
            stderr = log_tail(ending.folder / STDERR_LOG)
            hint = failure_hint(record, stderr, ending.spec.command[0], tracer)
        yield Finding(f"process-{record.ended.replace('_', '-')}", Severity.ERROR, how + output, hint, name)
    if record.pid is None:
        return
    if problems := ending.started["problems"]:
        message = f"The process is {' and '.join(problems)}."
        hint = "A container may forbid it (Docker: --cap-add SYS_NICE). Add --cpu-bind none."
        yield Finding("placement-failed", Severity.WARNING, message, hint, name)
    if ending.tracer_restarts:
        message = f"nsys failed to start and was restarted {ending.tracer_restarts} times. Nothing was lost."
        yield Finding("tracer-restarted", Severity.NOTE, message, f"See {log}.", name)
    if tracer.kind == "nsys" and (death := _tracer_death(ending)):
        message = f"nsys {death}, so the trace may lack its end."
        yield Finding("tracer-died", Severity.ERROR, message, f"Check memory and disk space; see {log}.", name)
    lacks_trace = tracer.kind != "none" and not record.left_traces
    if not (ending.folder / STDOUT_LOG).exists():
        severity = Severity.ERROR if lacks_trace else Severity.WARNING
        message = f"The program removed its result folder {name} with logs and traces."
        hint = f"Do not empty the output folder ({environment.OUTPUT_DIR}), or write to another one."
        yield Finding("results-not-written", severity, message, hint, name)
    elif lacks_trace:
        why, hint = "", ""
        if record.ended == "ok" and (captured := plan.options.capture_batches):
            why = f": no loop reached --capture-batches {captured}"
            hint = "Use smaller numbers; the first batch of a loop is 0."
        elif record.ended == "ok":
            why = _end_of_output(ending.folder, (STDERR_LOG, TRACER_LOG))
            hint = _hint_without_trace(ending.spec.command[0], tracer)
        yield Finding("trace-missing", Severity.ERROR, f"The process left no trace ({tracer.kind}){why}", hint, name)


def _tracer_death(ending: RunningProcess) -> str | None:
    if ending.tracer_killed:
        return "did not finish its report before the timeout and was killed"
    code = ending.tracer.returncode
    return f"was killed by {signal_name(-code)}" if code is not None and code < 0 else None


def _hint_without_trace(program: str, tracer: TracerRecord) -> str:
    name = Path(program).name
    if tracer.kind == "nsys":
        return "`perfharness doctor` lists what is missing."
    if PYTHON_NAME.fullmatch(name):
        return "It made no range and no GPU work: annotate it (PerfRecorder, nvtx or --annotate)."
    return f"{name} started no Python with ranges or GPU work. For other programs, use --tracer nsys."


CRASHES = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"})
ENDED_BY_EOF = re.compile(r"^\s*EOFError\b", re.MULTILINE)


def failure_hint(record: ProcessRecord, stderr: str, program: str, tracer: TracerRecord) -> str:
    """Next step after the end of a process, or "".

    `stderr`: its last lines; `program`: the started program, such as the interpreter of a script.
    """
    if record.ended in ("timeout", "interrupted"):
        longer = "Use a longer --timeout, or see where it hangs: `py-spy dump --pid PID`."
        blocked = "This nsys may hang programs that fork in a thread; try --tracer embedded."
        is_old = tracer.kind == "nsys" and is_2023(numbers(tracer.version or ""))
        return " ".join([longer] * (record.ended == "timeout") + [blocked] * is_old)
    if record.ended != "failed":
        return ""
    code = record.exit_code
    of_shell = signal_name(code - 128) if code is not None and 128 < code < 160 else None
    match record.signal or of_shell:
        case "SIGKILL":
            return "Out of memory? See `dmesg`. Use fewer processes or smaller batches."
        case str(number) if number in CRASHES:
            return "Native code crashed. See where with PYTHONFAULTHANDLER=1; try without a tracer (--tracer none)."
        case str():
            return "Another program or a person sent the signal."
    if Path(program).name == "nsys" and tracer.kind == "nsys":
        return "nsys cannot run inside nsys. Launch the program without it, or add --tracer embedded."
    if ENDED_BY_EOF.search(stderr):
        return "A launch closes standard input, so input() fails. Pass the input as an argument."
    return "" if stderr else "Run it without perfharness to see whether it fails too."


def _end_of_output(folder: Path, logs: tuple[str, ...]) -> str:
    ends = ((log, log_tail(folder / log)) for log in logs)
    return next((f"; the end of {log}:\n{text}" for log, text in ends if text), "; it wrote nothing")


def log_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """Last lines of a log, indented, or ""."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])


def last_lines(text: str) -> str:
    """Last five lines of an output, joined after a colon, or ""."""
    printed = [line.strip() for line in text.strip().splitlines()[-5:]]
    return f": {' | '.join(printed)}" if printed else ""


# ---- threads without a CPU ----

LEAST_READY_SHARE = 0.2
"""Share of the time that threads wanted a CPU. Smaller losses are within the noise between launches."""

TOLERANCE = 0.25
"""Fraction of a runnable thread that does not count as another one."""

TIMES = "\N{MULTIPLICATION SIGN}"

LIBRARIES = {
    "onnxruntime": "ONNX Runtime: intra_op_num_threads={}",
    "torch": "PyTorch: torch.set_num_threads({}) or OMP_NUM_THREADS={}",
}
"""How to set the number of threads, by library."""


def contention_findings(plan: LaunchPlan, processes: Sequence[ProcessRecord]) -> list[Finding]:
    """Report that threads lacked a CPU because the launch has more threads than CPUs."""
    sampled = [one for one in processes if one.cpu_ready_s is not None and one.cpu_run_s is not None]
    ready_s, run_s = sum(one.cpu_ready_s or 0.0 for one in sampled), sum(one.cpu_run_s or 0.0 for one in sampled)
    if not sampled or ready_s < LEAST_READY_SHARE * (ready_s + run_s):
        return []
    count = len(sampled)
    placed = {one.placement.cpus if one.placement else None: one.cpus_allowed or 0 for one in sampled}
    cpus = sum(placed.values())
    threads = max(1, math.ceil(sum(one.runnable_threads or 0.0 for one in sampled) / count - TOLERANCE))
    if not 0 < cpus < count * threads:
        return []  # other programs use the CPUs
    counts = f"{_number(count, 'process', 'processes')} {TIMES} {_number(threads, 'thread', 'threads')}"
    share = f"ready without a CPU {100 * ready_s / (ready_s + run_s):.0f} % of the time"
    message = f"CPU contention: {counts} on {_number(cpus, 'CPU', 'CPUs')}; {share}."
    hint = f"Try {' or '.join(_steps(plan, count, threads, cpus))}."
    return [Finding("cpu-contention", Severity.WARNING, message, hint)]


def _steps(plan: LaunchPlan, count: int, threads: int, cpus: int) -> list[str]:
    steps = []
    each = max(1, cpus // count)
    if each < threads:
        ways = [LIBRARIES[name] for name in _libraries(plan)] or ["OMP_NUM_THREADS={}"]
        how = "; ".join(ways).replace("{}", str(each))
        steps.append(f"{'one thread' if each == 1 else f'{each} threads'} per process ({how})")
    fewer = max(1, cpus // threads)
    if len(plan.gpus) <= 1 and fewer < count:
        steps.append(f"-np {fewer}")
    return steps or ["fewer processes"]


def _libraries(plan: LaunchPlan) -> list[str]:
    """Libraries named in the script, or else the installed ones."""
    script = plan.facts.program.script
    path = None if script is None or script.is_module else Path(script.target)
    text = path.read_text(errors="replace") if path is not None and path.is_file() else ""
    named = [name for name in LIBRARIES if re.search(rf"\b{name}\b", text)]
    return named or [name for name in LIBRARIES if any(one.startswith(name) for one in plan.facts.environment.packages)]


def _number(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


# ---- annotations ----


def annotation_findings(folder: Path, record: ProcessRecord, annotations: Annotations) -> Iterator[Finding]:
    """Findings about the annotations of one process."""
    notes, ended_well = read_notes(folder), record.ended == "ok"
    if notes is None and ended_well:
        message = "The process did not report which annotated functions it found and called."
        hint = "It cannot if it ends by os._exit or replaces itself by another program."
        yield Finding("annotations-not-reported", Severity.WARNING, message, hint, record.folder)
    for note in notes or ():
        found = [
            Finding(code, severity, f"{note.function} {message}.", hint, record.folder)
            for code, severity, message, hint in _problems_of(note, annotations)
        ]
        yield from without_consequences(found, ended_well=ended_well)


def read_notes(folder: Path) -> list[FunctionNote] | None:
    """Merge and remove the notes of a launched process and its children; None if there are none."""
    merged: list[FunctionNote] | None = None
    for path in sorted(folder.glob(NOTES)):
        with contextlib.suppress(OSError, ValueError, TypeError):
            notes = [FunctionNote(**content) for content in json.loads(path.read_text(encoding="utf-8"))]
            merged = notes if merged is None else list(map(_merged, merged, notes))
            path.unlink()
    return merged


def _merged(one: FunctionNote, other: FunctionNote) -> FunctionNote:
    """Merge the notes of two processes, without a problem if one of them has the function."""
    both = {name: value or getattr(other, name) for name, value in vars(one).items()}
    if one.problem != other.problem and (one.found or other.found):
        both["problem"] = None
    return FunctionNote(**both)


def _problems_of(note: FunctionNote, annotations: Annotations) -> Iterator[tuple[str, Severity, str, str]]:
    """Code, severity, message and hint per problem; an error if batches are missing."""
    batches = {function.target for function in annotations.functions if function.is_batch}
    severity = Severity.ERROR if note.function in batches else Severity.WARNING
    if note.problem is not None:
        hint = "Annotate a function or method written in Python."
        yield "annotation-not-found", Severity.ERROR, f"cannot be annotated: {note.problem}", hint
    elif note.compiled:
        message = "has no ranges where torch.compile compiled it into its caller"
        hint = "Annotate the caller of the compiled function, or measure without torch.compile."
        yield "ranges-in-compiled-code", Severity.NOTE if note.recorded else severity, message, hint
    elif not note.recorded:
        message, hint = _why_never_called(note, annotations)
        yield "annotation-never-called", severity, f"has no ranges: {message}", hint
    if note.items_problem is not None:
        message = f"has batches without items or index: {note.items_problem}"
        hint = "Expressions can use args, kwargs, self, result and the parameters of the function."
        yield "annotation-items-failed", Severity.WARNING, message, hint


def _why_never_called(note: FunctionNote, annotations: Annotations) -> tuple[str, str]:
    if note.called:
        hint = "Set [recorder] within to a range around its calls."
        return f"it was only called outside of range {annotations.within!r}", hint
    if not note.imported:
        return "its module was never imported", "Name the module that the pipeline imports, or omit it."
    if not note.found:
        return "the script never reached its definition", "Name a function that is always defined."
    if note.function == "torch":
        hint = "Use torch.compile(model) instead of model.compile(), or annotate the caller."
        return "no call of a module was recorded", hint
    return "it was never called", "Another module may have imported it before it was annotated."
