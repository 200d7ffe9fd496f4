"""An engine in a process of its own: a crash, or memory that has run out, ends that one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from perfharness.bench.compare_engines.model import (
    IMAGE_FOLDER,
    JOB_NAME,
    MAPS_FOLDER,
    RESULT_NAME,
    WALL_NAME,
    EngineJob,
    EngineResult,
)
from perfharness.bench.process import run_supervised
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.processes.outcome import last_said, signal_name
from perfharness_launcher.processes.spawn import STDERR_LOG, STDOUT_LOG
from perfharness_launcher.processes.supervise import Observer

OF_A_RUN = (RESULT_NAME, IMAGE_FOLDER, MAPS_FOLDER, WALL_NAME, TELEMETRY_NAME, STDOUT_LOG, STDERR_LOG)
ENTRY = "perfharness.bench.compare_engines.engine"


def run_job(
    job: EngineJob, folder: Path, environment: Mapping[str, str], timeout_s: float | None, interrupts: Interrupts
) -> EngineResult:
    """Run an engine in a folder of its own, which is made; what became of it.

    Args:
        environment: over this process's own.
        timeout_s: of the whole process; None: as long as it takes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in OF_A_RUN:  # of a comparison before this one
        if (folder / old).is_dir():
            shutil.rmtree(folder / old)
        (folder / old).unlink(missing_ok=True)
    (folder / JOB_NAME).write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")
    command = (sys.executable, "-m", ENTRY, str((folder / JOB_NAME).absolute()))
    end = run_supervised(command, folder, interrupts, Observer(), timeout_s=timeout_s, environment=environment)
    if end.interrupted:
        return not_run(job, "it was interrupted")
    return outcome(job, folder, end.return_code, timeout_s if end.timed_out else None, end.reason)


def not_run(job: EngineJob, reason: str) -> EngineResult:
    """Of an engine of which nothing is known."""
    return EngineResult(
        name=job.name, engine=job.engine, backend=job.backend, device=job.device, status="not-run", reason=reason
    )


def outcome(
    job: EngineJob, folder: Path, return_code: int | None, timed_out_s: float | None, not_started: str | None = None
) -> EngineResult:
    """What its files and its exit say; what it had measured before a crash is kept."""
    if return_code is None:
        return not_run(job, not_started or "it was not started")
    try:
        result = EngineResult.model_validate_json((folder / RESULT_NAME).read_text())
    except (OSError, ValidationError):
        result = EngineResult(name=job.name, engine=job.engine, backend=job.backend, device=job.device)
    if timed_out_s is not None:
        reason = f"it had not ended after {timed_out_s:g} s, and was ended; allow more by --timeout"
        return result.model_copy(update={"status": "timeout", "reason": reason})
    if return_code == 0 or (return_code == 1 and result.reason not in (None, "it has not come to its end")):
        return result
    said = last_said((folder / STDERR_LOG).read_text(errors="replace"))
    how = f"was ended by {signal_name(-return_code)}" if return_code < 0 else f"ended with exit code {return_code}"
    return result.model_copy(update={"status": "failed", "reason": f"its process {how}{said}"})
