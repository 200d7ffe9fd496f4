"""The content of a report, of which all its formats are made; what `perfharness.report` returns.

Times are milliseconds, unless a name states otherwise. None was not measured; a `reason` next to it has the cause.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_serializer

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
from perfharness.model.manifest import EnvironmentRecord, ProcessRecord, TracerRecord
from perfharness.model.mlperf import MlperfResult
from perfharness.runs.comparison.result import Comparison
from perfharness.runs.files.benchmark_json import OutsideStage, Throughput
from perfharness.runs.run import SampledRun
from perfharness.runs.series.model import Series
from perfharness.runs.stage_lines import RangeSum, StageLine

REPORT_VERSION = 1


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

    created: str | None
    script: str | None
    command: list[str]
    warmup_batches: int
    tracer: TracerRecord
    environment: EnvironmentRecord | None
    """None of a bare trace."""

    devices: list[str]
    """GPUs that the traces name."""

    processes: list[ProcessRecord]
    explained: bool
    clock_error_ns: int | None
    """The largest of the traces' clocks against UTC; None where one is not known."""


class LoadPoint(_Model):
    """A stretch of a phase, and a percentile over its answers; None: too few of them, or some had no answer."""

    phase: int
    start_s: float
    end_s: float
    count: int
    ms: float | None


class LoadCurve(_Model):
    """A percentile over time; each point is over as many seconds as the percentile needs."""

    time: str
    """`latency` or `lateness`."""

    of: str
    """`p50`, `p90`, `p99`, `p99_9`, `max`."""

    points: list[LoadPoint]


class LoadMoment(_Model):
    """Neighbouring windows of a phase; rates are a second."""

    phase: str
    start_s: float
    end_s: float
    due: float
    answered: float
    ok: float
    errors: dict[str, float]
    in_flight_max: int | None
    queue_max: int | None = None
    rss_mb: float | None


class LoadBins(_Model):
    """How many answers of a phase took how long, in bins of equal ratio."""

    phase: str
    edges_ms: list[float]
    counts: list[int]


class LoadReport(_Model):
    """What the load of a run came to. Seconds are since the begin of the load."""

    result: LoadResult
    start_ns: int | None
    """Begin of the load on the monotonic clock; None: the files of windows are not there."""

    main: int | None
    """Place of the phase that the first sentences are about: the longest one that counts."""

    workers_busy: float | None = None
    """Share of the time of the workers of that phase that went into service; None: service is not known."""

    queueing_share: float | None = None
    """Of its mean latency."""

    objective: StepVerdict | None = None
    """Whether its percentile is within the objective, by the interval; None: no objective, or no such percentile."""

    curves: list[LoadCurve]
    curves_reason: str | None = None
    """Why there are no curves."""

    moments: list[LoadMoment]
    bins: list[LoadBins]


class SlowestReport(_Model):
    """The slowest requests, or batches, beside the typical one."""

    result: Slowest
    timelines: list[BatchTimeline]
    """Of the slowest of all, and of a typical one, of a load test; other runs have theirs in `RunReport.timelines`."""


class RunReport(_Model):
    """One launch, or bare traces."""

    name: PrintableText
    path: PrintableText
    measured: Measured
    throughput: Throughput
    stages: list[StageLine]
    outside_batches: list[OutsideStage]
    ranges: list[RangeSum]
    """Only of a run without batches."""

    advice: list[Advice]
    """The most valuable first."""

    diagnoses: dict[str, Diagnosis]
    """By process."""

    series: list[LoopSeries]
    distributions: list[StageDistribution]
    timelines: list[BatchTimeline]
    slowest: SlowestReport | None = None
    slowest_reason: str | None = None
    """Why the slowest are not known."""

    energy: RunEnergy | None
    metrics: RunMetrics | None
    cost: Cost | None
    """None: no price was given."""

    ranks: RunRanks | None
    """None: no two ranks of one program were measured."""

    load: LoadReport | None = None
    """None: it was not under load."""

    mlperf: MlperfResult | None = None
    """None: it was no test of LoadGen."""

    findings: list[Finding]
    stacks: tuple[str, list[Stack]] | None = Field(default=None, exclude=True)
    """Sampled stacks of the batches that take most time, and what they are of; None: nothing was sampled."""

    sampled: SampledRun | None = Field(default=None, exclude=True)
    """Telemetry for charts; its figures are in `metrics`."""

    @property
    def has_numbers(self) -> bool:
        """Whether there is a time of anything."""
        has_answers = self.load is not None and any(phase.completed for phase in self.load.result.phases)
        return bool(self.stages or self.ranges or has_answers)

    @field_serializer("throughput")
    def _as_written(self, throughput: Throughput) -> dict[str, Any]:
        """What the files leave out is left out here too."""
        return throughput.model_dump(mode="json", exclude_unset=True)


class SeriesReport(_Model):
    """Several launches."""

    name: PrintableText
    series: Series
    shown: str | None = None
    """The one launch that `runs` has, the one in the middle of a repeat; None: `runs` has all."""


class SuiteReport(_Model):
    """A suite of `perfharness bench`."""

    name: PrintableText
    suite: BenchSuiteResult


class MergedReport(_Model):
    """Suites of several machines or versions, next to each other."""

    merged: BenchMergedResult


class Report(_Model):
    """What was asked for, in its order."""

    schema_version: int = REPORT_VERSION
    made_by: str
    created: str
    """UTC, ISO 8601."""

    title: PrintableText
    runs: list[RunReport]
    series: list[SeriesReport]
    suites: list[SuiteReport]
    merged: list[MergedReport] = Field(default_factory=list)
    comparison: Comparison | None = None
    """Of the second run or repeat and those behind it with the first; None of a single one."""

    comparison_reason: PrintableText | None = None
    """Why several runs could not be compared."""

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
