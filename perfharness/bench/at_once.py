"""What several that measure one case finish while all are at work: instances (processes) and streams (threads)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.analysis.latency_statistics import latency_stats
from perfharness.analysis.throughput import throughput
from perfharness.bench.latency import Timed
from perfharness.bench.spec import SPEC_NAME, CaseSpec
from perfharness.boot import without_current_folder
from perfharness.model.result import BatchLoop
from perfharness_launcher.spawn import STDERR_LOG

MIN_SECONDS = 2.0
"""Of the timed rounds: whoever is let go wakes milliseconds after the others, which must be little of the window."""

MOST_ITERATIONS = 1_000_000
"""Rounds in that time, of a model of two microseconds; a smaller limit would cut the time, and the window, short."""

Process = subprocess.Popen[bytes]


def measured_at_once(spec: CaseSpec, **changes: Any) -> CaseSpec:
    """What a process is told that is to measure a case beside others: the latency only, and for long enough."""
    least = max(MIN_SECONDS, spec.latency.min_seconds)
    latency = spec.latency.model_copy(
        update={
            "until_stable": False,
            "min_seconds": least,
            "max_seconds": max(least, spec.latency.max_seconds),
            "max_iterations": max(MOST_ITERATIONS, spec.latency.max_iterations),
        }
    )
    told = {"passes": ("latency",), "instances": 1, "streams": 1, "latency": latency, **changes}
    return spec.model_copy(update={**told, "spawned_unix_ns": time.time_ns()})


def finished_at_once(timed: Sequence[Timed], batch_size: int, warmup_iterations: int, who: str) -> dict[str, Any]:
    """What all of them finished in the window in which all were in their timed rounds, as fields of the result.

    A round on the border of the window counts by the part of it that lies inside. It is never their number divided by a
    latency.

    Args:
        timed: rounds of each, on one clock.
        warmup_iterations: of all together.
        who: what they are called, in the plural.
    """
    loops = {str(number): [_loop(one, batch_size)] for number, one in enumerate(timed)}
    found = throughput(loops, clock_is_utc=True)
    if found["items_per_second"] is None:
        return {"reason": f"the {who} were not in their timed rounds together for long enough ({found['reason']})"}
    each = [(found["processes"][name]["in_window"] or {}).get("items_per_second") for name in loops]
    return {
        "items_per_second": found["items_per_second"],
        "window_ms": found["window_ms"],
        "mean_running": found["concurrency"]["mean_processes"],
        "items_per_second_each": each,
        "latency": latency_stats(np.concatenate([one.milliseconds for one in timed]), warmup_iterations, pooled=True),
    }


def _loop(timed: Timed, batch_size: int) -> BatchLoop:
    """The rounds, and an empty one where the last ends: nothing comes between rounds, so that the last is a period."""
    end = timed.start_ns + timed.wall_ns
    is_end = np.r_[np.zeros(len(end), dtype=np.bool_), True]
    return BatchLoop(
        path=("rounds",),
        start_ns=np.r_[timed.start_ns, end[-1:]],
        end_ns=np.r_[end, end[-1:]],
        items=np.where(is_end, 0.0, float(batch_size)),
        warmup=is_end,
    )


@contextmanager
def started(module: str, spec: CaseSpec, folder: Path, variables: Mapping[str, str]) -> Iterator[Process]:
    """A process of `module` that is told `spec`, and that is not there any more afterwards.

    Args:
        folder: of its own, which is made; its `stderr.log` has all that it writes.
        variables: of its environment, over this process's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC_NAME).write_text(spec.model_dump_json())
    with (folder / STDERR_LOG).open("wb") as log:
        process = subprocess.Popen(
            without_current_folder([sys.executable, "-m", module, str(folder / SPEC_NAME)]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **variables},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
