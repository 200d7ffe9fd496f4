"""Workers that serve a phase: threads, or tasks of one event loop. Each has its own target.

In an open loop one worker at a time waits for the next due request; the others sleep on a lock. So a request is sent at
its due time if a worker is free, otherwise when the next worker is free.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter_ns, sleep
from typing import NamedTuple

from perfharness.load.record import NEVER_NS, Done
from perfharness.load.request import TIMEOUT, UNANSWERED, Answer, LoadRequest, MakeTarget, Target, error_of
from perfharness.load.schedule import OpenSchedule, Schedule
from perfharness.load.timer import Stop, wait_until, wait_until_async

POLL_S = 0.01
CANCEL_S = 2.0
"""Maximum time for a cancelled task to end."""


@dataclass
class Served:
    """One phase for its workers.

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
    serving: dict[int, tuple[LoadRequest, int]] = field(default_factory=dict)
    """By worker, the request in service and when it was sent."""

    @property
    def is_open(self) -> bool:
        """Whether one worker at a time waits for the next request."""
        return isinstance(self.schedule, OpenSchedule)

    @property
    def is_past_grace(self) -> bool:
        """Whether the wait for answers is over."""
        return perf_counter_ns() > min(self.schedule.end_ns, self.stop.at_ns) + self.grace_ns

    def take(self, worker: int, free_ns: int) -> LoadRequest | None:
        """The worker's next request, for which it must wait; None: no more are sent."""
        is_over = self.stop.is_set() or self.is_past_grace
        return None if is_over else self.schedule.take(worker, free_ns)

    def answer(self, worker: int, ready_ns: int, answer: Answer, done_ns: int) -> bool:
        """Record an answer; one that took too long is an error. False: the request was given up."""
        found = self.serving.pop(worker, None)
        if found is not None:
            taken_ns = done_ns - found[1]
            if answer.error is None and self.timeout_ns is not None and taken_ns > self.timeout_ns:
                answer = replace(answer, error=TIMEOUT, message=f"answered after {taken_ns / 1e9:.3f} s")
            self._record(*found, answer, ready_ns, done_ns)
        return found is not None

    def give_up(self) -> set[int]:
        """Record the requests in service as unanswered. Returns their workers."""
        given_up = {worker: found for worker in list(self.serving) if (found := self.serving.pop(worker, None))}
        for request, sent_ns in given_up.values():
            self._record(request, sent_ns, Answer(UNANSWERED, "sent, but no answer in the grace period"))
        return set(given_up)

    def give_up_unsent(self) -> None:
        """Record the requests that were due and never sent."""
        for request in self.schedule.left(min(perf_counter_ns(), self.stop.at_ns)):
            self._record(request, NEVER_NS, Answer(UNANSWERED, "not sent: no worker was free"))

    def _record(
        self, request: LoadRequest, sent_ns: int, answer: Answer, ready_ns: int = NEVER_NS, done_ns: int = NEVER_NS
    ) -> None:
        record = Done(
            id=request.id,
            input=request.input,
            items=request.items if answer.items is None or answer.error else answer.items,
            intended_ns=request.intended_ns,
            ready_ns=ready_ns,
            sent_ns=sent_ns,
            begun_ns=answer.begun_ns or NEVER_NS,
            done_ns=done_ns,
            error=answer.error,
            message=answer.message,
            first_token_ns=answer.first_token_ns or NEVER_NS,
            token_gaps_ns=answer.token_gaps_ns,
            tokens=answer.tokens,
        )
        self.add(record)


class _Thread:
    """Runs calls one after the other; a daemon, because a target may never return."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._calls.put((future, call))
        return future

    def end(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (found := self._calls.get()) is not None:
            future, call = found
            try:
                future.set_result(call())
            except BaseException as error:  # raised again in the waiting thread
                future.set_exception(error)


class _Worker(NamedTuple):
    number: int
    target: Target
    thread: _Thread


class ThreadWorkers:
    """One thread per worker; a target keeps its thread for the whole run."""

    def __init__(self, make_target: MakeTarget, count: int) -> None:
        self._make_target = make_target
        self._workers: list[_Worker] = []
        self._count = count
        self._turn = threading.Lock()

    def open(self) -> None:
        """Open the targets one after the other: loading the same model twice at once is no faster."""
        for index in range(self._count):
            worker = _Worker(index, self._make_target(), _Thread(f"load-{index}"))
            worker.thread.submit(worker.target.open).result()
            self._workers.append(worker)

    def serve(self, served: Served) -> None:
        """Serve a phase. A thread cannot be stopped: one that does not return is not used again."""
        futures = [one.thread.submit(partial(self._serve, one.number, one.target, served)) for one in self._workers]
        if not futures:  # none of them returned
            wait_until(served.schedule.end_ns, served.stop)
        while not all(future.done() for future in futures) and not served.is_past_grace:
            sleep(POLL_S)
        stuck = served.give_up()
        served.give_up_unsent()
        for future in futures:
            if future.done():
                future.result()
        self._workers = [one for one in self._workers if one.number not in stuck]

    def _serve(self, index: int, target: Target, served: Served) -> None:
        done_ns = ready_ns = perf_counter_ns()
        while (request := self._next(index, served, done_ns)) is not None:
            served.serving[index] = request, perf_counter_ns()
            try:
                answer = target.call(request)
            except BaseException as error:  # sys.exit() also ends a request and not its worker
                answer = error_of(error)
            returned_ns = perf_counter_ns()
            done_ns = answer.done_ns or returned_ns
            if not served.answer(index, ready_ns, answer, done_ns):
                return
            ready_ns = returned_ns

    def _next(self, index: int, served: Served, free_ns: int) -> LoadRequest | None:
        """Wait for the worker's next request; None: no more."""
        stop = served.stop
        with self._turn if served.is_open else nullcontext():
            request = served.take(index, free_ns)
            if request is None or (wait_until(request.intended_ns, stop) and request.intended_ns < stop.at_ns):
                return request
            served.schedule.give_back()
            return None

    @property
    def has_abandoned(self) -> bool:
        """Whether a request never returned."""
        return len(self._workers) < self._count

    def close(self) -> None:
        """Close the targets, except those with an open request. Raises what they raise."""
        with ExitStack() as stack:
            for one in self._workers:
                stack.callback(one.thread.submit(one.target.close).result)
                one.thread.end()


