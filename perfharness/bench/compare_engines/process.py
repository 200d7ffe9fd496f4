"""An engine in a process of its own: a crash, or memory that has run out, ends that one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
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
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness_launcher.outcome import last_said, signal_name
from perfharness_launcher.spawn import STDERR_LOG, STDOUT_LOG

OF_A_RUN = (RESULT_NAME, IMAGE_FOLDER, MAPS_FOLDER, WALL_NAME, TELEMETRY_NAME)
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from perfharness.bench.compare_engines.engine import main; sys.exit(main(sys.argv[1:]))"
)
"""The child finds what this process finds, whatever lies in the folder that it starts in."""


def run_job(job: EngineJob, folder: Path, environment: Mapping[str, str], timeout_s: float | None) -> EngineResult:
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
    paths = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - "" is the current folder
    command = [sys.executable, "-I", "-c", _BOOT, json.dumps(paths), str(folder / JOB_NAME)]
    with (folder / STDOUT_LOG).open("wb") as out, (folder / STDERR_LOG).open("wb") as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        timed_out = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:  # an interrupt ends it too, with all that it started
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return outcome(job, folder, process.returncode, timeout_s if timed_out else None)


def outcome(job: EngineJob, folder: Path, return_code: int, timed_out_s: float | None) -> EngineResult:
    """What its files and its exit say; what it had measured before a crash is kept."""
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
