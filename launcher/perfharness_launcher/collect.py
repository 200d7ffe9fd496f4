"""Turn what the tracers left into `trace.sqlite`, and what they said into findings."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import LaunchError, ToolNotFoundError
from perfharness.model.findings import Finding, Severity
from perfharness.model.plan import NsysInstall
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys_command import REPORT_STEM, export_command, import_command
from perfharness_launcher.spawn import TRACER_LOG

TRACE = "trace.sqlite"
TOOL_TIMEOUT_S = 1800.0
POLL_S = 0.1

TROUBLE = re.compile(r"\b(error|warning|fatal|failed|unable|cannot|not supported|dropped|incomplete)\b", re.IGNORECASE)
SEVERE = re.compile(r"\b(error|fatal|failed|dropped|incomplete)\b", re.IGNORECASE)
HARMLESS = re.compile(
    r"the application terminated before the collection|paranoid|sampling (is )?(not|disabled)", re.IGNORECASE
)
MAX_LINES = 5


@dataclass(frozen=True)
class Collected:
    """The trace of one process, None where there is none, and what is to be said about it."""

    trace: str | None
    findings: tuple[Finding, ...]


def collect(
    nsys: NsysInstall | None, folders: Sequence[Path], interrupts: Interrupts, patience_s: float = TOOL_TIMEOUT_S
) -> list[Collected]:
    """Collect every folder, several at once. Without nsys the embedded tracer has written its file already."""
    workers = max(1, min(len(folders), len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(lambda folder: collect_one(nsys, folder, interrupts, patience_s), folders))


def collect_one(
    nsys: NsysInstall | None, folder: Path, interrupts: Interrupts, patience_s: float = TOOL_TIMEOUT_S
) -> Collected:
    """Import and export as far as needed."""
    trace = folder / TRACE
    if nsys is None:
        log = folder / TRACER_LOG
        if log.exists() and log.stat().st_size == 0:
            log.unlink()
        return Collected(TRACE if trace.exists() else None, ())
    findings = tracer_findings(folder / TRACER_LOG, folder.name, ignore_import=not nsys.importer_beside)
    report = folder / f"{REPORT_STEM}.nsys-rep"
    recording = folder / f"{REPORT_STEM}.qdstrm"
    try:
        if not report.exists() and recording.exists():
            _run_tool(import_command(nsys, recording, report), folder, interrupts, patience_s)
            if report.exists():
                recording.unlink()  # all of it is in the report now
        if report.exists():
            _run_tool(export_command(nsys, report, trace), folder, interrupts, patience_s)
    except (LaunchError, OSError) as error:
        findings.append(
            Finding(
                "trace-import-failed",
                Severity.ERROR,
                f"the recording of {folder.name} could not be turned into {TRACE}: {error}",
                "perfharness doctor says what this nsys lacks; the recording is kept and can be imported elsewhere",
                folder.name,
            )
        )
    whole = trace.exists() and trace.stat().st_size > 0
    return Collected(TRACE if whole else None, tuple(findings))


def tracer_findings(log: Path, process: str, *, ignore_import: bool = False) -> list[Finding]:
    """What nsys itself complained of while it recorded; one finding for all of it, with the first lines.

    Args:
        ignore_import: nsys could not import by itself, which was known and is made up for.
    """
    lines = [line.strip() for line in _lines(log)]
    complaints = [line for line in lines if TROUBLE.search(line) and not HARMLESS.search(line)]
    if ignore_import:
        complaints = [line for line in complaints if "import" not in line.lower()]
    if not complaints:
        return []
    severe = any(SEVERE.search(line) for line in complaints)
    more = f" (and {len(complaints) - MAX_LINES} more)" if len(complaints) > MAX_LINES else ""
    return [
        Finding(
            "tracer-complained",
            Severity.ERROR if severe else Severity.WARNING,
            f"nsys said: {' | '.join(dict.fromkeys(complaints[:MAX_LINES]))}{more}",
            f"all of it is in {process}/{log.name}",
            process,
        )
    ]


def _lines(log: Path) -> list[str]:
    """The lines of a log, progress bars (which return to the start of their line) left out."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return []
    return [line for line in re.split(r"[\r\n]+", text) if line.strip() and not re.search(r"\[\s*=*\s*\d+%", line)]


def _run_tool(
    command: Sequence[str],
    folder: Path,
    interrupts: Interrupts,
    patience_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run one of nsys's tools, its output at the end of the tracer's log; a second Ctrl-C ends it."""
    deadline = clock() + patience_s
    asked_before = max(interrupts.count, 1)
    with (folder / TRACER_LOG).open("ab") as log:
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
                    if clock() > deadline or interrupts.count > asked_before:
                        tool.kill()
    if tool.returncode:
        said = (folder / TRACER_LOG).read_bytes()[start:].decode(errors="replace")
        last = [line.strip() for line in re.split(r"[\r\n]+", said) if line.strip()][-3:]
        raise LaunchError(f"{Path(command[0]).name} ended with {tool.returncode}: {' | '.join(last) or 'no output'}")
