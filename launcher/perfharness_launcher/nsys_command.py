"""The command lines of nsys and its importer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfharness.errors import ToolNotFoundError
from perfharness.model.plan import NsysInstall

REPORT_STEM = "trace"

WANTED_OPTIONS = (
    ("sample", "none"),  # no CPU sampling and no context switches: both cost, and need rights that few have
    ("cpuctxsw", "none"),
    ("trace-fork-before-exec", "true"),  # workers made by fork() record their ranges too
    ("wait", "primary"),  # a daemon that the script leaves behind must not hold the run up
    ("force-overwrite", "true"),
)
"""Taken where this nsys has them; the CUDA graph granularity is left as it is, for `node` costs too much."""


def profile_command(
    nsys: NsysInstall, folder: Path, command: Sequence[str], *, cuda: bool, os_calls: bool = False
) -> list[str]:
    """`nsys profile` around `command`, its report in `folder`.

    Args:
        cuda: False on a machine without a GPU, where tracing CUDA would only bring warnings.
        os_calls: whether the operating system's calls are recorded.
    """
    options = [f"--{name}={value}" for name, value in WANTED_OPTIONS if name in nsys.profile_options]
    trace = ("cuda,nvtx" if cuda else "nvtx") + (",osrt" if os_calls else "")
    output = str(folder / REPORT_STEM).replace("%", "%%")  # `%p` and the like are replaced by nsys
    return [str(nsys.path), "profile", f"--trace={trace}", *options, f"--output={output}", *command]


def import_command(nsys: NsysInstall, recording: Path, report: Path) -> list[str]:
    """The importer, for a recording (`.qdstrm`) that nsys left as it was."""
    if nsys.importer is None:
        raise ToolNotFoundError(f"{recording.name} cannot be imported: no importer belongs to {nsys.path}")
    return [str(nsys.importer), "--input-file", str(recording), "--output-file", str(report), "--force-overwrite"]


def export_command(nsys: NsysInstall, report: Path, database: Path) -> list[str]:
    """`nsys export` to sqlite."""
    return [
        str(nsys.path),
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        "--quiet=true",
        f"--output={database}",
        str(report),
    ]
