"""The numbers of one launch that are compared with those of other launches: one a stage and metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfharness.model.result import RESERVED_KEYS, TIMES, Path, Tree, path_text

Figures = dict[str, float | None]
"""By metric; None: not measured."""

QUANTILES = ("p50", "p90", "p95", "p99")
PER_ITEM = "_per_item"


def stage_figures(mean: Tree) -> dict[str, Figures]:
    """Of every stage and batch by its path, as `path_text` writes it.

    Metrics: `cpu_time`, `gpu_time`, `gpu_busy_time` (mean of a batch, ms), the same `_per_item` (ratio of totals), and
    `cpu_time_p50` and so on over batches. Batches that are excluded are left out.

    Args:
        mean: as in `benchmark_mean.json`.
    """
    return {
        path_text(path): dict(entry_figures(entry))
        for path, entry in stage_entries(mean.get("stats_minus_warmup") or {})
    }


def run_figures(mean: Tree) -> Figures:
    """Of the launch as a whole: its throughput."""
    return {"items_per_second": (mean.get("throughput") or {}).get("items_per_second")}


def loop_paths(mean: Tree) -> list[str]:
    """Paths of the batches: the entries that count items, if only to say that there was no count."""
    return [path_text(path) for path, entry in stage_entries(mean.get("mean_data") or {}) if "total_items" in entry]


def stage_entries(tree: Mapping[str, Any], around: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Path and content of every stage and batch of a tree, in order."""
    for key, value in tree.items():
        if key in RESERVED_KEYS or not isinstance(value, dict):
            continue
        path = (*around, key)
        if any(time in value for time in TIMES):
            yield path, value
        yield from stage_entries(value, path)


def entry_figures(entry: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Metrics of a stage in `stats_minus_warmup`."""
    for time in TIMES:
        for key in (time, f"{time}{PER_ITEM}"):
            if isinstance(found := entry.get(key), dict):
                yield key, found.get("mean")
        if isinstance(found := entry.get(time), dict):
            yield from ((f"{time}_{name}", found.get(name)) for name in QUANTILES)
