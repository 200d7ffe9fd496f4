"""`recorder.json`: the recorder's own counts, for checking a trace. Times are UTC."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.manifest import ProcessFacts

JOURNAL_NAME = "recorder.json"
JOURNALS_OF_CHILDREN = "recorder_*.json"  # of further processes of one measured process


class CapturedRecord(Record):
    """Captured part of a recorder."""

    ranges: int  # including those around the batches, which are reopened when the capture begins
    batches: int


class RecorderRecord(Record):
    """Counts of one recorder."""

    name: str
    domain: str
    args: dict[str, Any] = Field(default_factory=dict)  # of the script; secrets masked
    ranges: int  # pushed, including deleted and open ones; all must be in the trace
    batches: int  # popped, including deleted ones
    items: int  # of these batches
    failed_batches: int = 0  # of these batches: ended by an exception, and deleted
    deleted_ranges: int = 0  # popped with `delete_range`, without inner ones
    threads: int = 0
    finalized: bool
    open_ranges: list[str] = Field(default_factory=list)
    captured: CapturedRecord | None = None  # None for everything (no `--capture-batches`)

    @property
    def recorded_ranges(self) -> int:
        """Number of ranges that must be in the trace."""
        return (self.captured or self).ranges


class StartupRangeRecord(Record):
    """A completed `startup_range`."""

    name: str
    begin_unix_ns: int
    duration_ns: int
    thread: int | None = None
    failed: bool = False


class StartupRecord(Record):
    """The recorder's records of the time before the first batch."""

    first_recorder_unix_ns: int | None = None
    first_batch_unix_ns: int | None = None
    ranges: list[StartupRangeRecord] = Field(default_factory=list)


class BarrierWait(Record):
    """A thread's wait for the other processes to reach their first measured batch."""

    loop: str  # recorder, ranges and name of the batch, joined by slashes
    thread: int | None = None
    begin_unix_ns: int
    waited_ns: int


class RecorderJournal(ProcessFacts):
    """All recorders of one process."""

    schema_version: int
    nvtx_version: str | None = None
    nvtx_disabled: bool = False  # by NVTX_DISABLE
    python_version: str | None = None
    listening: bool | None = None  # a tool received the NVTX ranges; None if nvtx cannot report it
    ended: str
    """`finalized`, `exit`, `exception`, `exec` (became a program without a recorder), or `running` (killed)."""
    cuda_loaded: bool | None = None  # CUDA was initialised at the end
    instruments: list[str] = Field(default_factory=list)  # slow the process down; found at its end
    startup: StartupRecord | None = None  # None for a forked child
    start_barrier: list[BarrierWait] | None = None  # None without a barrier
    compiled_ranges: list[str] = Field(default_factory=list)  # inside torch.compile, where they are not recorded
    recorders: list[RecorderRecord] = Field(default_factory=list)

    @property
    def is_forked(self) -> bool:
        """Whether the process is a forked child, which continues with its parent's recorders."""
        return self.startup is None and self.parent_pid is not None
