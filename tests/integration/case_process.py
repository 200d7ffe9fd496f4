"""A case of the benchmark in a real process, for tests of its files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from perfharness.bench.process import CaseEnd, result_of
from perfharness.bench.spec import CASE_ENTRY, SPEC_NAME, CaseSpec
from perfharness.model.bench import CaseResult
from perfharness_launcher.hold import STARTED
from perfharness_launcher.process import STDERR_LOG
from tests.integration.launches import CHECKOUT


def run_case(folder: Path, spec: CaseSpec, *, timeout_s: float = 300, **environ: str) -> tuple[CaseResult, int]:
    """Run a case in a folder, which is made if need be; its row, and the exit code.

    Args:
        environ: variables over this process's own.
    """
    folder.mkdir(exist_ok=True)
    (folder / SPEC_NAME).write_text(spec.model_dump_json())
    with (folder / STDERR_LOG).open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", CASE_ENTRY, str(folder / SPEC_NAME)],
            stdout=log,
            stderr=log,
            check=False,
            cwd=CHECKOUT,
            env={**os.environ, STARTED: str(time.time_ns()), **environ},
            timeout=timeout_s,
        )
    print((folder / STDERR_LOG).read_text(errors="replace"))  # seen where the test fails
    return result_of(CaseEnd(exit_code=done.returncode), spec.case, folder), done.returncode
