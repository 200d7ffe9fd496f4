"""What requests came to, a second at a time: the file that a kill cuts off by at most one window.

Workers append plain tuples; a thread counts them once a second, in whole arrays, so that the target keeps the
interpreter. Each line of the file is a JSON object with a `kind`: `run`, `phase`, `window`, `phase-end`, `end`.
"""

from __future__ import annotations

import json
import resource
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import psutil

from perfharness.errors import ResultError
from perfharness.files import reason_of
from perfharness.load.generator.timer import NOT_STOPPED_NS, Stop
from perfharness.load.histogram import Histogram, Ints
from perfharness.load.request import UNANSWERED
from perfharness.model.load import WINDOWS_NAME
from perfharness.secrets import mask_text

WINDOW_NS = 1_000_000_000
SETTLE_S = 0.05
"""A window is counted that much after its end, for answers are handed in a little after they came."""

PAGE_BYTES = resource.getpagesize()
KERNEL_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()

NEVER_NS = 0
"""In a record: there is no such moment."""


class Done(NamedTuple):
    """A request that was answered, or given up. Moments are of the monotonic clock; `NEVER_NS`: not known."""

    id: int
    input: str | None
    items: int
    """Answered; of an error, asked for."""

    intended_ns: int
    ready_ns: int
    """When a worker was free for it."""

    sent_ns: int
    begun_ns: int
    done_ns: int
    error: str | None = None
    message: str | None = None
    first_token_ns: int = NEVER_NS
    token_gaps_ns: Sequence[int] = ()
    tokens: int | None = None


def own_memory_bytes() -> int | None:
    """Resident memory of this process."""
    try:
        return int(psutil.Process().memory_info().rss)
    except psutil.Error:
        return None


def memory_bytes_below(pid: int) -> int | None:
    """Resident memory of a process and all below it; None: it is gone.

    Read from the kernel's lists of children: looking through all processes of the machine takes some 10 ms, in which
    requests would be late.
    """
    if not KERNEL_LISTS_CHILDREN:
        return _memory_by_search(pid)
    try:
        total = _resident_bytes(pid)
    except OSError:
        return None
    below = [pid]
    while below:
        for child in _children(below.pop()):
            with suppress(OSError):
                total += _resident_bytes(child)
                below.append(child)
    return total


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _memory_by_search(pid: int) -> int | None:
    try:
        process = psutil.Process(pid)
        total = process.memory_info().rss
        below = process.children(recursive=True)
    except psutil.Error:
        return None
    for one in below:
        with suppress(psutil.Error):
            total += one.memory_info().rss
    return int(total)


@dataclass
class _Phase:
    index: int
    name: str
    start_ns: int
    end_ns: int
    due: Ints
    """Moments at which requests of an open loop are due; empty in a closed loop, where they are due when sent."""

    is_open: bool
    in_flight: int = 0
    counted_due: int = 0


