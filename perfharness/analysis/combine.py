"""Several processes' results into one: means of trees, statistics of pooled values, throughput of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfharness.analysis.mean_entries import mean_of_entries
from perfharness.analysis.tabulate import statistics_tree
from perfharness.analysis.throughput import throughput
from perfharness.model.result import Float64, Path, ProcessResult, Tree


def combine(
    results: dict[str, ProcessResult], *, with_data: bool = True, failed: Mapping[str, str] | None = None
) -> Tree:
    """The body of benchmark_mean.json; `meta` is left to the caller.

    Args:
        results: by the processes' folder names.
        with_data: with `mean_all_batches`, which takes longer than all the rest where there are many batches.
        failed: how processes failed, by folder name; a run with one of them has no throughput.
    """
    all_batches = (
        {"mean_all_batches": mean_of_entries([result.entries for result in results.values()])} if with_data else {}
    )
    return {
        **all_batches,
        "mean_data": mean_of_trees([result.mean_data for result in results.values()]),
        "stats_minus_warmup": _pooled_statistics(list(results.values())),
        "throughput": throughput(
            {name: result.loops for name, result in results.items()},
            clock_is_utc=all(result.clock_is_utc for result in results.values()),
            failed=failed,
        ),
    }


def _pooled_statistics(results: list[ProcessResult]) -> Tree:
    """Statistics of all processes' values together; of one process they are its own."""
    if len(results) == 1:
        return results[0].stats_minus_warmup
    paths = list(dict.fromkeys(path for result in results for path in result.values_minus_warmup))
    return statistics_tree((path, _pool(results, path)) for path in paths)


def _pool(results: list[ProcessResult], path: Path) -> dict[str, Float64]:
    parts: dict[str, list[Float64]] = {}
    for result in results:
        if path in result.values_minus_warmup:
            for key, values in result.values_minus_warmup[path].items():
                parts.setdefault(key, []).append(values)
    return {key: np.concatenate(values) for key, values in parts.items()}


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
