"""Convert the tracers' files into `trace.sqlite`, and complaints of nsys into findings."""

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
from pathlib import Path

from perfharness.errors import LaunchError, PerfHarnessError, ToolNotFoundError, TraceFormatError
from perfharness.model.findings import Finding, Severity, listed
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


def collect(
    nsys: NsysInstall | None, folders: Mapping[Path, int | None], interrupts: Interrupts
) -> list[list[Finding]]:
    """Collect the traces of all folders (with pids of the launched processes) in parallel; return their findings."""

    def collect_one(folder: Path) -> list[Finding]:
        if nsys is not None:
            return _collect_report(nsys, folder, interrupts)
        return _collect_logs(folder, folders[folder])

    workers = max(1, min(len(folders), len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(collect_one, folders))


def trace_in(folder: Path) -> str | None:
    """File name of the trace in the folder of a process, or None."""
    trace = folder / TRACE_NAME
    return TRACE_NAME if trace.exists() and trace.stat().st_size > 0 else None


def _collect_logs(folder: Path, launched_pid: int | None) -> list[Finding]:
    """Make traces of the embedded tracer's logs."""
    from perfharness.tracer.output import complete_traces  # commands that read a run do not need it

    log = folder / TRACER_LOG
    if log.exists() and log.stat().st_size == 0:
        log.unlink()
    try:
        complete_traces(folder, launched_pid)
    except (OSError, sqlite3.Error) as error:
        message = f"The ranges of {folder.name} could not be written into {TRACE_NAME}: {error}."
        hint = f"Free some disk space, then run `perfharness analyze {folder.parent}`."
        return [Finding("trace-missing", Severity.ERROR, message, hint, folder.name)]
    return []


def _collect_report(nsys: NsysInstall, folder: Path, interrupts: Interrupts) -> list[Finding]:
    """Import nsys's recording if nsys did not, and export the report to sqlite."""
    trace, report, recording = (folder / name for name in (TRACE_NAME, REPORT_STEM + REPORT_SUFFIX, "trace.qdstrm"))
    lines, findings = log_lines(folder / TRACER_LOG), []

    def convert(source: Path, action: Callable[[], list[str]]) -> list[str]:
        try:
            return action() if source.exists() else []
        except (LaunchError, OSError) as error:
            message = f"nsys could not convert {source.name} of {folder.name}: {error}."
            hint = f"`perfharness doctor` lists what this nsys lacks. {source.name} is kept."
            findings.append(Finding("trace-missing", Severity.ERROR, message, hint, folder.name))
            return []

    if recording.exists():
        lines = without_import(lines)
        lines += convert(recording, lambda: _import(nsys, recording, report, interrupts))
    convert(report, lambda: run_tool(export_command(nsys, report, trace), folder, interrupts))
    return [*tracer_findings(lines, folder.name), *findings]


def _import(nsys: NsysInstall, recording: Path, report: Path, interrupts: Interrupts) -> list[str]:
    """Make the report from the recording, remove the recording, and return the importer's output.

    An incomplete report is replaced only by a complete one. Raises `LaunchError`.
    """
    made = report.with_name(f"{REPORT_STEM}.again{REPORT_SUFFIX}")
    asked_before = interrupts.count
    try:
        for left in reversed(range(attempts(nsys))):
            try:
                lines = run_tool(import_command(nsys, recording, made), report.parent, interrupts)
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
    """Complaints in nsys's log, as one finding."""
    complaints = _complaints(lines)
    if not complaints:
        return []
    severity = Severity.ERROR if any(map(SEVERE.search, complaints)) else Severity.WARNING
    message = f"nsys printed: {listed(list(dict.fromkeys(complaints)), MAX_LINES, ' | ')}"
    return [Finding("tracer-message", severity, message, f"See {process}/{TRACER_LOG}.", process)]


def without_import(lines: Sequence[str]) -> list[str]:
    """Drop lines about nsys's own import, whose errors may have many lines."""
    kept, is_about_import = [], False
    for line in lines:
        if line.startswith("Importer error status:"):
            is_about_import = True
        elif line.startswith("Generated"):
            is_about_import = False
        if not is_about_import and not ABOUT_IMPORT.search(line):
            kept.append(line)
    return kept


def log_lines(log: Path, begin: int = 0) -> list[str]:
    """Output of a tool without progress bars; empty if the log is missing."""
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
    """A tool of nsys was ended by the launcher."""


def run_tool(
    command: Sequence[str], folder: Path, interrupts: Interrupts, timeout_s: float = TOOL_TIMEOUT_S
) -> list[str]:
    """Run a tool of nsys, append its output to the tracer's log, and return the output.

    A second Ctrl-C kills the tool. Raises `ToolNotFoundError` if it cannot be started, `ToolStoppedError` if it was
    killed, `LaunchError` if it failed.
    """
    deadline = time.monotonic() + timeout_s
    asked_before = max(interrupts.count, 1)
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
        if tool.poll() is None and (interrupts.count > asked_before or time.monotonic() > deadline):
            os.killpg(tool.pid, signal.SIGKILL)
            tool.wait()
            why = "by an interrupt" if interrupts.count > asked_before else f"after {timeout_s:.0f} s"
            raise ToolStoppedError(f"{command[0]} was stopped {why}")
    lines = log_lines(folder / TRACER_LOG, begin)
    if tool.returncode:
        last = _complaints(lines)[:3] or lines[-3:]
        raise LaunchError(f"{Path(command[0]).name} ended with {tool.returncode}: {' | '.join(last) or 'no output'}")
    return lines


# ---- export of a kept report ----


def sqlite_of(report: Path, find_installs: Callable[[], Sequence[NsysInstall]]) -> Path:
    """Return the sqlite file of a report (`.nsys-rep`); export it if missing or older than the report.

    Args:
        find_installs: find nsys, newest first; called only if an export is needed.

    Raises:
        ToolNotFoundError: an export is needed, but nsys is missing.
        TraceFormatError: nsys cannot export the report, or the folder is not writable.
    """
    target = report.with_suffix(".sqlite")
    if target.is_file() and target.stat().st_mtime >= report.stat().st_mtime:
        return target
    installs = find_installs()
    if not installs:
        raise ToolNotFoundError(
            f"{report} needs an export, but nsys is missing. Use --nsys, or export it on another machine: "
            f"`nsys export --type sqlite {report.name}`."
        )
    problems = []
    for nsys in installs:  # an older nsys cannot read the report of a newer one
        problem = _export(nsys, report, target)
        if problem is None:
            return target
        problems.append(f"nsys {nsys.version_text or nsys.path}: {problem}")
    raise TraceFormatError(
        f"{report} cannot be exported ({'; '.join(problems)}). Use the nsys that wrote it, or a newer one."
    )


def _export(nsys: NsysInstall, report: Path, target: Path) -> str | None:
    """Export next to the target, then move the file there; return the problem, or None."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as folder:
            made = Path(folder) / target.name
            run_tool(export_command(nsys, report.absolute(), made.absolute()), Path(folder), Interrupts())
            made.replace(target)
    except LaunchError as error:
        return str(error)
    except OSError as error:
        return f"{target.parent}: {error.strerror}"
    return None


# ---- trial: does nsys record this nvtx? ----

TRIAL_RANGES = 2
TRIAL_TIMEOUT_S = 120
TRIAL_PROGRAM = f"""
import nvtx
for _ in range({TRIAL_RANGES}):
    nvtx.push_range("trial", domain="perfharness.trial")
    nvtx.pop_range(domain="perfharness.trial")
"""


def try_nsys(nsys: NsysInstall, python: str) -> int:
    """Trace a program with two NVTX ranges (about two seconds); return the number of recorded ranges.

    Raises `PerfHarnessError` if nsys left no readable trace.
    """
    from perfharness.trace import open_trace  # slow to import, rarely needed

    with tempfile.TemporaryDirectory(prefix="perfharness-") as name:
        folder = Path(name)
        program = folder / "trial_program.py"  # `-c` would put the current folder on the path
        program.write_text(TRIAL_PROGRAM)
        failure = ""
        try:
            command = profile_command(NsysTracing(nsys), folder, [python, str(program)])
            run_tool(command, folder, Interrupts(), TRIAL_TIMEOUT_S)
        except (ToolNotFoundError, ToolStoppedError):
            raise
        except LaunchError as error:  # a trace may exist nevertheless
            failure = str(error)
        reasons = [finding.message for finding in _collect_report(nsys, folder, Interrupts())]
        if trace_in(folder) is None:
            raise LaunchError("; ".join(reasons) or failure or f"{nsys.path} left no trace")
        return len(open_trace(folder / TRACE_NAME).ranges.start_ns)


def records_ranges(nsys: NsysInstall, python: str) -> bool:
    """Whether nsys records all ranges of a trial."""
    with contextlib.suppress(PerfHarnessError):
        return try_nsys(nsys, python) == TRIAL_RANGES
    return False
