"""Scaling curve of `--np-sweep`: numbers of processes per GPU against the smallest one, and the knee."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from perfharness.model.result import Tree
from perfharness.runs.files.run_folder import RunSummary
from perfharness.runs.series.model import WHOLE, SeriesRow

WORTH_IT = 0.5
"""Share of the first process's throughput that another process must add."""

UNSTEADY = 1.05
"""Larger efficiency is noise of the machine."""

CONTENTION = "cpu-contention"

POWER = ("power_sample_w", "power_instant_w", "power_average_w")
"""Best resolution first."""

RATE, P50 = "items_per_second", "latency_p50_ms"


def process_figures(summary: RunSummary) -> dict[str, float | None]:
    """Throughput, latency per batch over all processes, and use of the sampled GPUs."""
    throughput = summary.mean["throughput"]
    latency = _latency(summary)
    gpus = (summary.mean.get("gpu_metrics") or {}).get("gpus") or ()
    busy = all_known([gpu["busy_share"] for gpu in gpus])
    means = [[gpu["figures"].get(name, {}).get("mean") for name in POWER] for gpu in gpus]
    powers = all_known([next((watts for watts in of_gpu if watts is not None), None) for of_gpu in means])
    return {
        RATE: throughput["items_per_second"],
        "window_ms": throughput["window_ms"],
        "mean_processes_inside_a_batch": (throughput["concurrency"] or {}).get("mean_processes"),
        P50: latency.get("p50"),
        "latency_p99_ms": latency.get("p99"),
        "gpu_busy_share": sum(busy) / len(busy) if busy else None,
        "gpu_power_w": sum(powers) if powers else None,
    }


def all_known(values: Sequence[float | None]) -> list[float]:
    """Return the values, or an empty list if one is missing."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _latency(summary: RunSummary) -> Tree:
    """Times of the batches, if all processes have the same single loop."""
    paths = {loop.path for result in summary.results.values() for loop in result.loops}
    if len(paths) != 1:
        return {}
    tree = summary.mean["stats_minus_warmup"]
    for name in paths.pop():
        tree = tree.get(name, {})
    return tree.get("cpu_time") or {}


def scaling_of(rows: Sequence[SeriesRow]) -> dict[str, Any]:
    """Fields of a series: rows with speed-up, knee of the curve, and conclusion.

    `speedup` is the throughput relative to the base (the smallest number of processes), `efficiency` the speed-up per
    process, and `slowdown` its inverse.
    """
    measured = sorted((row for row in rows if rate_of(row)), key=lambda row: row.num_processes)
    knee, conclusion = _knee(measured)
    scaled = [_scaled(row, measured[0]) if row in measured else row for row in rows]
    contended = [row.num_processes for row in measured if CONTENTION in row.findings]
    if contended:
        conclusion += f" Processes compete for CPUs from -np {contended[0]} on."
    if any((row.figures.get(WHOLE, {}).get("efficiency") or 0.0) > UNSTEADY for row in scaled):
        conclusion += " Efficiency above 100 % is noise of the machine: repeat."
    return {"rows": scaled, "knee": knee, "conclusion": conclusion}


def rate_of(row: SeriesRow) -> float:
    """Items per second, or 0 if not measured."""
    return row.figures.get(WHOLE, {}).get(RATE) or 0.0


def _scaled(row: SeriesRow, base: SeriesRow) -> SeriesRow:
    speedup = rate_of(row) / rate_of(base)
    efficiency = speedup * base.num_processes / row.num_processes
    figures = {**row.figures[WHOLE], "speedup": speedup, "efficiency": efficiency, "slowdown": 1 / efficiency}
    return row.model_copy(update={"figures": {WHOLE: figures}})


def _knee(measured: Sequence[SeriesRow]) -> tuple[int | None, str]:
    """Number of processes after which another one adds less than half as much as the first, and a sentence.

    A process adds (T₂ - T₁) / (n₂ - n₁) between neighbouring points, relative to the base's throughput per process.
    Methods of curvature (Kneedle: Satopää et al., 2011) find a knee even in a straight line with noise.
    """
    if len(measured) < 2:
        return None, f"Scaling unknown: {len(measured)} of at least 2 launches have a throughput."
    per_process = rate_of(measured[0]) / measured[0].num_processes
    for here, further in itertools.pairwise(measured):
        before, after = here.num_processes, further.num_processes
        gain = (rate_of(further) - rate_of(here)) / (after - before) / per_process
        if gain < 0:
            lost = 100 * (1 - rate_of(further) / rate_of(here))
            return (
                before,
                f"{after} processes are slower than {before}: throughput falls by {lost:.0f} %. Use -np {before}.",
            )
        if gain < WORTH_IT:
            adds = f"each process adds only {100 * gain:.0f} % of the first one's throughput"
            return before, f"From {before} to {after} processes, {adds}. Use -np {before}."
    base, last = measured[0], measured[-1]
    times = f"{rate_of(last) / rate_of(base):.3g} times the throughput of {base.num_processes}"
    return None, f"Throughput still grows at {last.num_processes} processes, to {times}."
