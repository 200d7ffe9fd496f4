"""A measured process: one of the tree of a launched process that made ranges or GPU work."""

from __future__ import annotations

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.checks import Int64, MeasuredFolder, TraceName, UnixNs


def is_part_of(asked: str | None, folder: str) -> bool:
    """Whether a measured process is meant by the folder that was asked for, None: by all. That of a launched process
    means all that it started too.
    """
    return asked is None or folder == asked or folder.startswith(f"{asked}/")


class RankRecord(Record):
    """Which rank of a program of several processes a process is, as its environment tells it."""

    rank: Int64
    local_rank: Int64 | None = None
    world_size: Int64 | None = None
    source: str
    """Name of the variable."""


class ProcessFacts(Record):
    """What a process says of itself, in `recorder.json` or in its trace."""

    pid: int
    parent_pid: int | None = None
    ancestors: list[Int64] = Field(default_factory=list)
    """Pids of the processes above it, the nearest first; of earlier versions none."""

    started_unix_ns: UnixNs | None = None
    """When its recorder or its log was made, or it was forked; UTC."""

    start_ticks: Int64 | None = None
    """When the kernel started it, in clock ticks since the machine's start; of earlier versions none."""

    rank: RankRecord | None = None

    @property
    def above(self) -> list[int]:
        """Pids of the processes above it, as far as they are known, the nearest first."""
        return self.ancestors or ([] if self.parent_pid is None else [self.parent_pid])


class MeasuredProcess(Record):
    """Who it was, and where its results are."""

    folder: MeasuredFolder
    """Of its results, relative to the run folder: that of the launched process itself, or directly in it."""

    launched_index: Int64
    """`index` of the launched process."""

    pid: Int64
    trace_pid: Int64 | None = None
    """Pid that its trace has of it, where that is another, as in a container."""

    parent_pid: Int64 | None = None
    rank: Int64 | None = None
    """In a program of several ranks; None for what a rank starts, such as workers of a data loader."""

    local_rank: Int64 | None = None
    world_size: Int64 | None = None
    rank_source: str | None = None
    """Name of the environment variable that told the rank, such as `RANK`; None: there is no rank."""

    started_ns: UnixNs | None = None
    """When its recorder or its log was made, or its first event; UTC."""

    gpus: list[str] = Field(default_factory=list)
    """UUIDs of the GPUs on which its trace has work, where the trace names them."""

    trace: TraceName | None = None
    """Relative to the folder of the launched process. Several processes may share one, of which each has its pid's
    rows (nsys)."""
