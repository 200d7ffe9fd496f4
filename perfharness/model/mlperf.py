"""Result of a LoadGen test: `mlperf.json`, from LoadGen's logs and the process's own counts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments
from perfharness.model.findings import Finding

MLPERF_VERSION = 1
LOGS = "mlperf"  # folder of LoadGen's logs, in that of the process
SUT_NAME = "sut.json"
SUMMARY_LOG, DETAIL_LOG = "mlperf_log_summary.txt", "mlperf_log_detail.txt"

Status = Literal["ok", "interrupted", "failed"]
Validity = Literal["VALID", "INVALID"]


class SutRecord(Record):
    """`sut.json`: report of the system under test."""

    status: Status = "failed"
    problem: str | None = None  # why it did not finish
    loadgen: str | None = None  # library version
    device: Literal["cpu", "cuda"] = "cpu"
    versions: dict[str, str] = Field(default_factory=dict)  # of the backend's libraries
    backend_settings: dict[str, str] = Field(default_factory=dict)
    batch_sizes: list[int] = Field(default_factory=list)  # one session each
    warmup_round_ms: float | None = None  # mean execution of the largest batch before the test
    data_samples: int | None = None
    performance_samples: int | None = None  # kept in memory for the test
    overridden: dict[str, list[int | float]] = Field(default_factory=dict)  # LoadGen's value, then ours
    told: dict[str, float] = Field(default_factory=dict)  # settings derived by perfharness from a measured rate
    batches: int = 0
    samples: int = 0
    padding: int = 0  # rows executed to fill batches
    errors: dict[str, int] = Field(default_factory=dict)  # samples whose batch failed, by kind of error
    first_errors: dict[str, str] = Field(default_factory=dict)  # first message of each kind


class MlperfPercentile(Record):
    """Latency of a query, from LoadGen."""

    percent: float
    latency_ms: float | None
    reason: str | None = None  # why it is null; LoadGen's number is in `reported`


class MlperfMetric(Record):
    """The metric by which LoadGen judges the scenario."""

    name: str  # as in LoadGen's summary
    unit: Literal["ms", "samples per second"]
    value: float | None
    early_stopping_ms: float | None = None  # LoadGen's estimate with 99 % confidence, used in submissions
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
    sut: SutRecord | None  # None if its process ended without a report
    validity: Validity | None  # LoadGen's verdict, if any
    invalid_reasons: list[str]  # LoadGen's unmet conditions
    recommendations: list[str]
    early_stopping: list[str]
    metric: MlperfMetric | None
    queries: int | None
    percentiles: list[MlperfPercentile]
    mean_latency_ms: float | None
    over_latency: int | None  # queries of Server over the bound
    settings: dict[str, Any]  # used by LoadGen (`effective_…` in its detail log), including seeds
    reported: dict[str, Any]  # LoadGen's own results (`result_…` of its detail log)
    loadgen_errors: list[str]
    loadgen_warnings: list[str]
    logs: dict[str, str]  # LoadGen's files by name, in the run folder
    findings: list[Finding] = Field(default_factory=list)
