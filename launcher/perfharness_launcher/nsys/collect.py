"""Turn what the tracers left into `trace.sqlite`, and what they logged into findings."""

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

from perfharness.errors import LaunchError, ToolNotFoundError, TraceFormatError
from perfharness.model.findings import Finding, Severity
from perfharness.model.nsys_schema import TRACE_NAME
from perfharness.tracer.range_log import LOG_PREFIX, LOG_SUFFIX
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys.command_line import (
    REPORT_STEM,
    TRACER_LOG,
    NsysInstall,
    export_command,
    import_command,
)

REPORT_SUFFIX = ".nsys-rep"
TOOL_TIMEOUT_S = 1800.0
POLL_S = 0.1

TROUBLE = re.compile(r"\b(error|warning|fatal|failed|unable|cannot|not supported|dropped|incomplete)\b", re.IGNORECASE)
SEVERE = re.compile(r"\b(error|fatal|failed|dropped|incomplete)\b", re.IGNORECASE)
HARMLESS = re.compile(
    r"the application terminated before the collection|paranoid|sampling (is )?(not|disabled)", re.IGNORECASE
)
MAX_LINES = 5

IMPORTS = 2
"""Importers of nsys fail now and then (2023.4: two of 600 imports of the same recording, with "AnalysisFailed" or a
crash), and the report that such a one leaves lacks some of the recording. The next import of it succeeds."""
IMPORT_STATUS = "Importer error status:"
OF_IMPORT = re.compile(r"\bimport(ed|er|ing|ation)?\b|qdstrm", re.IGNORECASE)


@dataclass(frozen=True)
class Collected:
    """The trace of one process, None where there is none, and findings about it."""

    trace: str | None
    findings: tuple[Finding, ...]


