"""Rows about what runs inside the measured process: identity, forked workers, names, memory, secrets."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
ROOT = HERE.parents[1]
NSYS, NVTX_SITE = os.environ.get("PERFHARNESS_TEST_NSYS"), os.environ.get("PERFHARNESS_TEST_NVTX_SITE")


@dataclass
class Run:
    """What one launch left."""

    code: int
    seconds: float
    folder: Path
    pids: dict[int, int] = field(default_factory=dict)
    """Ranges in the trace by process."""

    @property
    def journals(self) -> dict[int, int]:
        """Ranges counted by process."""
        found = [json.loads(path.read_text()) for path in self.folder.glob("recorder*.json")]
        return {one["pid"]: sum(r["ranges"] for r in one["recorders"]) for one in found}

    @property
    def counted(self) -> dict[int, int]:
        return {pid: count for pid, count in self.journals.items() if count}

    @property
    def mean(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "benchmark.json").read_text())["mean_data"])


def launch(out: Path, script: str, *arguments: str, tracer: str = "embedded", nvtx: str | None = None) -> Run:
    options = ["-w", "0", "--no-telemetry", "--tracer", tracer, "-o", str(out)]
    if tracer == "nsys":
        options += ["--nsys", str(NSYS)]
    environment = {**os.environ, "PYTHONPATH": nvtx or ""}
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "perfharness", "launch", *options, str(SCRIPTS / script), *arguments],
        capture_output=True, env=environment, check=False, timeout=580,
    )  # fmt: skip
    run = Run(done.returncode, time.monotonic() - begin, out / "proc_0_gpu_0")
    trace = run.folder / "trace.sqlite"
    if trace.exists():
        with closing(sqlite3.connect(trace)) as connection:
            query = (
                "SELECT globalTid >> 24 & 0xFFFFFF, count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60) GROUP BY 1"
            )
            run.pids = dict(connection.execute(query))
    return run


def show(row: str, is_right: bool, found: str, right: str) -> bool:
    print(f"{'ok ' if is_right else 'BAD'}  {row}  {found}  (right: {right})", flush=True)
    return is_right


def identity(folder: Path, tracer: str, nvtx: str | None) -> list[bool]:
    run = launch(folder / "a", "two_recorders_asyncio.py", tracer=tracer, nvtx=nvtx)
    fast, slow = (run.mean[name]["batch"]["cpu_time"] for name in ("fast", "slow"))
    good = [show(f"two_recorders_asyncio {tracer}", run.code == 0 and slow > 45 > fast, f"slow {slow:.1f} ms", "50 ms")]
    run = launch(folder / "b", "two_recorders_same_name_asyncio.py", tracer=tracer, nvtx=nvtx)
    batch = run.mean["app"]["batch"]["cpu_time"]
    is_right = run.code == 0 and batch > 45 and run.pids == run.counted and sum(run.pids.values()) == 50
    found = f"batch {batch:.1f} ms, {sum(run.pids.values())} ranges"
    return [*good, show(f"two_recorders_same_name {tracer}", is_right, found, "50 ms, 50 ranges")]


def forks(folder: Path, tracer: str, nvtx: str | None) -> list[bool]:
    good = []
    cases = [("forkrec.py",), ("forkown.py", "both"), ("forkown.py", "own"), ("pool.py", "fork"), ("forkmix.py",)]
    cases += [("pool.py", "spawn")] if tracer == "embedded" else []
    for number, (script, *arguments) in enumerate(cases):
        run = launch(folder / f"f{number}", script, *arguments, tracer=tracer, nvtx=nvtx)
        if tracer == "embedded":
            is_right = run.code == 0 and run.pids == run.counted
        else:
            is_right = run.code == (0 if run.pids == run.counted else 3)
        found = f"exit {run.code}, {sum(run.pids.values())} of {sum(run.counted.values())} ranges, {len(run.pids)} pids"
        right = "all" if tracer == "embedded" else "all, or exit 3"
        good.append(show(f"{' '.join((script, *arguments))} {tracer}", is_right, found, right))
    return good


def names(folder: Path, tracer: str, nvtx: str | None) -> list[bool]:
    run = launch(folder / "s", "sur.py", tracer=tracer, nvtx=nvtx)
    is_right = run.code == 0 and sum(run.pids.values()) == 13 and "end" in (run.folder / "stdout.log").read_text()
    return [show(f"sur.py {tracer}", is_right, f"exit {run.code}, {sum(run.pids.values())} ranges", "0, 13")]


def size(folder: Path) -> list[bool]:
    good = []
    for script, *arguments in [
        ("unbal_nvtx.py", "6000"),
        ("deep.py", "deep", "5000"),
        ("deep.py", "distinct", "20000"),
    ]:
        out = folder / "".join(arguments)
        inside = {**os.environ, "PERFHARNESS_OUTPUT_DIR": str(out), "PERFHARNESS_TRACER": "embedded"}
        done = subprocess.run(
            ["/usr/bin/env", sys.executable, "-m", "perfharness.tracer", str(SCRIPTS / script), *arguments],
            env=inside, capture_output=True, check=False, timeout=300,
        )  # fmt: skip
        trace_bytes = (out / "trace.sqlite").stat().st_size
        is_right = done.returncode == 0 and trace_bytes < 20_000_000
        found = f"exit {done.returncode}, trace {trace_bytes / 1e6:.1f} MB"
        good.append(show(" ".join((script, *arguments)) + " (process)", is_right, found, "linear, no error"))
    run = launch(folder / "grow", "grow.py", "20000")
    lines = (run.folder / "stdout.log").read_text().splitlines()
    grown = [float(line.split()[5 - 1]) for line in lines if "bytes per range" in line][1:]
    good.append(show("grow.py 20000", max(grown[1:]) < 20, f"{max(grown[1:]):.1f} bytes a range", "0, was 176"))
    return good


def secrets(folder: Path) -> list[bool]:
    arguments = ["--api-key", "SECRET_KEY", "--url", "https://me:SECRET_URL@h/", "--bearer", "SECRET_BEARER"]
    arguments += ["--db-dsn", "SECRET_DSN", "--hf_token", "SECRET_HF"]
    umask = os.umask(0o077)
    try:
        run = launch(folder / "sec", "sec.py", *arguments)
    finally:
        os.umask(umask)
    path = run.folder / "recorder.json"
    text, mode = path.read_text(), path.stat().st_mode & 0o777
    found = f"{text.count('SECRET_')} secrets, mode {mode:o}"
    return [show("sec.py: recorder.json", "SECRET_" not in text and mode == 0o600, found, "0, 600")]


def main() -> int:
    good: list[bool] = []
    tracers: list[tuple[str, str | None]] = [("embedded", None)]
    if NSYS and NVTX_SITE:
        tracers.append(("nsys", NVTX_SITE))
    with tempfile.TemporaryDirectory() as temporary:
        for tracer, nvtx in tracers:
            folder = Path(temporary) / tracer
            folder.mkdir()
            good += [*identity(folder, tracer, nvtx), *forks(folder, tracer, nvtx), *names(folder, tracer, nvtx)]
        good += [*size(Path(temporary)), *secrets(Path(temporary))]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
