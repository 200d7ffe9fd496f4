"""What `perfharness analyze --slowest` says; times in ms. Null: not measured, or not there; a reason is beside it."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import BaseModel, ConfigDict

SLOWEST_VERSION = 1


class Reason(str, Enum):
    """What a part of a request's time is."""

    QUEUE = "queue"
    """From the intended send time until service began, less what the generator was late."""
    GENERATOR = "generator-late"
    """A worker was free, and the generator sent the request later: a fault of the measurement, not of the target."""
    OUTSIDE = "outside-batch"
    """In the latency, and neither before service began nor in the batch."""
    HOST = "host-time"
    """On the host, in nothing that the trace has: it computes, or waits for what was not recorded."""
    COLLECTION = "garbage-collection"
    INTERPRETER_LOCK = "interpreter-lock"
    LOCK = "lock"
    """Waits for another thread."""
    SLEEP = "sleep"
    PROCESS = "process"
    """Waits for another process: its end, a pipe, a local socket."""
    FILE = "file"
    SOCKET = "socket"
    OFF_CPU = "off-cpu"
    """Waits; what for was not recorded."""
    CROWDED = "own-threads"
    """Waits for a CPU while its own process used almost all that it may."""
    CPU = "no-cpu"
    """Ready to run, and had no CPU."""
    LAUNCH = "launch"
    """In calls that start GPU work."""
    SYNCHRONIZE = "synchronize"
    """In blocking calls while nothing of this process ran on the GPU."""
    ALLOCATE = "allocate"
    """Memory allocated or freed by CUDA."""
    COPY_CALL = "copy-call"
    """In copy calls while nothing of this process ran on the GPU."""
    COMPILE = "compile-or-load"
    """Modules loaded, code compiled, contexts made."""
    CUDA_CALL = "cuda-call"
    KERNEL = "kernel"
    """Waits for kernels of its own that did not take longer themselves, or began later."""
    KERNEL_LONGER = "kernel-longer"
    MORE_KERNELS = "more-kernels"
    COPY = "copy"
    COPY_LONGER = "copy-longer"
    COPY_LARGER = "copy-larger"
    MORE_COPIES = "more-copies"
    MEMSET = "memset"
    GRAPH = "graph-replay"
    OTHER_WORK = "other-gpu-work"
    """Waits while the GPU does what another batch, stream or thread of the process started."""
    THROTTLED = "throttled"
    """GPU work took longer while the GPU's clocks were throttled."""
    SEVERAL = "several"
    """A stage took longer in many parts, each too small to be named."""


Evidence = Literal["trace", "readings", "samples"]
"""`trace`: recorded events. `readings`: by counters of the thread around the batch; at least so much, and the stage is
the one whose host time grew. `samples`: sampled states of the thread."""

Verdict = Literal["explained", "unexplained", "usual", "not-compared"]
"""`explained`: named parts hold half of the difference or more. `usual`: they do not, and the time is within the usual
spread. `not-compared`: there is no typical batch, or none of this request in the trace."""


class _Model(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class Line(_Model):
    """A line of code."""

    function: str
    file: str
    line: int


class Part(_Model):
    """What was different: one part of the difference, larger than the usual spread of that part."""

    reason: Reason
    stage: str | None
    """Path in the batch; null: in none of its stages."""
    name: str | None
    """Of a kernel, a copy's direction, a CUDA function."""
    ms: float
    """`slow_ms - typical_ms`; negative: less than usual."""
    slow_ms: float
    typical_ms: float
    """Median over the typical batches."""
    usual_ms: float
    """A difference up to this is the usual spread."""
    evidence: Evidence
    count: int | None = None
    typical_count: float | None = None
    """Of GPU operations of that name in the batch."""
    size_bytes: int | None = None
    typical_size_bytes: float | None = None
    """That copies of that name moved in the batch."""
    detail: str | None = None
    """Who held the lock, what another thread did meanwhile, why clocks were throttled."""
    where: Line | None = None
    """That the thread was at in most samples, where stacks were sampled."""


class StageBeside(_Model):
    """Host time of a stage in the request, all of its ranges, beside the typical one."""

    stage: str
    slow_ms: float
    typical_ms: float


class OperationBeside(_Model):
    """GPU operations of a name that the batch started, beside the typical one. Times are sums."""

    name: str
    count: int
    typical_count: float
    gpu_ms: float
    typical_gpu_ms: float


class Typical(_Model):
    """What a request is compared with."""

    batches: int
    """How many it is made of: batches of the same loop (with equal `alike`), without warm-up and this request."""
    of: int
    """How many there were to choose from; where these are more, the others were drawn at random, from a fixed seed."""
    alike: list[str]
    """What they have in common with the request: items, input, phase."""
    ms: float
    """Median of their latencies."""
    usual_ms: float
    """A difference of latencies up to this is the usual spread."""
    nearest_batch: int
    """Index of the batch whose latency is the nearest to the median."""


class RankWait(_Model):
    """What a rank waited in the collectives of a batch for the rank that came last; that time is in the parts, too."""

    rank: int
    ms: float
    typical_ms: float | None
    """Median over its other batches, whichever rank came last."""


class SlowRequest(_Model):
    """A request, or batch. `ms` is its latency where requests were recorded, else the duration of its batch."""

    process: str
    index: int
    """Of the batch: the request's id."""
    at_s: float | None
    """When it began (was intended), since the first batch of its process (or, without a batch, null)."""
    items: int | None
    input: str | None
    phase: str | None
    error: str | None
    ms: float
    queue_ms: float | None
    """From the intended send time until service began."""
    batch_ms: float | None
    verdict: Verdict
    reason: str | None
    """Why it was not compared."""
    typical: Typical | None
    difference_ms: float | None
    """Sum of the parts, `small_ms` and `rest_ms`."""
    parts: list[Part]
    """The largest first."""
    small_ms: float | None
    """Sum of all differences that are within the usual spread of their part, or too small to be named."""
    rest_ms: float | None
    """What is left: medians of parts do not sum to the median of the whole."""
    stages: list[StageBeside]
    operations: list[OperationBeside]
    waited_for: RankWait | None = None
    """Null: it is no rank, it is not known, or it is no more than 2 % of the difference more than typical."""


class CommonCause(_Model):
    """What is the largest part of the difference in several of the slow requests."""

    reason: Reason
    stage: str | None
    name: str | None
    requests: int
    of: int
    """How many slow requests were compared."""
    median_ms: float


class SlowLoop(_Model):
    """The slowest requests of the loops of one path (recorder and ranges around the batch), over all processes."""

    loop: str
    processes: int
    batches: int
    """Without warm-up."""
    measured_by: Literal["latency", "duration"]
    """`latency`: done less intended, of recorded requests. `duration`: of batches."""
    requests: list[SlowRequest]
    common: list[CommonCause]
    unexplained: int
    """Of `requests`, how many nothing in the trace explains."""


class Slowest(_Model):
    """The document of `perfharness analyze --slowest N --format json`."""

    schema_version: int = SLOWEST_VERSION
    asked: int
    loops: list[SlowLoop]
    notes: list[str]
    """What was not recorded, so that it cannot be named as a reason."""