@dataclass
class WindowLog:
    """Counts the requests of a run, and appends a line a window to a file.

    Args:
        requests: is given every record, for the table of requests.
        memory_bytes: of the process that holds the target.
        on_window: called with each window after it was written.
    """

    folder: Path
    objective_ns: int | None = None
    requests: Callable[[str, list[Done]], None] | None = None
    memory_bytes: Callable[[], int | None] = own_memory_bytes
    on_window: Callable[[dict[str, Any]], None] = lambda window: None
    stop: Stop = field(default_factory=Stop)
    """Requests that are due after that are not."""

    window_ns: int = WINDOW_NS
    _done: deque[Done] = field(default_factory=deque, init=False)
    _phase: _Phase | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _seen: set[str] = field(default_factory=set, init=False)
    _index: int = field(default=0, init=False)
    _begin_ns: int = field(default=0, init=False)
    """Of the open window."""

    _run_ns: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.add = self._done.append
        """Hand in a record; any thread."""

        self._file = (self.folder / WINDOWS_NAME).open("ab", buffering=0)

    def begin(self, start_ns: int, **facts: Any) -> None:
        """The clock of the run starts."""
        self._run_ns = start_ns
        self.write({"kind": "run", "start_ns": start_ns, **facts})

    def begin_phase(self, index: int, name: str, start_ns: int, end_ns: int, due: Ints, **facts: Any) -> None:
        """A phase begins; `due` are the moments of an open loop's requests."""
        with self._lock:
            self._phase = _Phase(index, name, start_ns, end_ns, due, facts["loop"] == "open")
            self._begin_ns, self._index = start_ns, 0
        self.write({"kind": "phase", "index": index, "name": name, "start_ns": start_ns, "end_ns": end_ns, **facts})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count_windows, args=(self._ended,), name="windows", daemon=True)
        self._thread.start()

    def end_phase(self) -> None:
        """All that was answered is handed in, and all that was given up."""
        self._ended.set()
        self._thread.join()
        stopped_ns = None if self.stop.at_ns == NOT_STOPPED_NS else self.stop.at_ns
        now = perf_counter_ns()
        assert self._phase is not None
        while now - self._begin_ns > self.window_ns:
            self._close(self._begin_ns + self.window_ns)
        self._close(now, everything=True)
        self.write({"kind": "phase-end", "index": self._phase.index, "at_ns": now, "stopped_ns": stopped_ns})

    def close(self, status: str, reason: str | None = None, **facts: Any) -> None:
        """The run is over."""
        self.write({"kind": "end", "status": status, "reason": reason, "at_ns": perf_counter_ns(), **facts})
        self._file.close()

    def write(self, line: dict[str, Any]) -> None:
        """Append a line. Written at once, for the process may be killed at any time. Raises `ResultError`."""
        data = f"{json.dumps(line)}\n".encode()
        try:
            with self._lock:
                while data:
                    data = data[self._file.write(data) :]
        except OSError as error:
            raise ResultError(
                f"{self.folder / WINDOWS_NAME} cannot be written ({reason_of(error)}), so the load was ended; what it "
                "has is kept: free some space, or name another -o"
            ) from error

    def _count_windows(self, ended: threading.Event) -> None:
        while True:
            end_ns = self._begin_ns + self.window_ns
            if ended.wait(max((end_ns - perf_counter_ns()) / 1e9 + SETTLE_S, 0)):
                return
            try:
                self._close(end_ns)
            except ResultError:  # raised again at the end of the phase, where somebody hears it
                self.stop.set()
                return

    def _close(self, end_ns: int, *, everything: bool = False) -> None:
        """Count what was done up to the end of the window; of a last one, everything."""
        phase = self._phase
        assert phase is not None
        records: list[Done] = []
        later: list[Done] = []
        while self._done:
            one = self._done.popleft()
            (records if everything or one.done_ns < end_ns else later).append(one)
        self._done.extendleft(reversed(later))
        line = self._counted(phase, records, end_ns)
        is_rest = everything and self._index > 0 and 2 * (end_ns - self._begin_ns) < self.window_ns
        if is_rest and not (records or line["arrivals"] or line["in_flight_max"]):
            return  # the moment until the end was noticed, in which nothing could happen, is no window of 0 a second
        self.write(line)
        if self.requests is not None:
            self.requests(phase.name, records)
        self._begin_ns, self._index = end_ns, self._index + 1
        self.on_window(line)

    def _counted(self, phase: _Phase, records: list[Done], end_ns: int) -> dict[str, Any]:
        answered = [one for one in records if one.error != UNANSWERED]
        well = [one for one in answered if one.error is None]
        errors = Counter(one.error for one in records if one.error is not None)
        table = np.array(
            [(one.intended_ns, one.ready_ns, one.sent_ns, one.begun_ns, one.done_ns) for one in answered], np.int64
        ).reshape(-1, 5)
        intended, ready, sent, begun, done = table.T
        is_well = np.array([one.error is None for one in answered], bool)
        knows = is_well & (begun != NEVER_NS)
        values = {
            "latency": (done - intended)[is_well],
            "queueing": (begun - intended)[knows],
            "service": (done - begun)[knows],
            "lateness": sent - np.maximum(intended, ready),
        }
        arrivals, in_flight_max = self._flow(phase, records, done, end_ns)
        memory = self.memory_bytes()
        within = None if self.objective_ns is None else int((values["latency"] <= self.objective_ns).sum())
        line: dict[str, Any] = {
            "kind": "window",
            "phase": phase.index,
            "index": self._index,
            "start_ns": self._begin_ns,
            "end_ns": end_ns,
            "last_done_ns": int(done.max()) if len(done) else None,
            "arrivals": arrivals,
            "sent": sum(one.sent_ns != NEVER_NS for one in records),
            "completed": len(answered),
            "ok": len(well),
            "within_objective": within,
            "items": sum(one.items for one in well),
            "errors": dict(errors),
            "unanswered": len(records) - len(answered),
            "first": list(self._first_errors(records)),
            "in_flight_max": in_flight_max,
            "rss_bytes": memory,
        }
        values |= _token_times(well)
        for name, found in values.items():
            histogram = Histogram()
            histogram.add(found)
            line[name] = histogram.to_json()
        counted = [one.tokens for one in well if one.tokens is not None]
        return {**line, "tokens": sum(counted)} if counted else line

    def _flow(self, phase: _Phase, records: list[Done], done: Ints, end_ns: int) -> tuple[int, int | None]:
        """How many requests became due in the window, and how many were due and not answered, at most; of a closed
        loop that is not known here, for a request is handed in when it is over.
        """
        if not phase.is_open:
            return len(records), None
        first = phase.counted_due
        last = max(int(np.searchsorted(phase.due, min(end_ns, self.stop.at_ns))), first)
        came, phase.counted_due = phase.due[first:last], last
        moments = np.concatenate([came, done])
        steps = np.concatenate([np.ones(len(came), np.int64), -np.ones(len(done), np.int64)])
        order = np.lexsort((steps, moments))  # an answer before an arrival of the same moment
        level = phase.in_flight + np.cumsum(steps[order])
        most = max(phase.in_flight, int(level.max())) if len(level) else phase.in_flight
        phase.in_flight += len(came) - len(done)
        return len(came), most

    def _first_errors(self, records: list[Done]) -> Iterator[dict[str, Any]]:
        for one in records:
            if one.error is not None and one.error not in self._seen:
                self._seen.add(one.error)
                at_ns = one.done_ns or one.intended_ns
                yield {
                    "kind": one.error,
                    "request": one.id,
                    "at_s": (at_ns - self._run_ns) / 1e9,
                    "message": None if one.message is None else mask_text(one.message),  # a target quotes what it got
                }


def _token_times(well: Sequence[Done]) -> dict[str, Ints]:
    """Of streams of tokens; empty where none was one."""
    streamed = [one for one in well if one.first_token_ns != NEVER_NS]
    if not streamed:
        return {}
    gaps = [np.asarray(one.token_gaps_ns, np.int64) for one in streamed]
    first = np.array([one.first_token_ns - one.intended_ns for one in streamed], np.int64)
    return {"first_token": first, "between_tokens": np.concatenate(gaps)}


@dataclass
class GrowingLines:
    """A file of windows that is still written."""

    path: Path
    _offset: int = field(default=0, init=False)

    def new(self) -> list[dict[str, Any]]:
        """The whole lines since the last call; none where the file does not exist yet."""
        try:
            with self.path.open("rb") as opened:
                opened.seek(self._offset)
                text = opened.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of windows; what a kill cut off at its end is left out. Raises `ResultError`."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(f"{path} cannot be read ({error}); it is written by `perfharness stress`") from error
    lines = text.split("\n")
    found = []
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) - 1:
                break
            raise ResultError(f"{path}: line {number + 1} is damaged ({error})") from error
    return found
