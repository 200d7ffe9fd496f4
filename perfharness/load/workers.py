"""Workers that serve a phase: threads, or tasks of one event loop. Each has its own target.

In an open loop one worker at a time waits for the next due request; the others sleep on a lock. So a request is sent at
its due time if a worker is free, otherwise when the next worker is free.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, sleep

from perfharness.errors import PerfHarnessError
from perfharness.load.record import NEVER_NS, Done
from perfharness.load.request import (
    TIMEOUT,
    UNANSWERED,
    Answer,
    LoadRequest,
    MakeTarget,
    Target,
    error_of,
)
from perfharness.load.schedule import ClosedSchedule, OpenSchedule, Schedule
from perfharness.load.timer import Stop, wait_until, wait_until_async

POLL_S = 0.01
CANCEL_S = 2.0
"""Maximum time for a cancelled task to end."""


@dataclass
class Served:
    """The data of one phase for its workers.

    Args:
        add: takes each record.
        stop: ends the phase early: nothing more is sent.
        timeout_ns: maximum time from sending to the answer.
        grace_ns: maximum wait for answers after the end of the phase.
    """

    schedule: Schedule
    add: Callable[[Done], None]
    stop: Stop
    timeout_ns: int | None
    grace_ns: int

    @property
    def is_over(self) -> bool:
        """Whether no more requests are sent."""
        return self.stop.is_set() or self.is_past_grace

    @property
    def is_past_grace(self) -> bool:
        """Whether the wait for answers is over."""
        return perf_counter_ns() > min(self.schedule.end_ns, self.stop.at_ns) + self.grace_ns

    def give_up(self, in_service: Iterable[tuple[LoadRequest, int]]) -> None:
        """Record the requests without an answer: those in service with their time of sending, and those never sent."""
        for request, sent_ns in in_service:
            self.add(given_up(request, sent_ns))
        if isinstance(self.schedule, OpenSchedule):
            for request in self.schedule.left(min(perf_counter_ns(), self.stop.at_ns)):
                self.add(given_up(request))


def record_of(
    request: LoadRequest, ready_ns: int, sent_ns: int, done_ns: int, answer: Answer, limit: int | None
) -> Done:
    """The record of an answer; one that took too long after sending is an error."""
    error, message, items = answer.error, answer.message, answer.items
    if error is None and limit is not None and done_ns - sent_ns > limit:
        error, message = TIMEOUT, f"answered after {(done_ns - sent_ns) / 1e9:.3f} s"
    return Done(
        id=request.id,
        input=request.input,
        items=request.items if items is None or error else items,
        intended_ns=request.intended_ns,
        ready_ns=ready_ns,
        sent_ns=sent_ns,
        begun_ns=answer.begun_ns or NEVER_NS,
        done_ns=done_ns,
        error=error,
        message=message,
        first_token_ns=answer.first_token_ns or NEVER_NS,
        token_gaps_ns=answer.token_gaps_ns,
        tokens=answer.tokens,
    )


def given_up(request: LoadRequest, sent_ns: int = NEVER_NS) -> Done:
    """The record of a request that has no answer."""
    message = "not sent: no worker was free" if sent_ns == NEVER_NS else "sent, but no answer in the grace period"
    return record_of(request, NEVER_NS, sent_ns, NEVER_NS, Answer(UNANSWERED, message), None)


@dataclass
class _Thread:
    index: int
    target: Target
    phases: queue.SimpleQueue[_ThreadPhase | None] = field(default_factory=queue.SimpleQueue)
    raised: queue.SimpleQueue[BaseException | None] = field(default_factory=queue.SimpleQueue)
    """Raised by `open`, then by `close`."""

    serving: tuple[LoadRequest, int] | None = None
    """The request in service, and when it was sent."""

    is_abandoned: bool = False


@dataclass
class _ThreadPhase:
    served: Served
    turn: threading.Lock = field(default_factory=threading.Lock)
    idle: list[int] = field(default_factory=list)
    """Workers that have ended the phase."""


class ThreadWorkers:
    """One thread per worker; a target keeps its thread for the whole run."""

    def __init__(self, make_target: MakeTarget, count: int) -> None:
        self._make_target = make_target
        self._threads: list[_Thread] = []
        self._count = count

    def open(self) -> None:
        """Open the targets one after the other: loading the same model twice at once is no faster."""
        for index in range(self._count):
            made = _Thread(index, self._make_target())
            threading.Thread(target=self._run, args=(made,), name=f"load-{index}", daemon=True).start()
            _raise_first([made.raised.get()])
            self._threads.append(made)

    def _run(self, mine: _Thread) -> None:
        raised = _raised_by(mine.target.open)
        mine.raised.put(raised)
        if raised is not None:
            return
        while (phase := mine.phases.get()) is not None:
            self._serve(mine, phase)
            phase.idle.append(mine.index)
        mine.raised.put(_raised_by(mine.target.close))

    def _serve(self, mine: _Thread, phase: _ThreadPhase) -> None:
        served = phase.served
        done_ns = ready_ns = perf_counter_ns()
        while not mine.is_abandoned:
            request = _next_request(mine.index, phase, done_ns)
            if request is None:
                return
            sent_ns = perf_counter_ns()
            mine.serving = request, sent_ns
            try:
                answer = mine.target.call(request)
            except BaseException as error:  # sys.exit() also ends a request and not its worker
                answer = error_of(error)
            returned_ns = perf_counter_ns()
            done_ns = answer.done_ns or returned_ns
            mine.serving = None
            if not mine.is_abandoned:
                served.add(record_of(request, ready_ns, sent_ns, done_ns, answer, served.timeout_ns))
            ready_ns = returned_ns

    def serve(self, served: Served) -> None:
        """Serve a phase. A thread cannot be stopped: one that does not return is not used again."""
        phase = _ThreadPhase(served)
        for one in self._threads:
            one.phases.put(phase)
        if not self._threads:  # none of them returned
            wait_until(served.schedule.end_ns, served.stop)
        while len(phase.idle) < len(self._threads) and not served.is_past_grace:
            sleep(POLL_S)
        stuck = [
            (one, serving)
            for one in self._threads
            if (serving := one.serving) is not None and one.index not in phase.idle
        ]
        for one, _ in stuck:
            one.is_abandoned = True
        served.give_up(serving for _, serving in stuck)
        self._threads = [one for one in self._threads if not one.is_abandoned]

    @property
    def has_abandoned(self) -> bool:
        """Whether a request never returned."""
        return len(self._threads) < self._count

    def close(self) -> None:
        """Close the targets, except those with an open request. Raises the first exception."""
        for one in self._threads:
            one.phases.put(None)
        _raise_first([one.raised.get() for one in self._threads])


def _raised_by(call: Callable[[], None]) -> BaseException | None:
    try:
        call()
    except BaseException as error:  # raised again in the waiting thread
        return error
    return None


def _raise_first(raised: Sequence[BaseException | None]) -> None:
    for error in raised:
        if error is not None:
            raise error


def _next_request(index: int, phase: _ThreadPhase, free_ns: int) -> LoadRequest | None:
    """Wait for the worker's next request; None: no more."""
    served, schedule = phase.served, phase.served.schedule
    if isinstance(schedule, ClosedSchedule):
        request = None if served.is_over else schedule.take(index, free_ns)
        return request if request is not None and wait_until(request.intended_ns, served.stop) else None
    with phase.turn:
        request = None if served.is_over else schedule.take(index, free_ns)
        if request is None:
            return None
        if wait_until(request.intended_ns, served.stop) and request.intended_ns < served.stop.at_ns:
            return request
        schedule.give_back()
        return None