class TaskWorkers:
    """Tasks of one event loop, for targets with `call_async`."""

    def __init__(self, make_target: MakeTarget, count: int) -> None:
        self._targets = [make_target() for _ in range(count)]
        self._loop = asyncio.new_event_loop()
        self._turn = asyncio.Lock()
        self.has_abandoned = False
        """Whether a request never returned, not even after its task was cancelled."""

    def open(self) -> None:
        """Open all targets."""
        for target in self._targets:
            target.open()

    def serve(self, served: Served) -> None:
        """Serve a phase."""
        self._loop.run_until_complete(self._serve_all(served))

    async def _serve_all(self, served: Served) -> None:
        tasks = {asyncio.ensure_future(self._serve(*numbered, served)) for numbered in enumerate(self._targets)}
        all_done = asyncio.gather(*tasks, return_exceptions=True)  # one future for all tasks
        while not all_done.done() and not served.is_past_grace:
            await asyncio.wait([all_done], timeout=10 * POLL_S)
        served.give_up()
        await self._end(tasks)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        served.give_up_unsent()

    async def _end(self, tasks: set[asyncio.Task[None]]) -> None:
        """Cancel tasks; ignore one that does not end, because its target holds on to it."""
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=CANCEL_S)
            self.has_abandoned = self.has_abandoned or bool(pending)

    async def _serve(self, index: int, target: Target, served: Served) -> None:
        limit_s = None if served.timeout_ns is None else served.timeout_ns / 1e9
        free_ns = perf_counter_ns()
        while (request := await self._next(index, served, free_ns)) is not None:
            ready_ns = free_ns
            served.serving[index] = request, perf_counter_ns()
            try:
                call = target.call_async(request)
                answer = await (call if limit_s is None else asyncio.wait_for(call, limit_s))
            except (TimeoutError, asyncio.TimeoutError) as error:
                answer = error_of(error)
                if limit_s is not None and not str(error):  # from `wait_for`, without a message
                    answer.message = f"no answer within {limit_s:g} s"
            except asyncio.CancelledError as error:  # from a task of the target: does not end the worker
                if index not in served.serving:  # given up
                    raise
                answer = error_of(error)
            except Exception as error:
                answer = error_of(error)
            free_ns = answer.done_ns or perf_counter_ns()
            if not served.answer(index, ready_ns, answer, free_ns):
                return
            if not served.is_open:
                await asyncio.sleep(0)

    async def _next(self, index: int, served: Served, free_ns: int) -> LoadRequest | None:
        """Wait for the worker's next request; None: no more."""
        async with self._turn if served.is_open else nullcontext():
            request, is_due = served.take(index, free_ns), False
            try:
                is_due = request is not None and await wait_until_async(request.intended_ns, served.stop)
            finally:  # also if it is cancelled
                if request is not None and not is_due:
                    served.schedule.give_back()
            return request if is_due else None

    def close(self) -> None:
        """Close the targets. Raises what they raise."""
        with closing(self._loop), ExitStack() as stack:
            for target in self._targets:
                stack.callback(target.close)
            self._loop.run_until_complete(self._close_all())

    async def _close_all(self) -> None:
        cut_off = asyncio.all_tasks() - {asyncio.current_task()}  # by an exception out of the loop, such as Ctrl-C
        await self._end(cut_off)
        closed = await asyncio.gather(*(target.close_async() for target in self._targets), return_exceptions=True)
        for error in filter(None, closed):
            raise error


AnyWorkers = ThreadWorkers | TaskWorkers


def workers_for(make_target: MakeTarget, count: int) -> AnyWorkers:
    """The kind of workers that the targets need."""
    first = [make_target()]

    def make() -> Target:
        return first.pop() if first else make_target()

    return TaskWorkers(make, count) if first[0].is_async else ThreadWorkers(make, count)
