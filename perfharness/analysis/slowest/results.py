"""The document of `perfharness analyze --slowest`; times in ms. Null: not measured, or not there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfharness.model.base import Record

SLOWEST_VERSION = 2

QUEUE = "queue"
GENERATOR = "generator-late"
OUTSIDE = "outside-batch"

Verdict = Literal["explained", "unexplained", "usual", "not-compared"]
"""`explained`: named parts are half of the difference or more. `usual`: the time is within the usual spread.
`not-compared`: there is no typical batch, or the trace has no batch of this request."""


class Line(Record):
    """A line of code."""

    function: str
    file: str
    line: int


class Part(Record):
    """One part of the difference."""

    reason: str
    """What the thread did (an activity); of a request, also: `queue`, from the intended send time until service began;
    `generator-late`, the part of that in which a worker was free; `outside-batch`, the rest outside of the batch."""
    stage: str | None  # path in the batch; null: in none of its stages
    name: str | None  # the GPU work that was waited for, or the CUDA function
    ms: float  # `slow_ms - typical_ms`; negative: less than usual
    slow_ms: float
    typical_ms: float  # median over the typical batches
    usual_ms: float  # a difference up to this is the usual spread
    samples: int | None = None  # of the slow batch that show it; null: all of it was recorded
    where: Line | None = None  # of most samples


class StageBeside(Record):
    """Host time of all ranges of a stage, beside the typical one."""

    stage: str
    slow_ms: float
    typical_ms: float


class OperationBeside(Record):
    """GPU operations of one name that the batch started, beside the typical one. Times and bytes are sums."""

    name: str
    count: int
    typical_count: float
    gpu_ms: float
    typical_gpu_ms: float
    copied_bytes: int
    typical_copied_bytes: float


class Typical(Record):
    """What a request is compared with."""

    batches: int  # of the same loop and process, without warm-up and this request
    ms: float  # median
    usual_ms: float  # a difference up to this is the usual spread
    nearest_batch: int  # index of the batch nearest to the median


class SlowRequest(Record):
    """A request, or batch."""

    process: str
    index: int  # of the batch: the request's id
    at_s: float | None  # start, since the first batch of its process, or since the first request was due
    items: int | None
    input: str | None
    phase: str | None
    error: str | None
    ms: float  # latency of a recorded request, else duration of the batch
    queue_ms: float | None  # from the intended send time until service began
    batch_ms: float | None
    verdict: Verdict
    reason: str | None  # why it was not compared
    typical: Typical | None = None
    difference_ms: float | None = None  # sum of the parts, `small_ms` and `rest_ms`
    parts: list[Part] = Field(default_factory=list)  # the largest first
    small_ms: float | None = None  # parts within their usual spread, or too small to be named
    rest_ms: float | None = None  # medians of parts do not sum to the median of the whole
    throttled: list[str] = Field(default_factory=list)  # reasons in this batch, and in at most half of the typical ones
    stages: list[StageBeside] = Field(default_factory=list)
    operations: list[OperationBeside] = Field(default_factory=list)


class SlowLoop(Record):
    """The slowest requests of the loops of one path (recorder and ranges around the batch), over all processes."""

    loop: str
    processes: int
    batches: int  # without warm-up
    measured_by: Literal["latency", "duration"]
    """`latency`: done less intended, of recorded requests. `duration`: of batches."""
    requests: list[SlowRequest]
    unexplained: int  # of `requests`


class Slowest(Record):
    """The document of `perfharness analyze --slowest N --format json`."""

    schema_version: int = SLOWEST_VERSION
    asked: int
    loops: list[SlowLoop]
    notes: list[str]  # what was not recorded, so that it cannot be named as a reason
