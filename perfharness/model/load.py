"""What a load test measured: `load.json`, and a line of `load_windows.jsonl`.

Times are milliseconds unless the name says otherwise. What could not be measured is null, with the reason beside it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments
from perfharness.model.findings import Finding

WINDOWS_NAME = "load_windows.jsonl"
REQUESTS_NAME = "requests.parquet"
STREAM_NAME = "requests.arrow"  # the same while the load goes on
LOAD_VERSION = 1

Loop = Literal["open", "closed"]
Status = Literal["ok", "interrupted", "stopped-by-errors", "killed"]
TargetKind = Literal["callable", "backend", "http"]
LeakVerdict = Literal["leaks", "does-not-leak", "cannot-tell"]
DriftVerdict = Literal["rises", "falls", "steady", "cannot-tell"]
StepVerdict = Literal["meets", "misses", "undecided"]

TIMES = ("latency", "queueing", "service", "lateness")
TOKEN_TIMES = ("first_token", "between_tokens")  # of answers that are streams of tokens
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
UNANSWERED = "unanswered"
LEAST_BEYOND = 10  # a percentile needs that many values beyond it


class _Described(Record, use_attribute_docstrings=True):
    """Its fields are described in schemas."""


class LoadFigure(_Described):
    """A number with its 95 % interval, where there is one."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    """why the number, or its interval, is null"""


class LoadTimes(Record):
    """One kind of time over the requests of a phase, ms.

    Latency and queueing count requests without an answer in time (`timeout`, `unanswered`, open when a process was
    killed) as slower than all others: mean and maximum are null then, and so is a percentile that falls among them.
    Other errors (`refused`, `http-503`, an exception) come at once and have no latency; `errors` counts them.
    """

    count: int = 0  # requests answered without error that have it; of lateness: all that were sent
    slower: int = 0  # requests without an answer in time
    mean: LoadFigure = LoadFigure()
    p50: LoadFigure = LoadFigure()
    p90: LoadFigure = LoadFigure()
    p95: LoadFigure = LoadFigure()
    p99: LoadFigure = LoadFigure()
    p99_9: LoadFigure = LoadFigure()
    max: LoadFigure = LoadFigure()
    reason: str | None = None


class Objective(Record):
    """What an answer in time is: the percentile of the latency that has to be below `latency_ms`."""

    latency_ms: float = Field(gt=0, allow_inf_nan=False)
    percentile: float = Field(default=99.0, gt=0, lt=100)
    max_error_rate: float | None = Field(default=None, ge=0, lt=1)  # null: as many may fail as may be late


class TargetRecord(Record):
    """What received the load."""

    kind: TargetKind
    name: str
    processes: int = 1
    request: dict[str, Any] | None = None  # sent and expected over HTTP; null: another kind of target
    model: dict[str, Any] | None = None  # backend, mode, device, precision, shapes; null: another kind of target
    started: MaskedArguments | None = None  # command of the server that was started and traced; null: none


class PhaseResult(Record):
    """A part of the profile. Rates are per second, from its begin to its end or its last answer, if that is later."""

    name: str
    loop: Loop
    is_warmup: bool = False  # excluded from `overall`, the findings and the trace's batches
    asked_rate: float | None = None  # requests, by the profile, on average; null: a closed loop
    achieved_rate: float | None = None  # answers, errors included
    concurrency: int  # workers of all processes: how many requests can be in service at a time
    start_s: float  # since the begin of the run
    duration_s: float  # without the time in which late answers were awaited
    arrivals: int  # requests that were due
    sent: int
    completed: int  # answers, errors included
    ok: int
    items: int  # of the answers without error
    items_per_second: float | None = None
    goodput: float | None = None
    """Answers without error within the objective; one in the grace period counts. Null: no objective."""
    within_objective: int | None = None
    latency: LoadTimes  # from the intended moment of sending to the answer
    queueing: LoadTimes  # from the intended moment to the begin of service
    service: LoadTimes  # from the begin of service to the answer
    lateness: LoadTimes  # of the generator itself
    first_token: LoadTimes | None = None  # from the intended moment; null: no stream of tokens
    between_tokens: LoadTimes | None = None  # between two parts of a stream that have text
    tokens: int | None = None  # of the answers without error; null: the target counts none
    tokens_per_second: float | None = None
    errors: dict[str, int] = Field(default_factory=dict)  # by kind; not answered in time: `unanswered`

    @property
    def unanswered(self) -> int:
        """Requests that were given up: when the grace period ended, or the run."""
        return self.errors.get(UNANSWERED, 0)

    @property
    def never_sent(self) -> int:
        """Unanswered requests for which no worker was free."""
        return min(self.unanswered, self.arrivals - self.sent)


class LoadWindow(Record):
    """One second of the run.

    A request counts in `arrivals` when it was due, and in all else when it was done: during a stall requests arrive,
    none is completed, and `in_flight_max` grows.
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
    in_flight_max: int | None = None  # most requests due and not answered at a time, of all processes
    queue_max: int | None = None  # most of these whose service had not begun (of a failed one: that were not sent)
    rss_mb: float | None = None  # of the processes that hold the target
    p50_ms: float | None = None  # of the latency of these answers; null: among those without an answer in time
    p99_ms: float | None = None  # also null where fewer than 10 values are beyond it


