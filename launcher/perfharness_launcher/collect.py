"""Turn what the tracers left into `trace.sqlite`, and what nsys complained about into findings."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import LaunchError, PerfHarnessError, ToolNotFoundError, TraceFormatError
from perfharness.model.findings import Finding, Severity
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys import (
    REPORT_STEM,
    REPORT_SUFFIX,
    TRACER_LOG,
    NsysInstall,
    NsysTracing,
    attempts,
    export_command,
    import_command,
    profile_command,
)

TOOL_TIMEOUT_S = 1800.0
POLL_S = 0.1

TROUBLE = re.compile(r"\b(error|warning|fatal|failed|unable|cannot|not supported|dropped|incomplete)\b", re.IGNORECASE)
SEVERE = re.compile(r"\b(error|fatal|failed|dropped|incomplete)\b", re.IGNORECASE)
HARMLESS = re.compile(
    r"the application terminated before the collection|paranoid|sampling (is )?(not|disabled)", re.IGNORECASE
)
ABOUT_IMPORT = re.compile(r"\bimport(ed|er|ing|ation)?\b|qdstrm", re.IGNORECASE)
MAX_LINES = 5


@dataclass(frozen=True)
class Collected:
    """The trace of one process, None where there is none, and findings about it."""

    trace: str | None
    findings: tuple[Finding, ...]


def collect(nsys: NsysInstall | None, folders: Mapping[Path, int | None], interrupts: Interrupts) -> list[Collected]:
    """Collect the traces of every folder, several concurrently.

    Args:
        folders: of the launched processes, each with its pid.
    """

    def collect_one(folder: Path) -> Collected:
        if nsys is not None:
            return collect_report(nsys, folder, interrupts)
        return _complete(folder, folders[folder])

    workers = max(1, min(len(folders), len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(collect_one, folders))


def _complete(folder: Path, launched_pid: int | None) -> Collected:
    """The embedded tracer's files, and those made of what processes left that were killed, or left that to us."""
    from perfharness.tracer.output import complete_traces  # here, for verbs that read a run need no tracer

    log, trace, findings = folder / TRACER_LOG, folder / TRACE_NAME, []
    if log.exists() and log.stat().st_size == 0:
        log.unlink()
    try:
        complete_traces(folder, launched_pid)
    except (OSError, sqlite3.Error) as error:
        message = f"the ranges that processes left in {folder.name} could not be put into {TRACE_NAME}: {error}"
        hint = f"make room on the disk; then `perfharness analyze {folder.parent}` takes them in"
        findings.append(Finding("trace-import-failed", Severity.ERROR, message, hint, folder.name))
    return Collected(TRACE_NAME if trace.exists() else None, tuple(findings))


def collect_report(
    nsys: NsysInstall, folder: Path, interrupts: Interrupts, patience_s: float = TOOL_TIMEOUT_S
) -> Collected:
    """Import what nsys recorded, where it has not done so itself, and export it."""
    trace, report, recording = (folder / name for name in (TRACE_NAME, REPORT_STEM + REPORT_SUFFIX, "trace.qdstrm"))
    lines, findings = log_lines(folder / TRACER_LOG), []
    if recording.exists() or not nsys.finds_importer:
        lines = without_import(lines)  # nsys could not import by itself; that is made up for
    try:
        step = f"{recording.name} into a report"
        if recording.exists():
            lines += _import(nsys, recording, report, interrupts, patience_s)
    except (LaunchError, OSError) as error:
        findings.append(_failed(folder, step, error, recording))
    try:
        step = f"{report.name} into {TRACE_NAME}"
        if report.exists():
            run_tool(export_command(nsys, report, trace), folder, interrupts, patience_s)
    except (LaunchError, OSError) as error:
        findings.append(_failed(folder, step, error, report))
    is_whole = trace.exists() and trace.stat().st_size > 0
    return Collected(TRACE_NAME if is_whole else None, (*tracer_findings(lines, folder.name), *findings))


def _failed(folder: Path, step: str, error: Exception, kept: Path) -> Finding:
    message = f"nsys could not turn {step} ({folder.name}): {error}"
    hint = f"perfharness doctor says what this nsys lacks; {kept.name} is kept and can be read elsewhere"
    return Finding("trace-import-failed", Severity.ERROR, message, hint, folder.name)


