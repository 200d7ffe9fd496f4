"""Several processes' results into one: means of trees, statistics of pooled values, throughput of the run."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from perfharness.analysis.entries import PER_ITEM
from perfharness.analysis.mean_entries import mean_of_entries
from perfharness.analysis.outside import outside_tree
from perfharness.analysis.paths import free_key
from perfharness.analysis.tabulate import statistics_tree, subtree_at
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
    distinct = _with_distinct_keys(list(results.values()))
    return {
        **all_batches,
        "mean_data": _mean_data(distinct),
        "stats_minus_warmup": _pooled_statistics(distinct),
        "outside_batches": outside_tree([result.outside for result in results.values()]),
        "throughput": throughput(
            {name: result.loops for name, result in results.items()},
            clock_is_utc=all(result.clock_is_utc for result in results.values()),
            failed=failed,
        ),
    }


def _with_distinct_keys(results: list[ProcessResult]) -> list[ProcessResult]:
    """The results, with a key of its own for what is a stage where other processes have a batch of that name."""
    kinds: dict[Path, set[bool]] = {}
    for result in results:
        for path in result.values_minus_warmup:
            kinds.setdefault(path, set()).add(_is_batch(result, path))
    clashes = {path for path, found in kinds.items() if len(found) > 1}
    if not clashes:
        return results
    renamed = {path: _free_path(path, kinds) for path in clashes}
    return [_renamed(result, renamed) for result in results]


def _free_path(path: Path, used: Container[Path]) -> Path:
    return (*path[:-1], free_key(path[-1], lambda key: (*path[:-1], key) in used))


def _is_batch(result: ProcessResult, path: Path) -> bool:
    return "total_items" in _at(result.mean_data, path)


def _renamed(result: ProcessResult, renamed: Mapping[Path, Path]) -> ProcessResult:
    """The result with the stages among these paths, and what is inside them, under other keys."""

    def new(path: Path) -> Path:
        prefixes = [path[:length] for length in range(1, len(path) + 1)]
        return tuple(
            renamed[prefix][-1] if prefix in renamed and not _is_batch(result, prefix) else prefix[-1]
            for prefix in prefixes
        )

    mean_data: Tree = {}
    for path in result.values_minus_warmup:
        numbers = {key: value for key, value in _at(result.mean_data, path).items() if not isinstance(value, dict)}
        subtree_at(mean_data, new(path)).update(numbers)
    return replace(
        result,
        mean_data=mean_data,
        values_minus_warmup={new(path): values for path, values in result.values_minus_warmup.items()},
        items={new(path): items for path, items in result.items.items()},
    )


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


def _mean_data(results: list[ProcessResult]) -> Tree:
    """The mean of the processes' trees; times per item are ratios of totals."""
    mean = mean_of_trees([result.mean_data for result in results])
    for path in dict.fromkeys(path for result in results for path in result.items):
        entry = _at(mean, path)
        with_it = [(_at(result.mean_data, path), result.items[path]) for result in results if path in result.items]
        items = sum(count for _, count in with_it)
        for key in [key for key in entry if key.endswith(PER_ITEM)]:
            times = [own[key.removesuffix(PER_ITEM)] for own, _ in with_it]
            known = items > 0 and None not in times
            total = sum(time * own["batches"] for time, (own, _) in zip(times, with_it, strict=True)) if known else 0
            entry[key] = round(total / items, 6) if known else None
    return mean


def _at(tree: Tree, path: Path) -> Tree:
    for key in path:
        tree = tree.get(key, {})
    return tree


def mean_of_trees(trees: list[Tree]) -> Tree:
    """Each number the mean over the trees that have it; null where one of them could not measure it."""
    mean: Tree = {}
    for key in dict.fromkeys(key for tree in trees for key in tree):
        values = [tree[key] for tree in trees if key in tree]
        if isinstance(values[0], dict):
            mean[key] = mean_of_trees(values)
        else:
            mean[key] = any(values) if key == "throttled" else _mean(values)
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
