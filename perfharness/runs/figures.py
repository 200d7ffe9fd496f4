"""Figures of a launch for comparisons, limits, the history and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from perfharness.analysis.statistics import PERCENTILES, min_count
from perfharness.errors import UsageError
from perfharness.model.result import PER_ITEM, RESERVED_KEYS, TIMES, Path, Tree, path_text

Unit = Literal["ms", "items/s", "bytes", "J", "requests/s", "share", "MB/s", ""]
Scope = Literal["stage", "run", "phase"]


@dataclass(frozen=True)
class Metric:
    """A metric of a stage, a run, or a phase of a load test (the longest phase stands for the run).

    Args:
        at: keys in an entry of `stats_minus_warmup` or in the results of the run; empty if in another file.
        is_judged: whether `compare` gives a verdict. Each verdict widens the intervals of the others.
    """

    label: str
    unit: Unit = "ms"
    scope: Scope = "stage"
    at: tuple[str, ...] = ()
    more_is_better: bool = False
    is_judged: bool = True


METRICS = {
    "cpu_time_per_item": Metric("wall/item", at=("cpu_time_per_item", "mean")),
    "gpu_time_per_item": Metric("GPU/item", at=("gpu_time_per_item", "mean")),
    "gpu_busy_time_per_item": Metric("busy/item", at=("gpu_busy_time_per_item", "mean")),
    "cpu_time": Metric("wall/batch", at=("cpu_time", "mean")),
    "gpu_time": Metric("GPU/batch", at=("gpu_time", "mean")),
    "gpu_busy_time": Metric("busy/batch", at=("gpu_busy_time", "mean")),
    "mean": Metric("mean latency"),
    "p50": Metric("p50", at=("cpu_time", "p50")),
    "p90": Metric("p90"),
    "p95": Metric("p95", at=("cpu_time", "p95")),
    "p99": Metric("p99", at=("cpu_time", "p99")),
    "p99_9": Metric("p99.9"),
    "throughput": Metric("throughput", "items/s", "run", ("throughput", "items_per_second"), more_is_better=True),
    "start_up": Metric("start-up", "ms", "run"),
    "gpu_memory": Metric("GPU memory", "bytes", "run"),
    "host_memory": Metric("host memory", "bytes", "run"),
    "energy_per_item": Metric("energy/item", "J", "run", ("energy", "energy_per_item_j")),
    "asked_rate": Metric("asked rate", "requests/s", "phase", is_judged=False),
    "achieved_rate": Metric("achieved rate", "requests/s", "phase", more_is_better=True),
    "goodput": Metric("goodput", "requests/s", "phase", more_is_better=True),
    "error_rate": Metric("errors", "share", "phase"),
    "error_share": Metric("errors", "share"),
    "memory_slope": Metric("memory growth", "MB/s", "run", is_judged=False),
    "loadgen_latency": Metric("LoadGen latency", "ms", "run"),
    "loadgen_rate": Metric("LoadGen samples per second", "items/s", "run", more_is_better=True),
    "early_stopping": Metric("LoadGen early stopping", "ms", "run", is_judged=False),
    "over_latency": Metric("LoadGen over the bound", "share", "run", is_judged=False),
}
"""By name, in the order of tables. Percentiles are over batches, iterations or requests."""

ACCURACY_METRIC = Metric("accuracy", "", is_judged=False)
"""Used for all metrics of accuracy, which the suite names."""

LATENCY: Path = ("latency",)
"""Stage of a load test's latency."""

ERRORS, PHASES, ACCURACY = "errors", "phases", "accuracy"
"""Stages `errors/KIND` and `phases/NAME` of a load test, and `CASE/accuracy` of a suite."""

BATCH_LATENCIES = ("mean", "p50", "p95")
LOAD_LATENCIES = ("p50", "p95", "p99")
"""Latencies with a verdict, of batches and cases of a suite, and of load tests."""

QUANTILES = ("p50", "p90", "p95", "p99")


