"""Content of a report in all formats, as returned by `perfharness.report`.

Times are milliseconds unless a name says otherwise. None means not measured; a `reason` next to it gives the cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from perfharness.analysis.diagnosis import Advice
from perfharness.analysis.energy.results import RunEnergy
from perfharness.analysis.host_samples.stacks import Stack
from perfharness.analysis.metrics.results import RunMetrics
from perfharness.analysis.ranks import RunRanks
from perfharness.analysis.slowest import Slowest
from perfharness.analysis.stages.charts import BatchSeries, BatchTimeline, Histogram
from perfharness.analysis.suites.cost import Cost
from perfharness.model.base import Settings
from perfharness.model.bench_suite import BenchMergedResult, BenchSuiteResult
from perfharness.model.checks import PrintableText
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.findings import Finding
from perfharness.model.load import LoadResult, StepVerdict
from perfharness.model.manifest import EnvironmentRecord, NodeRecord, ProcessRecord, TracerRecord
from perfharness.model.mlperf import MlperfResult
from perfharness.model.result import Tree
from perfharness.runs.comparison.result import Comparison
from perfharness.runs.run import SampledRun
from perfharness.runs.series.model import Series
from perfharness.runs.stage_lines import RangeSum, StageLine


class _Model(Settings, arbitrary_types_allowed=True):
    """Base class that rejects unknown fields."""


class LoopSeries(_Model):
    """Batches of a loop of a process, in order."""

    process: str
    loop: tuple[str, ...]
    series: BatchSeries


class StageDistribution(_Model):
    """Times per batch of a path over all processes, without warm-up."""

    path: tuple[str, ...]
    histogram: Histogram


class Measured(_Model):
    """Settings and machine of a measurement.

    Attributes:
        devices: GPUs in the traces.
        environment: None for a bare trace.
        clock_error_ns: largest error of the traces' clocks against UTC, or None if one is unknown.
    """

    warmup_batches: int
    tracer: TracerRecord
    devices: list[str]
    created: str | None = None
    script: str | None = None
    command: Sequence[str] = ()
    environment: EnvironmentRecord | None = None
    processes: Sequence[ProcessRecord] = ()
    nodes: Sequence[NodeRecord] = ()
    explained: bool = False
    clock_error_ns: int | None


class LoadPoint(_Model):
    """A percentile over the answers in a part of a phase; None with too few answers or missing ones."""

    phase: int
    start_s: float
    end_s: float
    count: int
    ms: float | None


class LoadCurve(_Model):
    """A percentile over time, in parts of phases that have enough answers for it."""

    time: str  # `latency` or `lateness`
    of: str  # `p50`, `p90`, `p99`, `p99_9`, `max`
    points: list[LoadPoint]


class LoadBins(_Model):
    """Histogram of the answers of a phase, in bins of equal ratio."""

    phase: str
    edges_ms: list[float]
    counts: list[int]


class LoadReport(_Model):
    """Results of a load test. Seconds are since the begin of the load.

    Attributes:
        start_ns: begin of the load on the monotonic clock, or None if the files of windows are missing.
        main: index of the main phase: the longest measured one.
        workers_busy: share of time that workers of the main phase served requests, or None if unknown.
        queueing_share: share of queueing in its mean latency.
        objective: verdict on its percentile by the interval, or None without an objective or percentile.
    """

    result: LoadResult
    start_ns: int | None
    main: int | None
    workers_busy: float | None = None
    queueing_share: float | None = None
    objective: StepVerdict | None = None
    curves: list[LoadCurve]
    curves_reason: str | None = None
    bins: list[LoadBins]


class SlowestReport(_Model):
    """Slowest requests or batches and a typical one; timelines only for a load test."""

    result: Slowest
    timelines: list[BatchTimeline]


class RunReport(_Model):
    """One launch, or bare traces.

    Attributes:
        ranges: only for a run without batches.
        advice: most valuable first.
        diagnoses: by process.
        cost, ranks, load, mlperf: None without prices, ranks, or a load test.
        stacks: name and stacks of the batches that take most time.
        sampled: telemetry for charts.
    """

    name: PrintableText
    path: PrintableText
    measured: Measured
    throughput: Tree
    stages: list[StageLine]
    outside_batches: list[Tree]
    ranges: list[RangeSum]
    advice: list[Advice]
    diagnoses: dict[str, Diagnosis]
    series: list[LoopSeries]
    distributions: list[StageDistribution]
    timelines: list[BatchTimeline]
    slowest: SlowestReport | None = None
    slowest_reason: str | None = None
    energy: RunEnergy | None = None
    metrics: RunMetrics | None = None
    cost: Cost | None
    ranks: RunRanks | None
    load: LoadReport | None = None
    mlperf: MlperfResult | None = None
    findings: list[Finding]
    stacks: tuple[str, list[Stack]] | None = Field(default=None, exclude=True)
    sampled: SampledRun | None = Field(default=None, exclude=True)

    @property
    def has_numbers(self) -> bool:
        """Whether any time was measured."""
        has_answers = self.load is not None and any(phase.completed for phase in self.load.result.phases)
        return bool(self.stages or self.ranges or has_answers)


class SeriesReport(_Model):
    """A series; `shown` is the only launch in `runs` (the median of a repeat), or None if `runs` has all."""

    name: PrintableText
    series: Series
    shown: str | None = None


class SuiteReport(_Model):
    """A suite of `perfharness bench`."""

    name: PrintableText
    suite: BenchSuiteResult


class MergedReport(_Model):
    """Suites of several machines or versions."""

    merged: BenchMergedResult


class Report(_Model):
    """A report, in the order of its inputs; `comparison` is of several runs with the first one."""

    made_by: str
    created: str
    title: PrintableText
    runs: list[RunReport]
    series: list[SeriesReport]
    suites: list[SuiteReport]
    merged: list[MergedReport] = Field(default_factory=list)
    comparison: Comparison | None = None
    comparison_reason: PrintableText | None = None

    def __repr__(self) -> str:
        return f"<Report {self.title}: {len(self.runs)} runs, {len(self.suites)} suites>"

    @property
    def findings(self) -> list[Finding]:
        """Findings of all runs."""
        return [finding for run in self.runs for finding in run.findings]

    @property
    def has_numbers(self) -> bool:
        """Whether any time was measured."""
        return bool(self.suites or self.merged or any(run.has_numbers for run in self.runs))
