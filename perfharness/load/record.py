"""The rows of the requests and a line per second, written during the load: a kill loses the last second.

Workers append plain tuples; a thread writes them once per second, in whole columns, to keep the interpreter free for
the target. Rows go into an Arrow stream, which becomes `requests.parquet`. Each line of `load_windows.jsonl` is a JSON
object with a `kind`: `run`, `phase`, `window`, `phase-end`, `end`.
"""

from __future__ import annotations

import json
import resource
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from perfharness.bench.memory import host_bytes
from perfharness.errors import ResultError
from perfharness.files import reason_of
from perfharness.load.request import UNANSWERED
from perfharness.load.timer import NOT_STOPPED_NS, Stop
from perfharness.model.columns import Int64
from perfharness.model.load import STREAM_NAME, WINDOWS_NAME
from perfharness.secrets import mask_text

WINDOW_NS = 1_000_000_000
HANDED_IN_S = 0.05
"""Delay after the end of a window until it is written: answers are handed in shortly after they arrive."""

PAGE_BYTES = resource.getpagesize()

NEVER_NS = 0
"""In a record: no such time."""

MOMENTS = ("intended_ns", "ready_ns", "sent_ns", "begun_ns", "done_ns", "first_token_ns")
TYPES: dict[str, pa.DataType] = {
    **{name: pa.string() for name in ("phase", "input", "error", "message")},
    **{name: pa.int64() for name in ("id", "items", *MOMENTS, "tokens")},
    "token_gaps_ns": pa.list_(pa.int64()),
}


class Done(NamedTuple):
    """A request that was answered, or given up. Times are of the monotonic clock; `NEVER_NS`: unknown."""

    id: int
    input: str | None
    items: int
    """Answered items; for an error, requested items."""

    intended_ns: int
    ready_ns: int
    """When a worker was free for the request."""

    sent_ns: int
    begun_ns: int
    done_ns: int
    error: str | None = None
    message: str | None = None
    first_token_ns: int = NEVER_NS
    token_gaps_ns: Sequence[int] = ()
    tokens: int | None = None


SCHEMA = pa.schema([(name, TYPES[name]) for name in ("phase", *Done._fields)])


def moments(times_ns: Sequence[int] | Int64) -> pa.Array:
    """Times as a column, with nulls for `NEVER_NS`."""
    times_ns = np.asarray(times_ns, np.int64)
    return pa.array(times_ns, mask=times_ns == NEVER_NS)


def rows_of(phase: str, records: Sequence[Done]) -> pa.RecordBatch:
    """The records as rows."""
    values = zip(*records, strict=True) if records else [()] * len(Done._fields)
    columns = [
        moments(column) if name in MOMENTS else pa.array(column, TYPES[name])
        for name, column in zip(Done._fields, values, strict=True)
    ]
    return pa.RecordBatch.from_arrays([pa.array([phase] * len(records), pa.string()), *columns], schema=SCHEMA)


def memory_bytes_below(pid: int | None) -> int | None:
    """Resident memory of a process and its descendants; None: it has ended, or the memory is unknown.

    Read from the kernel's lists of children: a scan of all processes takes about 10 ms, which would delay requests.
    """
    total, below = 0, [] if pid is None else [pid]
    while below:
        one = Path(f"/proc/{below.pop()}")
        with suppress(OSError):
            total += int((one / "statm").read_text().split()[1]) * PAGE_BYTES
        for children in one.glob("task/*/children"):
            with suppress(OSError):
                below += map(int, children.read_text().split())
    return total or None


@dataclass
class _Phase:
    index: int
    name: str
    due: Int64
    """Due times of an open loop; empty in a closed loop, where requests are due when sent."""

    is_open: bool
    begin_ns: int
    """Begin of the open window."""

    window: int = 0
    counted_due: int = 0
    open: int = 0
    """Requests that are due and unanswered."""


