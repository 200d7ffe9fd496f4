"""`recorder.json`: the recorder's own counts, against which a trace is checked. Times are UTC."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.manifest import ProcessFacts

JOURNAL_NAME = "recorder.json"
JOURNALS_OF_CHILDREN = "recorder_*.json"  # of further processes of one measured process


class CapturedRecord(Record):
    """What of a recorder was let through to the tracer."""

    ranges: int  # with those around the batches, which are opened again where the capture begins
    batches: int


class RecorderRecord(Record):
    """What one recorder counted."""

    name: str
    domain: str
    args: dict[str, Any] = Field(default_factory=dict)  # of the script; secrets masked
    ranges: int  # pushed, with deleted and open ones: as many must be in the trace
    batches: int  # popped, with deleted ones
    items: int  # of these batches
    failed_batches: int = 0  # of these batches: ended by an exception, and so deleted
    deleted_ranges: int = 0  # popped with `delete_range`, without those below
    threads: int = 0
    finalized: bool
    open_ranges: list[str] = Field(default_factory=list)
    captured: CapturedRecord | None = None  # None: everything (no `--capture-batches`)

    @property
    def recorded_ranges(self) -> int:
        """How many must be in the trace."""
        return self.ranges if self.captured is None else self.captured.ranges

    @property
    def recorded_items(self) -> int:
        """How many items must be in the trace; of captured batches they are not counted."""
        return self.items if self.captured is None else 0


class StartupRangeRecord(Record):
    """A `startup_range` that has ended."""

    name: str
    begin_unix_ns: int
    duration_ns: int
    thread: int | None = None
    failed: bool = False


class StartupRecord(Record):
    """What the recorder knows of the time before the first batch."""

    first_recorder_unix_ns: int | None = None
    first_batch_unix_ns: int | None = None
    ranges: list[StartupRangeRecord] = Field(default_factory=list)


class BarrierWait(Record):
    """A thread that waited for the other processes to reach their first measured batch."""

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
    listening: bool | None = None  # a tool took the NVTX ranges; None: nvtx is too old to report it
    ended: str
    """`finalized`, `exit`, `exception`, `exec` (became a program without a recorder), or `running` (killed)."""
    cuda_loaded: bool | None = None  # CUDA was initialised at its end
    instruments: list[str] = Field(default_factory=list)  # that slow the process down, found at its end
    startup: StartupRecord | None = None  # None: a forked child
    start_barrier: list[BarrierWait] | None = None  # None: the launch held none
    compiled_ranges: list[str] = Field(default_factory=list)  # that torch.compile met; nothing records them there
    recorders: list[RecorderRecord] = Field(default_factory=list)

    @property
    def is_forked(self) -> bool:
        """Whether the process is a forked child, which goes on with the recorders that its parent made."""
        return self.startup is None and self.parent_pid is not None
