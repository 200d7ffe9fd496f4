"""The content of a report, of which all its formats are made; what `perfharness.report` returns.

Times are milliseconds, unless a name states otherwise. None was not measured; a `reason` next to it has the cause.
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
    """Data of the report; nothing may be lost on the way."""


class LoopSeries(_Model):
    """The batches of a loop of a process in order."""

    process: str
    loop: tuple[str, ...]
    series: BatchSeries


class StageDistribution(_Model):
    """Host times a batch of a path, all processes together, warm-up left out."""

    path: tuple[str, ...]
    histogram: Histogram


class Measured(_Model):
    """How it was measured, and on what."""

    warmup_batches: int
    tracer: TracerRecord
    devices: list[str]  # GPUs that the traces name
    created: str | None = None
    script: str | None = None
    command: Sequence[str] = ()
    environment: EnvironmentRecord | None = None  # None of a bare trace
    processes: Sequence[ProcessRecord] = ()
    nodes: Sequence[NodeRecord] = ()
    explained: bool = False
    clock_error_ns: int | None  # the largest of the traces' clocks against UTC; None where one is not known


class LoadPoint(_Model):
    """A part of a phase, and a percentile over its answers; None: too few of them, or some had no answer."""

    phase: int
    start_s: float
    end_s: float
    count: int
    ms: float | None


class LoadCurve(_Model):
    """A percentile over time; the parts of a phase are as long as the percentile needs."""

    time: str  # `latency` or `lateness`
    of: str  # `p50`, `p90`, `p99`, `p99_9`, `max`
    points: list[LoadPoint]


class LoadBins(_Model):
    """How many answers of a phase took how long, in bins of equal ratio."""

    phase: str
    edges_ms: list[float]
    counts: list[int]


class LoadReport(_Model):
    """What the load of a run came to. Seconds are since the begin of the load."""

    result: LoadResult
    start_ns: int | None  # begin of the load on the monotonic clock; None: the files of windows are not there
    main: int | None  # place of the phase that the first sentences are about: the longest one that counts
    workers_busy: float | None = None  # share of the time of that phase's workers in service; None: not known
    queueing_share: float | None = None  # of its mean latency
    objective: StepVerdict | None = None  # of its percentile, by the interval; None: no objective or percentile
    curves: list[LoadCurve]
    curves_reason: str | None = None  # why there are no curves
    bins: list[LoadBins]


class SlowestReport(_Model):
    """The slowest requests, or batches, beside the typical one."""

    result: Slowest
    timelines: list[BatchTimeline]  # of a load test: the slowest of all, and a typical one


class RunReport(_Model):
    """One launch, or bare traces."""

    name: PrintableText
    path: PrintableText
    measured: Measured
    throughput: Tree
    stages: list[StageLine]
    outside_batches: list[Tree]
    ranges: list[RangeSum]  # only of a run without batches
    advice: list[Advice]  # the most valuable first
    diagnoses: dict[str, Diagnosis]  # by process
    series: list[LoopSeries]
    distributions: list[StageDistribution]
    timelines: list[BatchTimeline]
    slowest: SlowestReport | None = None
    slowest_reason: str | None = None  # why the slowest are not known
    energy: RunEnergy | None = None
    metrics: RunMetrics | None = None
    cost: Cost | None  # None: no price was given
    ranks: RunRanks | None  # None: no two ranks of one program were measured
    load: LoadReport | None = None  # None: it was not under load
    mlperf: MlperfResult | None = None  # None: it was no test of LoadGen
    findings: list[Finding]
    stacks: tuple[str, list[Stack]] | None = Field(default=None, exclude=True)
    """Of the batches that take most time, and what they are of."""

    sampled: SampledRun | None = Field(default=None, exclude=True)  # telemetry for charts; its figures are in `metrics`

    @property
    def has_numbers(self) -> bool:
        """Whether there is a time of anything."""
        has_answers = self.load is not None and any(phase.completed for phase in self.load.result.phases)
        return bool(self.stages or self.ranges or has_answers)


class SeriesReport(_Model):
    """Several launches."""

    name: PrintableText
    series: Series
    shown: str | None = None  # the one launch that `runs` has, the one in the middle of a repeat; None: `runs` has all


class SuiteReport(_Model):
    """A suite of `perfharness bench`."""

    name: PrintableText
    suite: BenchSuiteResult


class MergedReport(_Model):
    """Suites of several machines or versions, next to each other."""

    merged: BenchMergedResult


class Report(_Model):
    """What was asked for, in its order."""

    made_by: str
    created: str  # UTC, ISO 8601
    title: PrintableText
    runs: list[RunReport]
    series: list[SeriesReport]
    suites: list[SuiteReport]
    merged: list[MergedReport] = Field(default_factory=list)
    comparison: Comparison | None = None  # of several runs, with the first
    comparison_reason: PrintableText | None = None  # why several runs could not be compared

    def __repr__(self) -> str:
        return f"<Report {self.title}: {len(self.runs)} runs, {len(self.suites)} suites>"

    @property
    def findings(self) -> list[Finding]:
        """Of all runs."""
        return [finding for run in self.runs for finding in run.findings]

    @property
    def has_numbers(self) -> bool:
        """Whether there is a time of anything."""
        return bool(self.suites or self.merged or any(run.has_numbers for run in self.runs))