@dataclass
class LoadLog:
    """Collects the records of a process, and writes them once per second.

    Args:
        on_window: called with each line of a window after it was written.
    """

    folder: Path
    memory_bytes: Callable[[], int | None] = host_bytes
    on_window: Callable[[dict[str, Any]], None] = lambda window: None
    stop: Stop = field(default_factory=Stop)
    """Requests with a due time after this are dropped."""

    _done: deque[Done] = field(default_factory=deque, init=False)
    _seen: set[str] = field(default_factory=set, init=False)
    _failed: ResultError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.add = self._done.append
        """Hand in a record; any thread."""

        self._lines = (self.folder / WINDOWS_NAME).open("ab", buffering=0)
        self._stream = (self.folder / STREAM_NAME).open("wb", buffering=0)
        self._rows = pa.ipc.new_stream(self._stream, SCHEMA)

    def begin(self, start_ns: int, **facts: Any) -> None:
        """The clock of the run starts."""
        self._write({"kind": "run", "start_ns": start_ns, **facts})

    def begin_phase(self, index: int, name: str, start_ns: int, end_ns: int, due: Int64, **facts: Any) -> None:
        """A phase begins; `due` are the due times of an open loop."""
        self._phase = _Phase(index, name, due, facts["loop"] == "open", start_ns)
        self._write({"kind": "phase", "index": index, "name": name, "start_ns": start_ns, "end_ns": end_ns, **facts})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_windows, name="windows", daemon=True)
        self._thread.start()

    def end_phase(self) -> None:
        """The phase is over: all answered and given-up requests are handed in. Raises `ResultError`."""
        self._ended.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        stopped_ns = None if self.stop.at_ns == NOT_STOPPED_NS else self.stop.at_ns
        now = perf_counter_ns()
        while now - self._phase.begin_ns > WINDOW_NS:
            self._close(self._phase.begin_ns + WINDOW_NS)
        self._close(now, is_last=True)
        self._write({"kind": "phase-end", "index": self._phase.index, "at_ns": now, "stopped_ns": stopped_ns})

    def close(self, status: str, reason: str | None = None) -> None:
        """The run is over."""
        self._rows.close()
        self._stream.close()
        self._write({"kind": "end", "status": status, "reason": reason, "at_ns": perf_counter_ns()})
        self._lines.close()

    def _write(self, line: dict[str, Any], rows: pa.RecordBatch | None = None) -> None:
        """Append rows and a line at once: the process may be killed at any time. Raises `ResultError`.

        During a phase called by the thread of the windows only.
        """
        data = f"{json.dumps(line)}\n".encode()
        try:
            if rows is not None:
                self._rows.write_batch(rows)
            while data:
                data = data[self._lines.write(data) :]
        except OSError as error:
            self._lines.close()
            self._stream.close()
            raise ResultError(
                f"{self.folder} cannot be written to ({reason_of(error)}), so the load was stopped; free some space, "
                "or use another -o"
            ) from error

    def _write_windows(self) -> None:
        while True:
            end_ns = self._phase.begin_ns + WINDOW_NS
            if self._ended.wait(max((end_ns - perf_counter_ns()) / 1e9 + HANDED_IN_S, 0)):
                return
            try:
                self._close(end_ns)
            except ResultError as error:  # raised again at the end of the phase
                self._failed = error
                self.stop.set()
                return

    def _close(self, end_ns: int, *, is_last: bool = False) -> None:
        """Write the records up to the end of the window; in the last window, all records."""
        phase = self._phase
        taken = [self._done.popleft() for _ in range(len(self._done))]
        records = [one for one in taken if is_last or one.done_ns < end_ns]
        self._done.extendleft(one for one in reversed(taken) if not is_last and one.done_ns >= end_ns)
        arrivals = self._arrivals(records, end_ns)
        is_rest = is_last and phase.window > 0 and 2 * (end_ns - phase.begin_ns) < WINDOW_NS
        if is_rest and not (records or arrivals or phase.open):
            return  # the time until the end was noticed, without any request
        phase.open += arrivals - len(records)
        well = np.array([one.done_ns - one.intended_ns for one in records if one.error is None], np.int64)
        p50, p99 = np.quantile(well / 1e6, (0.5, 0.99)).tolist() if len(well) else (None, None)
        errors = Counter(one.error for one in records if one.error is not None)
        line = {
            "kind": "window",
            "phase": phase.index,
            "index": phase.window,
            "start_ns": phase.begin_ns,
            "end_ns": end_ns,
            "arrivals": arrivals,
            "completed": len(records) - errors[UNANSWERED],
            "ok": len(well),
            "items": sum(one.items for one in records if one.error is None),
            "errors": dict(errors),
            "open": phase.open if phase.is_open else None,
            "rss_bytes": self.memory_bytes(),
            "p50_ms": p50,
            "p99_ms": p99,
        }
        self._write(line, rows_of(phase.name, [self._with_first_message(one) for one in records]))
        phase.begin_ns, phase.window = end_ns, phase.window + 1
        self.on_window(line)

    def _arrivals(self, records: Sequence[Done], end_ns: int) -> int:
        """Number of requests that became due in the window."""
        phase = self._phase
        if not phase.is_open:
            return len(records)
        first = phase.counted_due
        phase.counted_due = max(int(np.searchsorted(phase.due, min(end_ns, self.stop.at_ns))), first)
        return phase.counted_due - first

    def _with_first_message(self, one: Done) -> Done:
        """Keep the first message of a kind only, without secrets: a target may quote its input."""
        if one.error is None or one.message is None:
            return one
        is_first = one.error not in self._seen
        self._seen.add(one.error)
        return one._replace(message=mask_text(one.message) if is_first else None)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of windows, without an incomplete last line. Raises `ResultError`."""
    try:
        lines = path.read_text("utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} is damaged ({error}); run the load test again") from error


def read_rows(folder: Path) -> pa.Table:
    """The rows written to the stream of a process, by their ids."""
    batches: list[pa.RecordBatch] = []
    with suppress(OSError, pa.ArrowInvalid), (folder / STREAM_NAME).open("rb") as file:
        batches.extend(pa.ipc.open_stream(file))  # up to an incomplete one
    return pa.Table.from_batches(batches, SCHEMA).sort_by("id")
