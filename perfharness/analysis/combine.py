"""Several processes' results into one: means of trees, statistics of pooled values, throughput of the run."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfharness.analysis.mean_entries import mean_of_entries
from perfharness.analysis.tabulate import statistics_tree
from perfharness.analysis.throughput import throughput
from perfharness.model.result import Float64, Path, ProcessResult, Tree


def combine(results: dict[str, ProcessResult], *, with_data: bool = True) -> Tree:
    """The body of benchmark_mean.json, by the processes' folder names; `meta` is left to the caller.

    Without `with_data`, `mean_all_batches` is left out: of many batches it takes longer than all the rest.
    """
    all_batches = (
        {"mean_all_batches": mean_of_entries([result.entries for result in results.values()])} if with_data else {}
    )
    return {
        **all_batches,
        "mean_data": mean_of_trees([result.mean_data for result in results.values()]),
        "stats_minus_warmup": statistics_tree(_pool(list(results.values()))),
        "throughput": throughput(
            {name: result.loops for name, result in results.items()},
            clock_is_utc=all(result.clock_is_utc for result in results.values()),
        ),
    }


def _pool(results: list[ProcessResult]) -> dict[Path, dict[str, Float64]]:
    pooled: dict[Path, dict[str, list[Float64]]] = {}
    for result in results:
        for path, columns in result.values_minus_warmup.items():
            entry = pooled.setdefault(path, {})
            for key, values in columns.items():
                entry.setdefault(key, []).append(values)
    return {path: {key: np.concatenate(parts) for key, parts in entry.items()} for path, entry in pooled.items()}


def mean_of_trees(trees: list[Tree]) -> Tree:
    """Each number the mean over the trees that have it; null where one of them could not measure it."""
    keys = list(dict.fromkeys(key for tree in trees for key in tree))
    mean: Tree = {}
    for key in keys:
        values = [tree[key] for tree in trees if key in tree]
        if key == "throttled":
            mean[key] = any(values)
        else:
            mean[key] = mean_of_trees(values) if isinstance(values[0], dict) else _mean(values)
    return mean


def _mean(values: list[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], list):  # reasons
        return sorted({reason for value in values for reason in value})
    if isinstance(values[0], bool):
        return all(values)
    mean = sum(values) / len(values)
    return int(mean) if all(isinstance(value, int) for value in values) and mean == int(mean) else round(mean, 6)