class Figure(NamedTuple):
    """A metric of a stage, or of the run (empty path)."""

    path: Path
    metric: str

    @property
    def stage(self) -> str:
        """Path as text; empty for the run."""
        return path_text(self.path)

    @property
    def text(self) -> str:
        """`stage.metric`."""
        return f"{self.stage}.{self.metric}" if self.path else self.metric

    @property
    def of(self) -> Metric:
        """Metric of the figure."""
        return ACCURACY_METRIC if self.path[-1:] == (ACCURACY,) else METRICS[self.metric]

    @property
    def is_latency(self) -> bool:
        """Whether the figure is a mean or percentile over batches or requests."""
        return self.metric in ("mean", *QUANTILES, "p99_9")

    @property
    def is_of_phase(self) -> bool:
        """Whether the figure is of one phase of a load test."""
        return self.path[:1] == (PHASES,) and (self.is_latency or self.of.scope == "phase")


@dataclass(frozen=True)
class Value:
    """Measured value of a figure, with its 95 % interval; `reason` tells why it is missing or doubtful.

    Args:
        count: number of batches, iterations or answers.
    """

    value: float | None
    reason: str | None = None
    low: float | None = None
    high: float | None = None
    count: int | None = None


def find_stage(name: str, paths: Sequence[Path], where: str) -> Path:
    """Find the only stage with a path or last name; `/` and `.` separate names. Raises `UsageError`."""
    dotted = name.replace(".", "/")
    texts = {path: path_text(path) for path in paths}
    found = (
        [path for path, text in texts.items() if text == name]
        or [path for path in paths if path[-1] == name]
        or [path for path, text in texts.items() if f"/{text.replace('.', '/')}".endswith(f"/{dotted}")]
    )
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{where} has several stages '{name}'; name the path: {', '.join(texts[one] for one in found)}"
        )
    raise UsageError(f"{where} has no stage '{name}'; choose from {', '.join(texts.values()) or 'none'}")


# ---- in benchmark.json and benchmark_mean.json ----


def stage_entries(tree: Mapping[str, Any], around: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Paths and entries of all stages and batches of a tree, in order."""
    for key, value in tree.items():
        if not isinstance(value, dict) or (around and key in RESERVED_KEYS):
            continue  # only recorders, at the top, have any name
        path = (*around, key)
        if any(time in value for time in TIMES):
            yield path, value
        yield from stage_entries(value, path)


def figures_of_stages(tree: Mapping[str, Any]) -> Iterator[tuple[Figure, Value]]:
    """Figures of the stages of `stats_minus_warmup`; times per item only if items were counted."""
    for path, entry in stage_entries(tree):
        for name, metric in METRICS.items():
            if metric.scope == "stage" and metric.at:
                value = value_at(entry, metric)
                count = (entry.get("cpu_time") or {}).get("count")
                if value is None and count and name in QUANTILES:
                    needed = min_count(PERCENTILES[name])
                    yield Figure(path, name), Value(None, f"{count} batches measured, {needed} needed")
                elif value is not None or not name.endswith(PER_ITEM):
                    yield Figure(path, name), Value(value, count=count)


def value_at(tree: Mapping[str, Any], metric: Metric) -> float | None:
    """Value of a metric in an entry of a stage, or in the results of a run."""
    found: Any = tree
    for key in metric.at:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, int | float) else None


Figures = dict[str, float | None]
"""Values by metric; None if not measured."""


def stage_figures(mean: Tree) -> dict[str, Figures]:
    """Means and percentiles of all times of each stage in `benchmark_mean.json`, by path as text."""
    stages: dict[str, Figures] = {}
    for path, entry in stage_entries(mean.get("stats_minus_warmup") or {}):
        measured = {key: found for key, found in entry.items() if key.removesuffix(PER_ITEM) in TIMES}
        stages[path_text(path)] = {key: found.get("mean") for key, found in measured.items()} | {
            f"{time}_{name}": measured[time].get(name) for time in TIMES if time in measured for name in QUANTILES
        }
    return stages
