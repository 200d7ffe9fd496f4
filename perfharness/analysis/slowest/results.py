"""The document of `perfharness analyze --slowest`; times in ms. Null if not measured or absent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfharness.model.base import Record

SLOWEST_VERSION = 2

QUEUE = "queue"
GENERATOR = "generator-late"
OUTSIDE = "outside-batch"

Verdict = Literal["explained", "unexplained", "usual", "not-compared"]
"""`explained`: named parts cover at least half of the difference. `usual`: within the usual spread. `not-compared`: no
typical batch exists, or the trace lacks the request's batch."""


class Line(Record):
    """A line of code."""

    function: str
    file: str
    line: int


class Part(Record):
    """One part of the difference."""

    reason: str
    """Activity of the thread. For a request also `queue`, from the intended send time until service began;
    `generator-late`, the part of that with a free worker; `outside-batch`, the rest outside the batch."""
    stage: str | None  # path in the batch; null outside its stages
    name: str | None  # GPU work waited for, or CUDA function
    ms: float  # `slow_ms - typical_ms`; negative if less than usual
    slow_ms: float
    typical_ms: float  # median over the typical batches
    usual_ms: float  # largest usual difference
    samples: int | None = None  # samples of the slow batch behind it; null if recorded
    where: Line | None = None  # line with most samples


class StageBeside(Record):
    """Total time of a stage's ranges, and the typical one."""

    stage: str
    slow_ms: float
    typical_ms: float


class OperationBeside(Record):
    """GPU operations of one name that the batch started, and the typical ones. Times and bytes are sums."""

    name: str
    count: int
    typical_count: float
    gpu_ms: float
    typical_gpu_ms: float
    copied_bytes: int
    typical_copied_bytes: float


class Typical(Record):
    """The reference of a comparison."""

    batches: int  # same loop and process, without warm-up and this request
    ms: float  # median
    usual_ms: float  # largest usual difference
    nearest_batch: int  # index of the batch nearest to the median


class SlowRequest(Record):
    """A request or batch."""

    process: str
    index: int  # of the batch; for a request, its id
    at_s: float | None  # start, since the process's first batch or the first request's due time
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
    small_ms: float | None = None  # parts within their usual spread, or too small to name
    rest_ms: float | None = None  # medians of parts do not add up to the median of the whole
    throttled: list[str] = Field(default_factory=list)  # reasons in this batch and at most half of the typical ones
    stages: list[StageBeside] = Field(default_factory=list)
    operations: list[OperationBeside] = Field(default_factory=list)


class SlowLoop(Record):
    """The slowest requests of the loops of one path (recorder and ranges around the batch), over all processes."""

    loop: str
    processes: int
    batches: int  # without warm-up
    measured_by: Literal["latency", "duration"]
    """`latency`: from intended start to end of recorded requests. `duration`: of batches."""
    requests: list[SlowRequest]
    unexplained: int  # of `requests`


class Slowest(Record):
    """The document of `perfharness analyze --slowest N --format json`."""

    schema_version: int = SLOWEST_VERSION
    asked: int
    loops: list[SlowLoop]
    notes: list[str]  # data not recorded, which cannot be named as a reason
