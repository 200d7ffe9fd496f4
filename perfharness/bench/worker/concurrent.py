"""Measure one case several times concurrently: instances (processes) and streams (threads of one process)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.analysis.stages.throughput import throughput
from perfharness.analysis.suites.latency_statistics import latency_stats
from perfharness.bench.process import read_arrays, result_of, run_process, run_processes
from perfharness.bench.spec import CaseSpec
from perfharness.bench.worker.latency import Timed
from perfharness.model.bench import InstancesRecord, StreamsRecord
from perfharness.model.result import BatchLoop
from perfharness_launcher.interrupts import Interrupts

MIN_SECONDS = 2.0
"""Of the timed rounds: participants start milliseconds apart, which must be a small part of the window."""

MOST_ITERATIONS = 1_000_000
"""Rounds of a two-microsecond model in that time; a smaller limit would shorten the window."""

BARRIER_TIMEOUT_S = 600.0
STREAMS_ENTRY = "perfharness.bench.worker.streams"


def concurrent_spec(spec: CaseSpec, **changes: Any) -> CaseSpec:
    """Spec for a concurrent process: latency only, for at least MIN_SECONDS."""
    least = max(MIN_SECONDS, spec.latency.min_seconds)
    latency = spec.latency.model_copy(
        update={
            "until_stable": False,
            "min_seconds": least,
            "max_seconds": max(least, spec.latency.max_seconds),
            "max_iterations": max(MOST_ITERATIONS, spec.latency.max_iterations),
        }
    )
    changed = {"passes": ("latency",), "instances": 1, "streams": 1, "latency": latency, **changes}
    return spec.model_copy(update=changed)


def concurrent_figures(timed: Sequence[Timed], batch_size: int, warmup_iterations: int, who: str) -> dict[str, Any]:
    """Combined throughput in the window in which all ran timed rounds, as fields of the result.

    A round on the border of the window counts by the fraction inside. It is not their number divided by a latency.

    Args:
        timed: rounds of each, on one clock.
        warmup_iterations: in total.
        who: their name, in the plural.
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
    """The rounds, and an empty one at the end of the last, so that the last counts as a period too."""
    end = timed.start_ns + timed.wall_ns
    is_end = np.r_[np.zeros(len(end), dtype=np.bool_), True]
    return BatchLoop(
        path=("rounds",),
        start_ns=np.r_[timed.start_ns, end[-1:]],
        end_ns=np.r_[end, end[-1:]],
        items=np.where(is_end, 0.0, float(batch_size)),
        warmup=is_end,
    )


def measure_instances(spec: CaseSpec, folder: Path) -> InstancesRecord:
    """Start `spec.instances` processes, which begin their timed rounds together at a barrier."""
    count = spec.instances
    folders = [folder / "instances" / str(number) for number in range(count)]
    ends = run_processes([concurrent_spec(spec)] * count, folders, Interrupts(), barrier_timeout_s=BARRIER_TIMEOUT_S)
    results = [result_of(end, spec.case, one) for one, end in zip(folders, ends, strict=True)]
    for number, result in enumerate(results):
        if result.status != "ok":
            why = f"instance {number} of {count} is {result.status}: {result.reason}"
            return InstancesRecord(instances=count, reason=why)
    # The monotonic clock is shared by all processes of the machine.
    timed = [Timed(arrays["start_ns"], arrays["wall_ns"]) for arrays in map(read_arrays, folders)]
    warmup = sum(result.latency.warmup_iterations for result in results if result.latency is not None)
    return InstancesRecord(instances=count, **concurrent_figures(timed, spec.case.batch_size, warmup, "instances"))


def measure_streams(spec: CaseSpec, folder: Path) -> StreamsRecord:
    """Measure in a separate process: its memory and its exit are not the case's."""
    alone, place = concurrent_spec(spec, streams=spec.streams), folder / "streams"
    result = result_of(run_process(alone, place, Interrupts(), entry=STREAMS_ENTRY), spec.case, place)
    if result.streams is None:
        why = f"the process with {spec.streams} streams is {result.status}: {result.reason}"
        return StreamsRecord(streams=spec.streams, memory=result.memory, reason=why)
    return result.streams
