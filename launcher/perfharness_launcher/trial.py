"""Try an nsys for real: whether it records, imports and exports what this interpreter's nvtx says."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import PerfHarnessError
from perfharness.model.plan import NsysInstall
from perfharness.trace import open_trace
from perfharness_launcher.collect import collect_one
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys_command import profile_command
from perfharness_launcher.spawn import TRACER_LOG

RANGES = 2
TIMEOUT_S = 120
PROGRAM = f"""
import nvtx
for _ in range({RANGES}):
    nvtx.push_range("trial", domain="perfharness.trial")
    nvtx.pop_range(domain="perfharness.trial")
"""


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Args:
        ranges: how many of the `RANGES` stand in the trace; None where there was no trace to look into.
        said: why not, in words; empty where all went well.
    """

    ranges: int | None
    said: str = ""

    @property
    def hears_nvtx(self) -> bool:
        """Whether every range was recorded."""
        return self.ranges == RANGES


def try_nsys(nsys: NsysInstall, python: str) -> Trial:
    """Trace a tiny program that makes two NVTX ranges; takes a second or two."""
    with tempfile.TemporaryDirectory(prefix="perfharness-") as name:
        folder = Path(name)
        (folder / "trial_program.py").write_text(PROGRAM)  # `-c` would have the current folder on its path
        command = profile_command(nsys, folder, [python, str(folder / "trial_program.py")], cuda=False)
        try:
            with (folder / TRACER_LOG).open("wb") as log:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=TIMEOUT_S,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Trial(None, f"{nsys.path} could not run a program of two ranges: {error}")
        collected = collect_one(nsys, folder, Interrupts(), TIMEOUT_S)
        if collected.trace is None:
            said = "; ".join(finding.message for finding in collected.findings)
            return Trial(None, said or f"{nsys.path} ended with {done.returncode} and left no trace")
        try:
            ranges = open_trace(folder / collected.trace).ranges
        except PerfHarnessError as error:
            return Trial(None, str(error))
        count = len(ranges.start_ns)
        return Trial(count, "" if count == RANGES else f"{count} of {RANGES} ranges were recorded")
