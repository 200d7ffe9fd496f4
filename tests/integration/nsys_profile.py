"""`nsys profile` called by a test itself, without the launcher."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE_S = 240.0
TRIES = 3


def nsys_profile(
    nsys: str,
    report: Path,
    program: Sequence[str],
    environ: Mapping[str, str],
    *options: str,
    apis: str = "nvtx",
    output: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Record the NVTX ranges of a program, or what else `apis` names, into `report` (`*.nsys-rep`).

    Repeated where nsys itself fails, as it does once in a few hundred times on a busy machine: it leaves its raw
    recording where its importer failed, and ends with 1 where its two halves lost each other. The launcher imports such
    a recording again (perfharness_launcher/nsys/collect.py) and starts such an nsys again (processes/supervise.py).
    `output` is a folder that the program writes to, made anew each time.
    """
    command = [
        nsys,
        "profile",
        f"--trace={apis}",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        *options,
    ]
    command += [f"--output={report.with_suffix('')}", *program]
    recording = report.with_suffix(".qdstrm")
    for _ in range(TRIES):
        recording.unlink(missing_ok=True)
        if output is not None:
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir()
        done = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if not recording.exists() and done.returncode == 0:
            break
    assert not recording.exists(), done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    return done