def _import(nsys: NsysInstall, recording: Path, report: Path, interrupts: Interrupts, patience_s: float) -> list[str]:
    """Make the report from the recording, in place of one that a failed import left; then the recording goes.

    Returns:
        What the importer printed.

    Raises:
        LaunchError: it failed each time. A report that was there stays as it was.
    """
    made = report.with_name(f"{REPORT_STEM}.again{REPORT_SUFFIX}")
    asked_before = interrupts.count
    try:
        for left in reversed(range(attempts(nsys))):
            try:
                lines = run_tool(import_command(nsys, recording, made), report.parent, interrupts, patience_s)
                break
            except LaunchError as error:
                if not left or interrupts.count > asked_before or isinstance(error, ToolStoppedError):
                    raise
        made.replace(report)
    finally:
        made.unlink(missing_ok=True)
    recording.unlink()
    return lines


# ---- what nsys printed ----


def tracer_findings(lines: Sequence[str], process: str) -> list[Finding]:
    """Complaints of nsys among the lines of its log; one finding for all of them, with the first lines."""
    complaints = _complaints(lines)
    if not complaints:
        return []
    is_severe = any(SEVERE.search(line) for line in complaints)
    more = f" (and {len(complaints) - MAX_LINES} more)" if len(complaints) > MAX_LINES else ""
    return [
        Finding(
            "tracer-complained",
            Severity.ERROR if is_severe else Severity.WARNING,
            f"nsys printed: {' | '.join(dict.fromkeys(complaints[:MAX_LINES]))}{more}",
            f"all of it is in {process}/{TRACER_LOG}",
            process,
        )
    ]


def without_import(lines: Sequence[str]) -> list[str]:
    """Lines of nsys about everything but its own import, whose error can be of many lines."""
    kept = []
    is_about_import = False
    for line in lines:
        is_about_import = line.startswith("Importer error status:") or (
            is_about_import and not line.startswith("Generated")
        )
        if not is_about_import and not ABOUT_IMPORT.search(line):
            kept.append(line)
    return kept


def log_lines(log: Path, begin: int = 0) -> list[str]:
    """The lines that a tool printed, without progress bars; none where there is no log."""
    try:
        text = log.read_bytes()[begin:].decode(errors="replace")
    except OSError:
        return []
    lines = (line.strip() for line in re.split(r"[\r\n]+", text))
    return [line for line in lines if line and not re.search(r"\[\s*=*\s*\d+%", line)]


def _complaints(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if TROUBLE.search(line) and not HARMLESS.search(line)]


# ---- run a tool ----


class ToolStoppedError(LaunchError):
    """A tool of nsys did not end by itself."""


def run_tool(
    command: Sequence[str], folder: Path, interrupts: Interrupts, patience_s: float = TOOL_TIMEOUT_S
) -> list[str]:
    """Run one of nsys's tools, its command and output at the end of the tracer's log; a second Ctrl-C ends it.

    Returns:
        The lines it printed.

    Raises:
        ToolNotFoundError: it cannot be started.
        ToolStoppedError: it was ended by us.
        LaunchError: it failed.
    """
    name = Path(command[0]).name
    deadline = time.monotonic() + patience_s
    asked_before = max(interrupts.count, 1)
    stopped = ""
    with (folder / TRACER_LOG).open("ab") as log:
        log.write(f"\n$ {shlex.join(command)}\n".encode())
        log.flush()
        begin = log.tell()
        try:
            tool = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise ToolNotFoundError(f"{command[0]} cannot be started: {error.strerror}") from error
    while tool.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.wait(POLL_S)
        if interrupts.count > asked_before:
            stopped = "by an interrupt"
        elif time.monotonic() > deadline:
            stopped = f"after {patience_s:.0f} s"
        if stopped and tool.poll() is None:
            os.killpg(tool.pid, signal.SIGKILL)
    if stopped and tool.returncode:
        raise ToolStoppedError(f"{name} was stopped {stopped}")
    lines = log_lines(folder / TRACER_LOG, begin)
    if tool.returncode:
        last = _complaints(lines)[:3] or lines[-3:]
        raise LaunchError(f"{name} ended with {tool.returncode}: {' | '.join(last) or 'no output'}")
    return lines


