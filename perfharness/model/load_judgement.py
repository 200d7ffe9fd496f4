"""What a load test comes to: whether a sustained run changed, and whether it meets an objective.

A verdict is `cannot-tell` or `undecided` where the interval leaves it open; its reason is beside it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfharness.model.base import Record

LeakVerdict = Literal["leaks", "does-not-leak", "cannot-tell"]
DriftVerdict = Literal["rises", "falls", "steady", "cannot-tell"]
StepVerdict = Literal["meets", "misses", "undecided"]


class _Model(Record, use_attribute_docstrings=True):
    """Its fields are described in schemas."""


class LoadFigure(_Model):
    """A number with its 95 % interval, where there is one."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    """why the number, or its interval, is null"""


class MemoryTrend(_Model):
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
    """the slope over the answers a second; null where it is no leak"""

    reason: str | None = None
    """why nothing can be said"""


class Drift(_Model):
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


class ClockChange(_Model):
    """The clocks of a GPU over a run."""

    gpu: str
    first_mhz: float | None = None
    last_mhz: float | None = None
    """median of the SM clock in the first and the last tenth"""

    drop_percent: float | None = None
    throttled_s: dict[str, float] | None = None
    """seconds by reason; null: the GPU does not report it"""

    power_w: float | None = None
    """mean of the readings; null, as all below: it was not sampled"""

    power_max_w: float | None = None
    temperature_first_c: float | None = None
    temperature_last_c: float | None = None
    """means of the first and the last tenth"""

    busy_percent: float | None = None
    """mean of the GPU's utilization: at least one kernel runs"""

    reason: str | None = None


class Sustained(_Model):
    """What changed over the longest phase of a run."""

    phase: str
    duration_s: float
    memory: list[MemoryTrend] = Field(default_factory=list)
    latency: list[Drift] = Field(default_factory=list)
    throughput: Drift | None = None
    """answers without error: their share of the arrivals of an open loop, a second of a closed one"""

    errors: list[Drift] = Field(default_factory=list)
    """share of the answers, by kind"""

    clocks: list[ClockChange] = Field(default_factory=list)
    queue_grows: bool | None = None
    """whether more and more requests of an open loop waited; null: cannot tell, or a closed loop"""