class MemoryTrend(_Described):
    """Whether memory grows without end."""

    of: str
    """`process`, with its folder where there are several, or `gpu` and its UUID"""
    verdict: LeakVerdict
    slope_mb_per_s: LoadFigure = LoadFigure()
    """over the time after the first third, in which memory that is kept is usually filled"""
    tolerance_mb_per_s: float
    """a slope whose whole interval is below it is no leak"""
    first_mb: float | None = None
    last_mb: float | None = None
    """lowest value of the first and of the last twentieth of the time that was judged"""
    per_request_bytes: float | None = None
    """the slope over the answers per second; null: no leak"""
    reason: str | None = None
    """why nothing can be said"""


class Drift(_Described):
    """How the last third of a run compares with its first."""

    of: str
    """`latency.p50`, `latency.p99`, `throughput`, or `errors.KIND`"""
    verdict: DriftVerdict
    first: LoadFigure = LoadFigure()
    last: LoadFigure = LoadFigure()
    unit: str
    ratio: LoadFigure = LoadFigure()
    """last over first"""
    tolerance: float
    """a ratio whose whole interval is within 1 ± that is steady"""
    reason: str | None = None


class ClockChange(_Described):
    """A GPU over a run; null: not sampled."""

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
    """mean of the GPU's utilization: at least one kernel runs"""
    reason: str | None = None


class Sustained(_Described):
    """What changed over the longest phase of a run."""

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
    """whether more and more requests of an open loop waited; null: cannot tell, or a closed loop"""


class FirstError(Record):
    """The first error of a kind."""

    request: int
    at_s: float
    message: str | None = None


class ErrorKind(Record):
    """Requests that failed in one way."""

    kind: str
    count: int
    first: FirstError | None = None


class LoadResult(Record):
    """`load.json`: a load test."""

    schema_version: int = LOAD_VERSION
    target: TargetRecord
    profile: dict[str, Any]  # as it was given, seed included
    status: Status
    status_reason: str | None = None
    objective: Objective | None = None
    created: str
    duration_s: float
    phases: list[PhaseResult]
    windows: list[LoadWindow]
    levels_reason: str | None = None  # why windows have no `in_flight_max`, or no `queue_max`
    errors: list[ErrorKind] = Field(default_factory=list)
    tracer: str | None = None  # of the target's process, whose cost is in its times; null: not traced
    generator_limited: bool = False  # the generator, not the target, explains the latency
    sustained: Sustained | None = None  # over the longest phase that counts; null: shorter than 30 s
    findings: list[Finding] = Field(default_factory=list)

    def in_warmup(self, kind: str) -> int:
        """Errors of a kind in phases that do not count."""
        return sum(phase.errors.get(kind, 0) for phase in self.phases if phase.is_warmup)

    def phase(self, name: str) -> PhaseResult:
        """The phase of that name. Raises `KeyError`."""
        return next(phase for phase in self.phases if phase.name == name)
