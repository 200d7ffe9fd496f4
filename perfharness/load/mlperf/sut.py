"""The system under test: what answers LoadGen's queries, one at a time or from a queue, each batch annotated."""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from perfharness.backends import Session
from perfharness.load.mlperf.data import LoadedSamples
from perfharness.load.request import LONGEST_MESSAGE, kind_of
from perfharness.recorder import PerfRecorder

FAILURES_IN_A_ROW = 10
"""Batches; a system that fails so often will fail on, and LoadGen has no way to be stopped."""

STAGES = ("wait", "write_inputs", "copy_in", "execute", "copy_out", "synchronize", "respond")

Respond = Callable[[Sequence[int]], None]
"""Answers queries: the ids that LoadGen gave them."""

clock = time.perf_counter_ns


@dataclass
class Requests:
    """Times of each query, in the order in which they were issued; monotonic nanoseconds, 0: not yet."""

    sent_ns: array[int] = field(default_factory=lambda: array("q"))
    begun_ns: array[int] = field(default_factory=lambda: array("q"))
    done_ns: array[int] = field(default_factory=lambda: array("q"))
    items: array[int] = field(default_factory=lambda: array("q"))
    errors: dict[int, str] = field(default_factory=dict)

    def add(self, sent_ns: int, items: int) -> int:
        """A query that was issued; returns its number."""
        self.sent_ns.append(sent_ns)
        self.begun_ns.append(0)
        self.done_ns.append(0)
        self.items.append(items)
        return len(self.sent_ns) - 1


@dataclass
class Outcome:
    """Counts over all batches.

    Args:
        errors: queries or samples whose batch failed, by kind; `first` the message of each kind's first.
        padding: rows that were executed for nothing.
    """

    batches: int = 0
    samples: int = 0
    padding: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    in_a_row: int = 0


@dataclass
class Work:
    """A batch: ids of LoadGen, indices of samples, and the queries that they are of."""

    number: int
    ids: list[int]
    indices: list[int]
    queries: Sequence[int] = ()


class Executor:
    """Executes batches in one thread, on a session for each size.

    Args:
        sessions: by batch size, allocated in this thread.
        abort: is called with the reason where every batch fails.
    """

    def __init__(
        self,
        perf: PerfRecorder,
        sessions: Mapping[int, Session],
        samples: LoadedSamples,
        respond: Respond,
        requests: Requests | None,
        abort: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._perf, self._samples, self._respond, self._requests = perf, samples, respond, requests
        self._sessions = sorted(sessions.items())
        self.largest = self._sessions[-1][0]
        self._abort = abort
        self._stages = {name: perf.range(name) for name in STAGES}
        self.outcome = Outcome()
        self._serving = threading.Lock()

    def serve(self, work: Work, fill: Callable[[Work], None] | None = None) -> None:
        """Execute a batch, in parts where it is larger than the largest session, and answer it. Never raises.

        Args:
            fill: waits for more of the batch.
        """
        with self._serving:
            self._serve(work, fill)

    def stop(self, patience_s: float) -> None:
        """Hold it after the batch that it executes, for ever: its thread ends with the process."""
        self._serving.acquire(timeout=patience_s)

    def _serve(self, work: Work, fill: Callable[[Work], None] | None) -> None:
        answered, outcome = 0, self.outcome
        try:
            with self._perf.batch(work.number) as batch:
                if fill is not None:
                    with self._stages["wait"]:
                        fill(work)
                self._mark_begun(work)
                batch.total_items = len(work.ids)
                for first in range(0, len(work.ids), self.largest):
                    part = slice(first, first + self.largest)
                    self._execute(work.indices[part])
                    with self._stages["respond"]:
                        if part.stop >= len(work.ids):
                            self._mark_done(work)
                        self._respond(work.ids[part])
                    answered = min(part.stop, len(work.ids))
            outcome.batches += 1
            outcome.samples += len(work.ids)
            outcome.in_a_row = 0
        except Exception as error:
            self._fail(error, work, answered)

    def warm_up(self, rounds: int) -> float:
        """Execute the first sample on every session; the shortest time of the largest, in s."""
        shortest = inf
        for size, _ in self._sessions:
            for _ in range(rounds):
                begin = clock()
                self._execute([0] * size)
                shortest = min(shortest, (clock() - begin) / 1e9) if size == self.largest else inf
        return shortest

    def _execute(self, indices: list[int]) -> None:
        size, session = next((one for one in self._sessions if one[0] >= len(indices)), self._sessions[-1])
        stages = self._stages
        self.outcome.padding += size - len(indices)
        with stages["write_inputs"]:
            session.write_inputs(self._samples.batch(indices, size))
        with stages["copy_in"]:
            session.copy_in()
        with stages["execute"]:
            session.execute()
        with stages["copy_out"]:
            session.copy_out()
        with stages["synchronize"]:
            session.synchronize()

    def _fail(self, error: Exception, work: Work, answered: int) -> None:
        kind, outcome, left = kind_of(error), self.outcome, work.ids[answered:]
        outcome.errors[kind] += len(left)
        outcome.first.setdefault(kind, f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE])
        outcome.in_a_row += 1
        if self._requests is not None:
            self._requests.errors.update(dict.fromkeys(work.queries, kind))
        self._mark_done(work)
        if outcome.in_a_row >= FAILURES_IN_A_ROW:
            self._abort(f"{outcome.in_a_row} batches in a row failed; the last: {type(error).__name__}: {error}")
        self._respond(left)

    def _mark_begun(self, work: Work) -> None:
        if self._requests is not None:
            now = clock()
            for query in work.queries:
                self._requests.begun_ns[query] = now

    def _mark_done(self, work: Work) -> None:
        if self._requests is not None:
            now = clock()
            for query in work.queries:
                self._requests.done_ns[query] = now


