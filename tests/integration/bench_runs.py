"""`perfharness bench` as a user calls it, with models of the fake backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from perfharness.model.bench import CaseResult
from perfharness.model.bench_suite import BenchSuiteResult
from tests.integration.launches import PATIENCE_S, environment, perfharness, processes_naming, wait_for
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model

FAST = FakeScript(execute_ms=0.2, per_item_ms=0.05)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "perfharness", *map(str, arguments)]


def bench(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return perfharness("bench", *arguments, **environ)


def start(*arguments: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*arguments), stdout=pipe, stderr=pipe, text=True, env=environment())


def write_suite(
    folder: Path,
    script: FakeScript = FAST,
    more: str = "",
    batch_sizes: str = "[1, 4]",
    backends: str = f'[[backend]]\nname = "{FAKE_BACKEND}"\n',
    passes: str = '["latency"]',
    model: str = '[[model]]\nsource = "net.py:create"\n',
) -> Path:
    write_model(folder / "net.py", script)
    path = folder / "suite.toml"
    path.write_text(
        f'batch_sizes = {batch_sizes}\ndevice = "cpu"\n{backends}\n{model}\n'
        f"[latency]\nwarmup = 2\niterations = 120\n[measure]\npasses = {passes}\n{more}\n"
    )
    return path


def suite_in(out: Path) -> BenchSuiteResult:
    return BenchSuiteResult.model_validate_json((out / "bench.json").read_text())


def cases_in(out: Path) -> dict[tuple[str, int], CaseResult]:
    """By mode and batch size."""
    return {(one.case.mode, one.case.batch_size): one for one in suite_in(out).cases}


def ended_in_the_middle(out: Path, number: signal.Signals, *arguments: object) -> tuple[int, str]:
    """Send a signal while a batch of 4 is measured; exit code and messages. No process is left."""
    with start("bench", *arguments) as process:
        try:
            wait_for(lambda: any(out.glob("cases/.*-b4.running/result.json")))
            os.kill(process.pid, number)
            said = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            process.kill()
    wait_for(lambda: not processes_naming(str(out)))
    return process.returncode, said