# ---- a report that was kept, exported again where it is read ----


def sqlite_of(report: Path, find_installs: Callable[[], Sequence[NsysInstall]]) -> Path:
    """The sqlite file of a report, made where it is missing or older than the report.

    Args:
        report: an `.nsys-rep`.
        find_installs: looks for nsys, newest first; asked only when an export is needed.

    Raises:
        ToolNotFoundError: an export is needed, and there is no nsys for it.
        TraceFormatError: nsys cannot export it, or the folder cannot be written.
    """
    target = report.with_suffix(".sqlite")
    if target.is_file() and target.stat().st_mtime >= report.stat().st_mtime:
        return target
    installs = find_installs()
    if not installs:
        raise ToolNotFoundError(
            f"{report} has to be exported first, and there is no nsys here; export it where there is one with "
            f"`nsys export --type sqlite {report.name}`, or give --nsys."
        )
    problems = []
    for nsys in installs:  # an older nsys cannot read a newer one's report, but there may be a newer one here
        problem = _export(nsys, report, target)
        if problem is None:
            return target
        problems.append(f"nsys {nsys.version_text or nsys.path}: {problem}")
    raise TraceFormatError(
        f"{report} cannot be exported ({'; '.join(problems)}); use the nsys that wrote it, or a newer one."
    )


def _export(nsys: NsysInstall, report: Path, target: Path) -> str | None:
    """Export next to the target and move it there; return what went wrong, or None."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as folder:
            made = Path(folder) / target.name
            done = subprocess.run(
                export_command(nsys, report.absolute(), made.absolute()), capture_output=True, text=True, check=False
            )
            if done.returncode != 0 or not made.is_file():
                lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
                return lines[-1] if lines else f"exit code {done.returncode}"
            made.replace(target)
    except OSError as error:
        return f"{target.parent}: {error.strerror}"
    return None


# ---- does an nsys record this nvtx? ----

TRIAL_RANGES = 2
TRIAL_TIMEOUT_S = 120
TRIAL_PROGRAM = f"""
import nvtx
for _ in range({TRIAL_RANGES}):
    nvtx.push_range("trial", domain="perfharness.trial")
    nvtx.pop_range(domain="perfharness.trial")
"""


@dataclass(frozen=True)
class Trial:
    """Result of tracing a tiny program.

    Args:
        ranges: how many of the `TRIAL_RANGES` are in the trace; None: there was no trace to read.
        reason: why not all of them; empty where they are.
    """

    ranges: int | None
    reason: str = ""

    @property
    def records_nvtx(self) -> bool:
        """Whether every range was recorded."""
        return self.ranges == TRIAL_RANGES


def try_nsys(nsys: NsysInstall, python: str) -> Trial:
    """Trace a tiny program that makes two NVTX ranges; takes a second or two."""
    from perfharness.trace import open_trace  # here, for it is rarely needed and takes time to import

    with tempfile.TemporaryDirectory(prefix="perfharness-") as name:
        folder = Path(name)
        (folder / "trial_program.py").write_text(TRIAL_PROGRAM)  # `-c` would have the current folder on its path
        command = profile_command(NsysTracing(nsys), folder, [python, str(folder / "trial_program.py")])
        failure = ""
        try:
            run_tool(command, folder, Interrupts(), TRIAL_TIMEOUT_S)
        except (ToolNotFoundError, ToolStoppedError) as error:
            return Trial(None, f"{nsys.path} could not run a program of two ranges: {error}")
        except LaunchError as error:  # there may be a trace nevertheless
            failure = str(error)
        collected = collect_report(nsys, folder, Interrupts(), TRIAL_TIMEOUT_S)
        if collected.trace is None:
            reasons = [finding.message for finding in collected.findings] or [failure or f"{nsys.path} left no trace"]
            return Trial(None, "; ".join(reasons))
        try:
            count = len(open_trace(folder / collected.trace).ranges.start_ns)
        except PerfHarnessError as error:
            return Trial(None, str(error))
        return Trial(count, "" if count == TRIAL_RANGES else f"{count} of {TRIAL_RANGES} ranges were recorded")
