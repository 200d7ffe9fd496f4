"""An `.nsys-rep` as sqlite: exported by an installed nsys next to the report, again when the report is newer."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from perfharness.errors import ToolNotFoundError, TraceFormatError
from perfharness_launcher.nsys.command_line import NsysInstall, export_command

REPORT_SUFFIX = ".nsys-rep"


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