@dataclass
class _TaskPhase:
    served: Served
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    serving: dict[int, tuple[LoadRequest, int]] = field(default_factory=dict)
    is_over: bool = False
    """Unanswered requests are given up; a target cancelled before this cancelled itself."""


class TaskWorkers:
    """Tasks of one event loop, for targets with `call_async`."""

    def __init__(self, make_target: MakeTarget, count: int) -> None:
        self._targets = [make_target() for _ in range(count)]
        self._loop = asyncio.new_event_loop()
        self._has_abandoned = False

    def open(self) -> None:
        """Open all targets."""
        for target in self._targets:
            target.open()

    def serve(self, served: Served) -> None:
        """Serve a phase."""
        self._loop.run_until_complete(self._serve_all(served))

    async def _serve_all(self, served: Served) -> None:
        phase = _TaskPhase(served)
        tasks = {asyncio.ensure_future(self._serve(index, phase)) for index in range(len(self._targets))}
        all_done = asyncio.gather(*tasks, return_exceptions=True)  # one future for all tasks
        while not all_done.done() and not served.is_past_grace:
            await asyncio.wait([all_done], timeout=10 * POLL_S)
        phase.is_over = True
        await self._end(tasks)
        for task in tasks:
            if task.done() and not task.cancelled() and isinstance(found := task.exception(), PerfHarnessError):
                raise found
        served.give_up(phase.serving.values())

    async def _end(self, tasks: set[asyncio.Task[None]]) -> None:
        """Cancel tasks; ignore one that does not end, because its target holds on to it."""
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=CANCEL_S)
            self._has_abandoned = self._has_abandoned or bool(pending)

    async def _serve(self, index: int, phase: _TaskPhase) -> None:
        served, turn, serving = phase.served, phase.turn, phase.serving
        target, schedule, limit_ns = self._targets[index], served.schedule, served.timeout_ns
        free_ns = perf_counter_ns()
        while (request := await _next_request_async(index, served, turn, free_ns)) is not None:
            ready_ns, sent_ns = free_ns, perf_counter_ns()
            serving[index] = request, sent_ns
            try:
                if limit_ns is None:
                    answer = await target.call_async(request)
                else:
                    answer = await asyncio.wait_for(target.call_async(request), limit_ns / 1e9)
            except (TimeoutError, asyncio.TimeoutError) as error:
                answer = error_of(error)
                if limit_ns is not None and not str(error):  # from `wait_for`, without a message
                    answer.message = f"no answer within {limit_ns / 1e9:g} s"
            except asyncio.CancelledError as error:  # from a task of the target: does not end the worker
                if phase.is_over:
                    raise
                answer = error_of(error)
            except Exception as error:
                answer = error_of(error)
            if phase.is_over:
                return  # the request was given up
            free_ns = answer.done_ns or perf_counter_ns()
            del serving[index]
            served.add(record_of(request, ready_ns, sent_ns, free_ns, answer, limit_ns))
            if not isinstance(schedule, OpenSchedule):
                await asyncio.sleep(0)

    @property
    def has_abandoned(self) -> bool:
        """Whether a request never returned, not even after its task was cancelled."""
        return self._has_abandoned

    def close(self) -> None:
        """Close the targets. Raises the first exception."""
        raised = self._loop.run_until_complete(self._close_all())
        raised += [_raised_by(target.close) for target in self._targets]
        self._loop.close()
        _raise_first(raised)

    async def _close_all(self) -> list[BaseException | None]:
        cut_off = asyncio.all_tasks() - {asyncio.current_task()}  # by an exception out of the loop, such as Ctrl-C
        await self._end(cut_off)
        return list(await asyncio.gather(*(target.close_async() for target in self._targets), return_exceptions=True))


async def _next_request_async(index: int, served: Served, turn: asyncio.Lock, free_ns: int) -> LoadRequest | None:
    schedule, stop = served.schedule, served.stop
    if isinstance(schedule, ClosedSchedule):
        request = None if served.is_over else schedule.take(index, free_ns)
        return request if request is not None and await wait_until_async(request.intended_ns, stop) else None
    async with turn:
        request = None if served.is_over else schedule.take(index, free_ns)
        if request is None:
            return None
        try:
            if await wait_until_async(request.intended_ns, stop):
                return request
        except asyncio.CancelledError:
            schedule.give_back()
            raise
        schedule.give_back()
        return None


AnyWorkers = ThreadWorkers | TaskWorkers


def workers_for(make_target: MakeTarget, count: int) -> AnyWorkers:
    """The kind of workers that the targets need."""
    first = [make_target()]

    def make() -> Target:
        return first.pop() if first else make_target()

    return TaskWorkers(make, count) if first[0].is_async else ThreadWorkers(make, count)
