"""Results of a load test: `load.json`, and a line of `load_windows.jsonl`.

Times are milliseconds unless the name says otherwise. Missing values are null, with a reason next to them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments
from perfharness.model.findings import Finding

WINDOWS_NAME = "load_windows.jsonl"
REQUESTS_NAME = "requests.parquet"
STREAM_NAME = "requests.arrow"  # the same during the load
LOAD_VERSION = 1

Loop = Literal["open", "closed"]
Status = Literal["ok", "interrupted", "stopped-by-errors", "killed"]
TargetKind = Literal["callable", "backend", "http"]
LeakVerdict = Literal["leaks", "does-not-leak", "cannot-tell"]
DriftVerdict = Literal["rises", "falls", "steady", "cannot-tell"]
StepVerdict = Literal["meets", "misses", "undecided"]

TIMES = ("latency", "queueing", "service", "lateness")
TOKEN_TIMES = ("first_token", "between_tokens")  # for answers that are streams of tokens
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
UNANSWERED = "unanswered"
LEAST_BEYOND = 10  # fewest values beyond a percentile


class _Described(Record, use_attribute_docstrings=True):
    """Base of records whose fields are described in schemas."""


class LoadFigure(_Described):
    """A number with its 95 % interval, if known."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    """why the number, or its interval, is null"""


class LoadTimes(Record):
    """One kind of time over the requests of a phase, ms.

    Latency and queueing count requests not answered before the timeout (`timeout`, `unanswered`, open when a process
    was killed) as slower than all others: then mean and maximum are null, and so is a percentile among them. Other
    errors (`refused`, `http-503`, an exception) are immediate and have no latency; `errors` counts them.
    """

    count: int = 0  # requests answered without error that have it; for lateness all requests sent
    slower: int = 0  # requests not answered before the timeout
    mean: LoadFigure = LoadFigure()
    p50: LoadFigure = LoadFigure()
    p90: LoadFigure = LoadFigure()
    p95: LoadFigure = LoadFigure()
    p99: LoadFigure = LoadFigure()
    p99_9: LoadFigure = LoadFigure()
    max: LoadFigure = LoadFigure()
    reason: str | None = None


class Objective(Record):
    """Service level objective: the percentile of the latency that must be below `latency_ms`."""

    latency_ms: float = Field(gt=0, allow_inf_nan=False)
    percentile: float = Field(default=99.0, gt=0, lt=100)
    max_error_rate: float | None = Field(default=None, ge=0, lt=1)  # null: the same share as may be late


class TargetRecord(Record):
    """The target of the load."""

    kind: TargetKind
    name: str
    processes: int = 1
    request: dict[str, Any] | None = None  # HTTP request and expected answer; null for other targets
    model: dict[str, Any] | None = None  # backend, mode, device, precision, shapes; null for other targets
    started: MaskedArguments | None = None  # command of the started and traced server; null for none


class PhaseResult(Record):
    """A part of the profile. Rates are per second, from its start to its end, or to its last answer if later."""

    name: str
    loop: Loop
    is_warmup: bool = False  # excluded from `overall`, the findings and the trace's batches
    asked_rate: float | None = None  # mean requests per second of the profile; null for a closed loop
    achieved_rate: float | None = None  # answers, including errors
    concurrency: int  # workers of all processes, the limit of requests in service at a time
    start_s: float  # since the start of the run
    duration_s: float  # without waiting for late answers
    arrivals: int  # requests due
    sent: int
    completed: int  # answers, including errors
    ok: int
    items: int  # of answers without error
    items_per_second: float | None = None
    goodput: float | None = None
    """Answers without error that met the objective, including the grace period. Null without an objective."""
    within_objective: int | None = None
    latency: LoadTimes  # from the intended send time to the answer
    queueing: LoadTimes  # from the intended send time to the start of service
    service: LoadTimes  # from the start of service to the answer
    lateness: LoadTimes  # of the generator itself
    first_token: LoadTimes | None = None  # from the intended send time; null without token streams
    between_tokens: LoadTimes | None = None  # between parts of a stream that have text
    tokens: int | None = None  # of answers without error; null if the target does not count them
    tokens_per_second: float | None = None
    errors: dict[str, int] = Field(default_factory=dict)  # by kind; `unanswered` if given up

    @property
    def unanswered(self) -> int:
        """Requests given up at the end of the grace period or the run."""
        return self.errors.get(UNANSWERED, 0)

    @property
    def never_sent(self) -> int:
        """Unanswered requests that never got a free worker."""
        return min(self.unanswered, self.arrivals - self.sent)


class LoadWindow(Record):
    """One second of the run.

    A request counts in `arrivals` when due, in all other fields when done: during a stall requests arrive, none
    completes, and `in_flight_max` grows.
    """

    index: int
    phase: str
    start_s: float
    end_s: float
    arrivals: int
    completed: int
    ok: int
    errors: dict[str, int] = Field(default_factory=dict)
    items: int
    in_flight_max: int | None = None  # most requests due but unanswered at a time, over all processes
    queue_max: int | None = None  # most of these waiting for service (for failed ones: not sent)
    rss_mb: float | None = None  # of the target's processes
    p50_ms: float | None = None  # latency of these answers; null if among unanswered requests
    p99_ms: float | None = None  # also null with fewer than 10 values beyond it


class MemoryTrend(_Described):
    """Whether memory grows without limit."""

    of: str
    """`process`, with its folder if there are several, or `gpu` and its UUID"""
    verdict: LeakVerdict
    slope_mb_per_s: LoadFigure = LoadFigure()
    """over the time after the first third, which usually fills caches and pools"""
    tolerance_mb_per_s: float
    """a slope whose whole interval is below it is not a leak"""
    first_mb: float | None = None
    last_mb: float | None = None
    """lowest value of the first and the last twentieth of the judged time"""
    per_request_bytes: float | None = None
    """the slope over the answers per second; null without a leak"""
    reason: str | None = None
    """why there is no verdict"""


class Drift(_Described):
    """Comparison of the last third of a run with its first."""

    of: str
    """`latency.p50`, `latency.p99`, `throughput`, or `errors.KIND`"""
    verdict: DriftVerdict
    first: LoadFigure = LoadFigure()
    last: LoadFigure = LoadFigure()
    unit: str
    ratio: LoadFigure = LoadFigure()
    """last over first"""
    tolerance: float
    """a ratio whose whole interval is within 1 ± this is steady"""
    reason: str | None = None


class ClockChange(_Described):
    """A GPU over a run; null if not sampled."""

    gpu: str
    first_mhz: float | None = None
    last_mhz: float | None = None
    """median of the SM clock in the first and the last tenth"""
    drop_percent: float | None = None
    throttled_s: dict[str, float] | None = None
    """seconds by reason"""
    power_w: float | None = None
    """mean"""
    power_max_w: float | None = None
    temperature_first_c: float | None = None
    temperature_last_c: float | None = None
    """means of the first and the last tenth"""
    busy_percent: float | None = None
    """mean of the GPU's utilization (at least one kernel runs)"""
    reason: str | None = None


