"""`recorder.json`: the recorder's own counts, against which a trace is checked. Read back, so validated."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.measured import ProcessFacts

JOURNAL_NAME = "recorder.json"
JOURNALS_OF_CHILDREN = "recorder_*.json"
"""Pattern of the files of further processes of one measured process."""


class CapturedRecord(Record):
    """What of a recorder was let through to the tracer."""

    ranges: int
    """Those around the batches included, which are opened once more where the capture begins."""

    batches: int


class RecorderRecord(Record):
    """What one recorder counted."""

    name: str
    domain: str
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the script; values that look like secrets are masked."""

    ranges: int
    """Pushed, deleted and open ones included: as many must be in the trace."""

    batches: int
    """Popped, deleted ones included; of earlier versions without them."""

    items: int
    """Of these batches."""

    failed_batches: int = 0
    """Of these batches, ended by an exception, and so deleted."""

    deleted_ranges: int = 0
    """Popped with `delete_range`, without those below."""

    threads: int = 0
    finalized: bool
    open_ranges: list[str] = Field(default_factory=list)
    captured: CapturedRecord | None = None
    """None: everything, as ever but with `--capture-batches`."""

    @property
    def recorded_ranges(self) -> int:
        """How many must be in the trace."""
        return self.ranges if self.captured is None else self.captured.ranges

    @property
    def recorded_items(self) -> int:
        """The same of items; of captured batches they are not counted."""
        return self.items if self.captured is None else 0


class StartupRangeRecord(Record):
    """A `startup_range` that has ended."""

    name: str
    begin_unix_ns: int
    duration_ns: int
    thread: int | None = None
    failed: bool = False


class StartupRecord(Record):
    """What the recorder knows of the time before the first batch; UTC nanoseconds."""

    first_recorder_unix_ns: int | None = None
    first_batch_unix_ns: int | None = None
    ranges: list[StartupRangeRecord] = Field(default_factory=list)


class BarrierWait(Record):
    """A thread that waited for the other processes to reach their first measured batch."""

    loop: str
    """Recorder, ranges and name of the batch, joined by slashes."""

    thread: int | None = None
    begin_unix_ns: int
    waited_ns: int


class RecorderJournal(ProcessFacts):
    """All recorders of one process."""

    schema_version: int
    nvtx_version: str | None = None
    nvtx_disabled: bool = False
    """Whether NVTX_DISABLE switched nvtx off."""

    python_version: str | None = None
    listening: bool | None = None
    """Whether a tool took the NVTX ranges; None where nvtx is too old to report it."""

    ended: str
    """`finalized`, `exit` (also `sys.exit`), `exception`, `exec`: it became another program without a recorder, or
    `running`: killed, with the counts of the last write."""

    cuda_loaded: bool | None = None
    """Whether CUDA was initialised in the process at its end; earlier versions: whether its driver was loaded."""

    instruments: list[str] = Field(default_factory=list)
    """Settings and instruments that slow the process down, as they were found at its end."""

    startup: StartupRecord | None = None
    """None in a forked child."""

    start_barrier: list[BarrierWait] | None = None
    """Each time that a thread waited at the start barrier; None where the launch held none."""

    compiled_ranges: list[str] = Field(default_factory=list)
    """Names of ranges that torch.compile met while it compiled, and which nothing records there."""

    recorders: list[RecorderRecord] = Field(default_factory=list)

    @property
    def is_forked(self) -> bool:
        """Whether the process is a forked child, which goes on with the recorders that its parent made."""
        return self.startup is None and self.parent_pid is not None
