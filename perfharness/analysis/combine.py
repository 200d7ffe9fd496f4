"""Several processes' results into one: means of trees, statistics of pooled values, throughput of the run."""

from __future__ import annotations

from typing import Any

from perfharness.analysis.tabulate import statistics_tree
from perfharness.analysis.throughput import throughput
from perfharness.model.result import Path, ProcessResult, Tree


def combine(results: dict[str, ProcessResult]) -> Tree:
    """The body of benchmark_mean.json, by the processes' folder names; `meta` is left to the caller."""
    return {
        "mean_all_batches": mean_of_trees([result.data for result in results.values()]),
        "mean_data": mean_of_trees([result.mean_data for result in results.values()]),
        "stats_minus_warmup": statistics_tree(_pool(list(results.values()))),
        "throughput": throughput(
            {name: result.loops for name, result in results.items()},
            clock_is_utc=all(result.clock_is_utc for result in results.values()),
        ),
    }


def _pool(results: list[ProcessResult]) -> dict[Path, dict[str, list[float | None]]]:
    pooled: dict[Path, dict[str, list[float | None]]] = {}
    for result in results:
        for path, keys in result.values_minus_warmup.items():
            entry = pooled.setdefault(path, {})
            for key, values in keys.items():
                entry.setdefault(key, []).extend(values)
    return pooled


def mean_of_trees(trees: list[Tree]) -> Tree:
    """Each number the mean over the trees that have it; null where one of them could not measure it."""
    keys = list(dict.fromkeys(key for tree in trees for key in tree))
    mean: Tree = {}
    for key in keys:
        values = [tree[key] for tree in trees if key in tree]
        mean[key] = mean_of_trees(values) if isinstance(values[0], dict) else _mean(values)
    return mean


def _mean(values: list[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], bool):
        return all(values)
    mean = sum(values) / len(values)
    return int(mean) if all(isinstance(value, int) for value in values) and mean == int(mean) else round(mean, 6)
