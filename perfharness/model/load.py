"""What a load test measured: `load.json`, and a line of `load_windows.jsonl`.

Times are milliseconds unless the name says otherwise. What could not be measured is null, with the reason beside it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments
from perfharness.model.findings import Finding
from perfharness.model.load_judgement import LoadFigure as LoadFigure
from perfharness.model.load_judgement import Sustained

WINDOWS_NAME = "load_windows.jsonl"
REQUESTS_NAME = "requests.parquet"
LOAD_VERSION = 1

Loop = Literal["open", "closed"]
Status = Literal["ok", "interrupted", "stopped-by-errors", "killed"]
TargetKind = Literal["callable", "backend", "http"]

TIMES = ("latency", "queueing", "service", "lateness")
TOKEN_TIMES = ("first_token", "between_tokens")
"""Of answers that are streams of tokens."""

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
UNANSWERED = "unanswered"
LEAST_BEYOND = 10
"""A percentile needs that many values beyond it."""


class LoadTimes(Record):
    """One kind of time over the requests of a phase, ms.

    Of latency and queueing, requests without an answer in time (`timeout`, `unanswered`, open when a process was
    killed) count as slower than all others: mean and maximum are null then, and so is a percentile that falls among
    them. Other errors (`refused`, `http-503`, an exception) come at once and have no latency; `errors` counts them.
    """

    count: int = 0
    """Requests that were answered without error, and have it; of lateness, all that were sent."""

    slower: int = 0
    """Requests without an answer in time."""

    mean: LoadFigure = LoadFigure()
    p50: LoadFigure = LoadFigure()
    p90: LoadFigure = LoadFigure()
    p95: LoadFigure = LoadFigure()
    p99: LoadFigure = LoadFigure()
    p99_9: LoadFigure = LoadFigure()
    max: LoadFigure = LoadFigure()
    reason: str | None = None
    """Why there is none of it."""

    histogram: str | None = None
    """HDR histogram of the values in ns, 3 digits, V2 encoding."""


class Objective(Record):
    """What an answer in time is: the percentile of the latency that has to be below `latency_ms`."""

    latency_ms: float = Field(gt=0, allow_inf_nan=False)
    percentile: float = Field(default=99.0, gt=0, lt=100)
    max_error_rate: float | None = Field(default=None, ge=0, lt=1)
    """share of the requests that may fail; null: as many as may be late"""


class TargetRecord(Record):
    """What received the load."""

    kind: TargetKind
    name: str
    processes: int = 1
    request: dict[str, Any] | None = None
    """What is sent and expected over HTTP, as it was given; null for other targets."""

    model: dict[str, Any] | None = None
    """How a model is run: backend, mode, device, precision, shapes; null for other targets."""

    started: MaskedArguments | None = None
    """The command of the server that was started and traced; null: none was."""


class PhaseResult(Record):
    """A part of the profile."""

    name: str
    loop: Loop
    is_warmup: bool = False
    """Excluded from `overall`, the findings and the trace's batches."""

    asked_rate: float | None = None
    """Requests a second that the profile asks for, on average; null in a closed loop."""

    achieved_rate: float | None = None
    """Answers a second, errors included, from the begin of the phase to its end or its last answer, what is later."""

    concurrency: int
    """Workers of all processes: how many requests can be in service at a time."""

    start_s: float
    """Since the begin of the run."""

    duration_s: float
    """Without the time in which late answers were awaited."""

    arrivals: int
    """Requests that were due."""

    sent: int
    completed: int
    """Answers, errors included."""

    ok: int
    items: int
    """Of the answers without error."""

    items_per_second: float | None = None
    """Over the same time as `achieved_rate`."""

    goodput: float | None = None
    """Answers without error within the objective, a second, over the same time: an answer in the grace period counts if
    it is within the objective, and lengthens the time. Null without an objective."""

    within_objective: int | None = None
    latency: LoadTimes
    """From the intended moment of sending to the answer."""

    queueing: LoadTimes
    """From the intended moment to the begin of service."""

    service: LoadTimes
    """From the begin of service to the answer."""

    lateness: LoadTimes
    """What the generator itself was late."""

    first_token: LoadTimes | None = None
    """From the intended moment of sending to the first token; null where no answer was a stream of tokens."""

    between_tokens: LoadTimes | None = None
    """Between two parts of a stream that have text; null where there is none."""

    tokens: int | None = None
    """Of the answers without error; null where the target counts none."""

    tokens_per_second: float | None = None
    errors: dict[str, int] = Field(default_factory=dict)
    """By kind; a request that got no answer in time is `unanswered`."""

    @property
    def unanswered(self) -> int:
        """Requests that were given up: when the grace period ended, or the run."""
        return self.errors.get(UNANSWERED, 0)

    @property
    def never_sent(self) -> int:
        """Of these, those for which no worker was free."""
        return min(self.unanswered, self.arrivals - self.sent)


class LoadWindow(Record):
    """One second of the run.

    A request counts in `arrivals` when it was due, and in all else when it was done: during a stall requests arrive,
    and the windows have none that were completed, while `in_flight_max` grows.
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
    in_flight_max: int | None = None
    """Most requests that were due and not answered, at a time, of all processes together."""

    queue_max: int | None = None
    """Most of these whose service had not begun, at a time; of a failed request whose begin is not known, that were not
    sent."""

    rss_mb: float | None = None
    """Memory of the process that holds the target; of all of them, where there are several."""

    p50_ms: float | None = None
    """Of the latency of the answers in this window; requests without an answer in time are slower than all of them.
    Null where it is one of these.
    """

    p99_ms: float | None = None
    """Also null where fewer than 10 values are beyond it."""


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
    profile: dict[str, Any]
    """As it was given, seed included."""

    status: Status
    status_reason: str | None = None
    objective: Objective | None = None
    created: str
    duration_s: float
    phases: list[PhaseResult]
    windows: list[LoadWindow]
    levels_reason: str | None = None
    """Why windows have no `in_flight_max`, or no `queue_max`."""

    errors: list[ErrorKind] = Field(default_factory=list)
    tracer: str | None = None
    """What traced the process of the target, whose cost is in its times: nsys, embedded, ranges; null: nothing did."""

    generator_limited: bool = False
    """Whether the generator, not the target, explains the latency."""

    sustained: Sustained | None = None
    """What changed over the longest phase that counts; null: it is shorter than 30 s."""

    requests_kept: str | None = None
    """Which requests `requests.parquet` has, where it is not all of them."""

    findings: list[Finding] = Field(default_factory=list)

    def in_warmup(self, kind: str) -> int:
        """Errors of a kind in phases that do not count."""
        return sum(phase.errors.get(kind, 0) for phase in self.phases if phase.is_warmup)

    def phase(self, name: str) -> PhaseResult:
        """By its name. Raises `KeyError`."""
        return next(phase for phase in self.phases if phase.name == name)