class Sustained(_Described):
    """Changes over the longest phase of a run."""

    phase: str
    duration_s: float
    memory: list[MemoryTrend] = Field(default_factory=list)
    latency: list[Drift] = Field(default_factory=list)
    throughput: Drift | None = None
    """answers without error: their share of the arrivals of an open loop, or per second of a closed one"""
    errors: list[Drift] = Field(default_factory=list)
    """share of the answers, by kind"""
    clocks: list[ClockChange] = Field(default_factory=list)
    queue_grows: bool | None = None
    """whether the queue of an open loop grew; null if undecided, or for a closed loop"""


class FirstError(Record):
    """The first error of a kind."""

    request: int
    at_s: float
    message: str | None = None


class ErrorKind(Record):
    """Requests that failed with the same kind of error."""

    kind: str
    count: int
    first: FirstError | None = None


class LoadResult(Record):
    """`load.json`: a load test."""

    schema_version: int = LOAD_VERSION
    target: TargetRecord
    profile: dict[str, Any]  # as given, including the seed
    status: Status
    status_reason: str | None = None
    objective: Objective | None = None
    created: str
    duration_s: float
    phases: list[PhaseResult]
    windows: list[LoadWindow]
    levels_reason: str | None = None  # why windows lack `in_flight_max` or `queue_max`
    errors: list[ErrorKind] = Field(default_factory=list)
    tracer: str | None = None  # of the target's process, whose times include its cost; null if not traced
    generator_limited: bool = False  # the generator, not the target, explains the latency
    sustained: Sustained | None = None  # over the longest measured phase; null if shorter than 30 s
    findings: list[Finding] = Field(default_factory=list)

    def in_warmup(self, kind: str) -> int:
        """Errors of a kind in warm-up phases."""
        return sum(phase.errors.get(kind, 0) for phase in self.phases if phase.is_warmup)

    def phase(self, name: str) -> PhaseResult:
        """The phase of that name. Raises `KeyError`."""
        return next(phase for phase in self.phases if phase.name == name)