def collect(nsys: NsysInstall | None, folders: Mapping[Path, int | None], interrupts: Interrupts) -> list[Collected]:
    """Collect every folder, several concurrently. Without nsys the embedded tracer has written its file already.

    Args:
        folders: of the launched processes, each with its pid.
    """
    workers = max(1, min(len(folders), len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(lambda one: collect_one(nsys, one[0], interrupts, launched_pid=one[1]), folders.items()))


def collect_one(
    nsys: NsysInstall | None,
    folder: Path,
    interrupts: Interrupts,
    patience_s: float = TOOL_TIMEOUT_S,
    *,
    launched_pid: int | None = None,
) -> Collected:
    """Import and export as far as needed."""
    trace = folder / TRACE_NAME
    if nsys is None:
        log = folder / TRACER_LOG
        if log.exists() and log.stat().st_size == 0:
            log.unlink()
        return _complete(folder, launched_pid)
    lines = log_lines(folder / TRACER_LOG)
    if not nsys.finds_importer:
        lines = without_import(lines)  # nsys could not import by itself: known, and made up for
    failures: list[Finding] = []
    report = folder / f"{REPORT_STEM}{REPORT_SUFFIX}"
    recording = folder / f"{REPORT_STEM}.qdstrm"
    try:
        if recording.exists():  # nsys leaves it only where its own import failed
            lines = [*without_import(lines), *_import(nsys, recording, report, folder, interrupts, patience_s)]
    except (LaunchError, OSError) as error:
        if report.exists():
            what = f"the report of {folder.name} is what a failed import left, and another import failed too"
        else:
            what = f"the recording of {folder.name} could not be turned into a report"
        failures.append(_import_failed(folder, recording, f"{what}: {error}"))
    try:
        if report.exists():
            run_tool(export_command(nsys, report, trace), folder, interrupts, patience_s)
    except (LaunchError, OSError) as error:
        what = f"the report of {folder.name} could not be turned into {TRACE_NAME}"
        failures.append(_import_failed(folder, report, f"{what}: {error}"))
    whole = trace.exists() and trace.stat().st_size > 0
    return Collected(TRACE_NAME if whole else None, (*tracer_findings(lines, folder.name), *failures))


def _complete(folder: Path, launched_pid: int | None) -> Collected:
    """The embedded tracer's files, and those made of what processes left that were killed, or left that to us."""
    from perfharness.tracer.output import complete_traces  # here, for verbs that read a run need no tracer

    trace = folder / TRACE_NAME
    try:
        complete_traces(folder, launched_pid)
    except (OSError, sqlite3.Error) as error:
        message = f"the ranges that processes left in {folder.name} could not be put into {TRACE_NAME}: {error}"
        hint = f"make room on the disk; `perfharness analyze` takes {LOG_PREFIX}*{LOG_SUFFIX} in then"
        finding = Finding("trace-import-failed", Severity.ERROR, message, hint, folder.name)
        return Collected(TRACE_NAME if trace.exists() else None, (finding,))
    return Collected(TRACE_NAME if trace.exists() else None, ())


def _import_failed(folder: Path, kept: Path, message: str) -> Finding:
    hint = f"perfharness doctor says what this nsys lacks; {kept.name} is kept and can be read elsewhere"
    return Finding("trace-import-failed", Severity.ERROR, message, hint, folder.name)


def tracer_findings(lines: Sequence[str], process: str) -> list[Finding]:
    """Complaints of nsys among the lines of its log; one finding for all of them, with the first lines."""
    complaints = _complaints(lines)
    if not complaints:
        return []
    severe = any(SEVERE.search(line) for line in complaints)
    more = f" (and {len(complaints) - MAX_LINES} more)" if len(complaints) > MAX_LINES else ""
    return [
        Finding(
            "tracer-complained",
            Severity.ERROR if severe else Severity.WARNING,
            f"nsys printed: {' | '.join(dict.fromkeys(complaints[:MAX_LINES]))}{more}",
            f"all of it is in {process}/{TRACER_LOG}",
            process,
        )
    ]


def without_import(lines: Sequence[str]) -> list[str]:
    """Lines of nsys about everything but its own import, whose error can be of many lines."""
    kept = []
    of_import = False
    for line in lines:
        of_import = line.startswith(IMPORT_STATUS) or (of_import and not line.startswith("Generated"))
        if not of_import and not OF_IMPORT.search(line):
            kept.append(line)
    return kept


def log_lines(log: Path) -> list[str]:
    """The lines of a log; none where there is no log."""
    try:
        return _lines(log.read_text(errors="replace"))
    except OSError:
        return []


def _lines(text: str) -> list[str]:
    """The lines that a tool printed, progress bars (which return to the start of their line) left out."""
    lines = (line.strip() for line in re.split(r"[\r\n]+", text))
    return [line for line in lines if line and not re.search(r"\[\s*=*\s*\d+%", line)]


def _complaints(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if TROUBLE.search(line) and not HARMLESS.search(line)]


def _import(
    nsys: NsysInstall, recording: Path, report: Path, folder: Path, interrupts: Interrupts, patience_s: float
) -> list[str]:
    """Make the report from the recording, in place of one that a failed import left; then the recording goes.

    Returns:
        What the importer printed.

    Raises:
        LaunchError: it failed each time. A report that was there stays as it was.
    """
    asked_before = interrupts.count
    made = report.with_name(f"{REPORT_STEM}.again.nsys-rep")
    command = import_command(nsys, recording, made)
    try:
        for left in reversed(range(IMPORTS)):
            try:
                lines = run_tool(command, folder, interrupts, patience_s)
                break
            except ToolStoppedError:
                raise
            except LaunchError:
                if not left or interrupts.count > asked_before:
                    raise
        made.replace(report)
    finally:
        made.unlink(missing_ok=True)
    recording.unlink()  # all of it is in the report now
    return lines


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
        start = log.tell()
        try:
            tool = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise ToolNotFoundError(f"{command[0]} cannot be started: {error.strerror}") from error
        with tool:
            while True:
                try:
                    tool.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    if interrupts.count > asked_before:
                        stopped = "by an interrupt"
                    elif time.monotonic() > deadline:
                        stopped = f"after {patience_s:.0f} s"
                    if stopped:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(tool.pid, signal.SIGKILL)
    if stopped and tool.returncode:
        raise ToolStoppedError(f"{name} was stopped {stopped}")
    lines = _lines((folder / TRACER_LOG).read_bytes()[start:].decode(errors="replace"))
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
    """Export next to the target and move it there; returns what went wrong, or None."""
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
