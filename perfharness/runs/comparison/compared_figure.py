"""The figures that comparisons, gates and the history name: of a stage, or of a whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from perfharness.model.result import Path as StagePath
from perfharness.model.result import path_text

Unit = Literal["ms", "items/s", "bytes", "J", "requests/s", "share", "MB/s", ""]


@dataclass(frozen=True)
class Metric:
    """A figure that is compared.

    Args:
        label: as tables have it.
        more_is_better: whether a larger one is `faster`.
        is_judged: whether it has a verdict; the others are for `--fail-if`, and would only cost the verdicts power.
    """

    unit: Unit
    label: str
    more_is_better: bool = False
    is_judged: bool = True


LOAD_METRICS: dict[str, Metric] = {
    "load_mean": Metric("ms", "load: mean latency", is_judged=False),
    "load_p50": Metric("ms", "load: p50"),
    "load_p90": Metric("ms", "load: p90", is_judged=False),
    "load_p95": Metric("ms", "load: p95"),
    "load_p99": Metric("ms", "load: p99"),
    "load_p99_9": Metric("ms", "load: p99.9", is_judged=False),
    "asked_rate": Metric("requests/s", "load: asked rate", is_judged=False),
    "achieved_rate": Metric("requests/s", "load: achieved rate", more_is_better=True),
    "goodput": Metric("requests/s", "load: goodput", more_is_better=True),
    "error_rate": Metric("share", "load: errors"),
    "error_share": Metric("share", "load: errors"),
    "memory_slope": Metric("MB/s", "load: memory", is_judged=False),
    "loadgen_latency": Metric("ms", "LoadGen: latency"),
    "loadgen_rate": Metric("items/s", "LoadGen: samples a second", more_is_better=True),
    "loadgen_early_stopping": Metric("ms", "LoadGen: early stopping", is_judged=False),
    "over_latency_share": Metric("share", "LoadGen: over the bound", is_judged=False),
    "accuracy": Metric("", "accuracy", is_judged=False),
}
"""Of a load test: of its longest phase that counts, or of a test of LoadGen; `error_share` is of each kind, a stage
`errors/KIND`, `accuracy` of each metric, a stage `accuracy/NAME` below its case of a suite; `memory_slope` is of the
process that grows most. Those of a phase that is named are at a stage `phases/NAME`."""

METRICS: dict[str, Metric] = {
    "cpu_time_per_item": Metric("ms", "CPU/item"),
    "gpu_time_per_item": Metric("ms", "GPU/item"),
    "gpu_busy_time_per_item": Metric("ms", "busy/item"),
    "cpu_time": Metric("ms", "CPU/batch"),
    "gpu_time": Metric("ms", "GPU/batch"),
    "gpu_busy_time": Metric("ms", "busy/batch"),
    "latency_mean": Metric("ms", "mean latency"),
    "latency_p50": Metric("ms", "p50"),
    "latency_p95": Metric("ms", "p95"),
    "throughput": Metric("items/s", "throughput", more_is_better=True),
    "start_up": Metric("ms", "start-up"),
    "gpu_memory": Metric("bytes", "GPU memory"),
    "host_memory": Metric("bytes", "host memory"),
    "energy_per_item": Metric("J", "energy/item"),
    **LOAD_METRICS,
    "stage_p50": Metric("ms", "p50", is_judged=False),
    "stage_p95": Metric("ms", "p95", is_judged=False),
    "stage_p99": Metric("ms", "p99", is_judged=False),
}
"""By name, in the order of the tables. Times of a stage are means per item, or a batch where no items were counted."""


ACCURACY, PHASES = "accuracy", "phases"
"""What stands before the name of a metric of accuracy, and of a phase of a load test, in a path."""


class Figure(NamedTuple):
    """Which figure: of a stage, by its path, or of the whole run, whose path is empty."""

    path: StagePath
    metric: str

    @property
    def stage(self) -> str:
        """The path as text; empty for the run."""
        return path_text(self.path)

    @property
    def text(self) -> str:
        """`stage.metric`."""
        return f"{self.stage}.{self.metric}" if self.path else self.metric

    @property
    def is_judged(self) -> bool:
        """Whether it has a verdict where nothing is chosen: those of phases would only cost the others power."""
        return METRICS[self.metric].is_judged and not self.is_of_phase

    @property
    def is_of_phase(self) -> bool:
        """Whether it is one of a single phase of a load test."""
        return self.path[:1] == (PHASES,) and self.metric in LOAD_METRICS
