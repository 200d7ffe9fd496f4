"""Several processes of one case on one device at once: what all of them finish while all of them are at work."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from perfharness.analysis.latency_statistics import latency_stats
from perfharness.analysis.throughput import throughput
from perfharness.bench.outcome import case_outcome, read_arrays
from perfharness.bench.spec import SPEC_NAME, CaseSpec
from perfharness.model import environment
from perfharness.model.bench import CaseResult, InstancesRecord
from perfharness.model.result import BatchLoop
from perfharness_launcher.barrier import start_barrier

FOLDER = "instances"
POLL_S = 0.01
BARRIER_TIMEOUT_S = 600.0
NS_PER_MS = 1e6

MIN_SECONDS = 2.0
"""Of the timed rounds: processes wake from the barrier milliseconds apart, which must be little of the window."""


def measure_instances(spec: CaseSpec, folder: Path) -> InstancesRecord:
    """Start `spec.instances` processes, hold them before their timed rounds until all are there, and let them go.

    Throughput is that of the window in which all were in their timed rounds; never instances divided by a latency.
    """
    folders = [folder / FOLDER / str(number) for number in range(spec.instances)]
    for one in folders:
        one.mkdir(parents=True, exist_ok=True)
        (one / SPEC_NAME).write_text(_alone(spec).model_dump_json())
    codes = _run(folders)
    results = [
        case_outcome(one, spec.case, code, stderr=_stderr(one)) for one, code in zip(folders, codes, strict=True)
    ]
    return conclude(folders, results, spec.case.batch_size)


def _alone(spec: CaseSpec) -> CaseSpec:
    """What one of the instances is told."""
    least = max(MIN_SECONDS, spec.latency.min_seconds)
    latency = spec.latency.model_copy(
        update={"until_stable": False, "min_seconds": least, "max_seconds": max(least, spec.latency.max_seconds)}
    )
    changes = {"passes": ("latency",), "instances": 1, "latency": latency, "spawned_unix_ns": time.time_ns()}
    return spec.model_copy(update=changes)


def conclude(folders: list[Path], results: list[CaseResult], batch_size: int) -> InstancesRecord:
    """What the instances left, put together."""
    for number, result in enumerate(results):
        if result.status != "ok":
            why = f"instance {number} of {len(results)} is {result.status}: {result.reason}"
            return InstancesRecord(instances=len(results), reason=why)
    loops = {str(number): [_loop(one, batch_size)] for number, one in enumerate(folders)}
    found = throughput(loops, clock_is_utc=True)
    together = found["concurrency"] or {}
    milliseconds = np.concatenate([(loop.end_ns - loop.start_ns) / NS_PER_MS for (loop,) in loops.values()])
    each = [(found["processes"][name].get("in_window") or {}).get("items_per_second") for name in loops]
    return InstancesRecord(
        instances=len(results),
        items_per_second=found["items_per_second"],
        window_ms=found["window_ms"],
        mean_running=together.get("mean_processes"),
        items_per_second_each=each,
        latency=latency_stats(milliseconds, sum(r.latency.warmup_iterations for r in results if r.latency is not None)),
        reason=found.get("reason"),
    )


def _loop(folder: Path, batch_size: int) -> BatchLoop:
    """Timed rounds as batches; the monotonic clock is the machine's, so that instances can be laid side by side."""
    arrays = read_arrays(folder)
    start = arrays["start_ns"]
    count = len(start)
    return BatchLoop(
        path=(FOLDER,),
        start_ns=start,
        end_ns=start + arrays["wall_ns"],
        items=np.full(count, float(batch_size)),
        warmup=np.zeros(count, dtype=np.bool_),
    )


def _run(folders: list[Path]) -> list[int]:
    """Exit codes of the processes, in order; none is left when this returns."""
    with ExitStack() as stack:
        control = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfharness-")))
        names = {number: str(number) for number in range(len(folders))}
        barrier = stack.enter_context(start_barrier(control, names, BARRIER_TIMEOUT_S))
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, processes)
        for number, folder in enumerate(folders):
            log = stack.enter_context((folder / "stderr.log").open("wb"))
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "perfharness.bench.case", str(folder / SPEC_NAME)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={
                        **os.environ,
                        environment.START_BARRIER: str(barrier.folder),
                        environment.PROCESS_INDEX: str(number),
                    },
                )
            )
        while any(process.poll() is None for process in processes):
            barrier.look({number for number, process in enumerate(processes) if process.poll() is not None})
            if barrier.is_open:
                break
            time.sleep(POLL_S)
        return [process.wait() for process in processes]


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def _stderr(folder: Path) -> str:
    try:
        return (folder / "stderr.log").read_text(errors="replace")
    except OSError:
        return ""
