"""What a test of LoadGen found: `mlperf.json`, made of LoadGen's logs and of what the process counted itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments
from perfharness.model.findings import Finding

MLPERF_VERSION = 1
LOGS = "mlperf"  # folder of LoadGen's logs in that of the process
SUT_NAME = "sut.json"
SUMMARY_LOG, DETAIL_LOG = "mlperf_log_summary.txt", "mlperf_log_detail.txt"

Status = Literal["ok", "interrupted", "failed"]
Validity = Literal["VALID", "INVALID"]


class SutRecord(Record):
    """`sut.json`: what the system under test reports of itself."""

    status: Status = "failed"
    problem: str | None = None  # why it did not come to its end
    loadgen: str | None = None  # version of the library
    device: Literal["cpu", "cuda"] = "cpu"
    versions: dict[str, str] = Field(default_factory=dict)  # of the backend's libraries
    backend_settings: dict[str, str] = Field(default_factory=dict)
    batch_sizes: list[int] = Field(default_factory=list)  # each with a session
    warmup_round_ms: float | None = None  # mean execution of the largest batch before the test
    data_samples: int | None = None
    performance_samples: int | None = None  # of the data, held in memory and drawn from
    overridden: dict[str, list[int | float]] = Field(default_factory=dict)  # LoadGen's value, then ours
    told: dict[str, float] = Field(default_factory=dict)  # settings that perfharness chose, by a rate that it measured
    batches: int = 0
    samples: int = 0
    padding: int = 0  # rows that were executed to fill batches
    errors: dict[str, int] = Field(default_factory=dict)  # samples whose batch failed, by kind of error
    first_errors: dict[str, str] = Field(default_factory=dict)  # message of the first of each kind


class MlperfPercentile(Record):
    """Latency of a query, by LoadGen."""

    percent: float
    latency_ms: float | None
    reason: str | None = None  # why it is null; LoadGen's own number is in `reported`


class MlperfMetric(Record):
    """What LoadGen judges the scenario by."""

    name: str  # as in LoadGen's summary
    unit: Literal["ms", "samples per second"]
    value: float | None
    early_stopping_ms: float | None = None  # LoadGen's estimate with 99 % confidence, which counts in a submission
    reason: str | None = None


class MlperfResult(Record):
    """The file; times in milliseconds unless the name says otherwise."""

    schema_version: int = MLPERF_VERSION
    created: str  # UTC, ISO 8601
    command: MaskedArguments
    status: Status
    scenario: str
    model: str
    backend: str
    asked: dict[str, Any]  # settings of the command line
    sut: SutRecord | None  # None: its process ended without a report
    validity: Validity | None  # LoadGen's own verdict; null: it gave none
    invalid_reasons: list[str]  # what LoadGen says was not satisfied
    recommendations: list[str]
    early_stopping: list[str]
    metric: MlperfMetric | None
    queries: int | None
    percentiles: list[MlperfPercentile]
    mean_latency_ms: float | None
    over_latency: int | None  # queries of Server over the bound
    settings: dict[str, Any]  # that LoadGen ran with (`effective_…` of its detail log), seeds included
    reported: dict[str, Any]  # LoadGen's own results (`result_…` of its detail log)
    loadgen_errors: list[str]
    loadgen_warnings: list[str]
    logs: dict[str, str]  # LoadGen's files by name, in the run folder
    findings: list[Finding] = Field(default_factory=list)