class InlineSut:
    """Answers each query in LoadGen's own thread: a batch a query, or, of `is_offline`, a batch an execution."""

    def __init__(self, executor: Executor, requests: Requests | None, *, is_offline: bool) -> None:
        self._executor, self._requests, self._is_offline = executor, requests, is_offline

    def issue(self, samples: Sequence[Any]) -> None:
        """Called by LoadGen with a query."""
        now = clock()
        ids = [sample.id for sample in samples]
        indices = [sample.index for sample in samples]
        if self._is_offline:
            step = self._executor.largest
            for number, first in enumerate(range(0, len(ids), step)):
                self._executor.serve(Work(number, ids[first : first + step], indices[first : first + step]))
            return
        number = self._requests.add(now, len(ids)) if self._requests is not None else 0
        self._executor.serve(Work(number, ids, indices, (number,)))

    def flush(self) -> None:
        """Called by LoadGen after its last query."""

    def close(self) -> list[Outcome]:
        """End; the counts."""
        return [self._executor.outcome]


class QueuedSut:
    """Answers queries from a queue, in threads of its own.

    Args:
        make_executors: of each thread; called in it, one after the other.
        batch_timeout_s: how long a batch that is not full waits for more; 0: it takes what is there.
        is_offline: one query holds everything, and is cut into batches.
    """

    def __init__(
        self,
        make_executors: Sequence[Callable[[], Executor]],
        requests: Requests | None,
        *,
        batch_timeout_s: float = 0.0,
        is_offline: bool = False,
    ) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._requests, self._batch_timeout_s, self._is_offline = requests, batch_timeout_s, is_offline
        self._numbers = count()
        self._executors: list[Executor] = []
        self._threads = []
        for place, make in enumerate(make_executors):
            ready: SimpleQueue[BaseException | None] = SimpleQueue()
            thread = threading.Thread(target=self._work, args=(make, ready), name=f"mlperf-{place}", daemon=True)
            thread.start()
            self._threads.append(thread)
            if (error := ready.get()) is not None:
                raise error

    def issue(self, samples: Sequence[Any]) -> None:
        """Called by LoadGen with a query."""
        now = clock()
        if self._is_offline:
            ids, indices = [one.id for one in samples], [one.index for one in samples]
            step = self._executors[0].largest
            for first in range(0, len(ids), step):
                self._queue.put(Work(next(self._numbers), ids[first : first + step], indices[first : first + step]))
            return
        for sample in samples:
            number = self._requests.add(now, 1) if self._requests is not None else next(self._numbers)
            self._queue.put(Work(number, [sample.id], [sample.index], [number]))

    def flush(self) -> None:
        """Called by LoadGen after its last query; what is queued is served at once anyway."""

    def close(self) -> list[Outcome]:
        """End the threads; the counts of each."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        return [executor.outcome for executor in self._executors]

    def _work(self, make: Callable[[], Executor], ready: SimpleQueue[BaseException | None]) -> None:
        try:
            executor = make()
            self._executors.append(executor)
        except BaseException as error:
            ready.put(error)
            return
        ready.put(None)
        fill = self._fill(executor.largest) if executor.largest > 1 and not self._is_offline else None
        while (work := self._queue.get()) is not None:
            executor.serve(work, fill)

    def _fill(self, largest: int) -> Callable[[Work], None]:
        def fill(work: Work) -> None:
            deadline = time.monotonic() + self._batch_timeout_s
            queries = list(work.queries)
            while len(work.ids) < largest:
                try:
                    left_s = deadline - time.monotonic()
                    more = self._queue.get(timeout=left_s) if left_s > 0 else self._queue.get_nowait()
                except Empty:
                    break
                if more is None:  # the end, for the thread itself
                    self._queue.put(None)
                    break
                work.ids += more.ids
                work.indices += more.indices
                queries += more.queries
            work.queries = queries

        return fill
