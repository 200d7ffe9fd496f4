"""asyncio: tasks that interleave on one thread keep their own nesting, as start/end ranges in lanes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.errors import RecorderError
from perfharness.model import nsys_schema as schema
from perfharness.tracer.log_reader import decode
from perfharness.tracer.range_log import RangeLog
from tests.unit.recorder_events import drawn, events, read


class Turns:
    """Lets tasks go on in a given order: `await turns(n)` returns when all lower turns were taken."""

    def __init__(self) -> None:
        self._next = 0
        self._changed = asyncio.Condition()

    async def __call__(self, turn: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._next == turn)
            self._next += 1
            self._changed.notify_all()


def test_interleaved_tasks_keep_their_nesting(perf: PerfRecorder, log: RangeLog) -> None:
    async def work(name: str, turns: Turns, mine: tuple[int, int, int, int]) -> None:
        await turns(mine[0])
        perf.push_range(name)
        await turns(mine[1])
        perf.push_range("batch", batch_idx=mine[0])
        await turns(mine[2])
        perf.pop_range(total_items=1)
        await turns(mine[3])
        perf.pop_range()

    async def main() -> None:
        turns = Turns()
        await asyncio.gather(work("a", turns, (0, 2, 4, 6)), work("b", turns, (1, 3, 5, 7)))

    with perf.range("pipeline"):
        asyncio.run(main())
    perf.finalize()
    assert drawn(log) == (
        "!recorder pipeline(<a#1 <b#2 <batch#1=0 <batch#2=1 !items=1#1 batch#1> !items=1#2 batch#2> a#1> b#2>)"
    )


def test_lane_is_given_back_with_the_last_range(perf: PerfRecorder, log: RangeLog) -> None:
    async def work(name: str) -> None:
        with perf.range(name):
            await asyncio.sleep(0)

    async def main() -> None:
        for i in range(3):
            await asyncio.gather(work(f"a{i}"), work(f"b{i}"))

    asyncio.run(main())
    assert {event.category for event in events(log) if event.op == "start"} == {"rec#1", "rec#2"}
    assert not perf._core.local.stack.thread.of_task


def test_what_is_refused_in_a_task_takes_no_lane(perf: PerfRecorder, log: RangeLog) -> None:
    async def main() -> None:
        with pytest.raises(RecorderError):
            perf.push_range("")
        with pytest.raises(RecorderError):
            perf.push_range("batch", batch_idx="1")  # type: ignore[arg-type]
        with pytest.raises(RecorderError), perf.batch(0.5):  # type: ignore[arg-type]
            pass
        with pytest.raises(RecorderError):
            perf.pop_range()
        assert not perf._core.local.stack.thread.of_task
        with perf.range("good"):
            pass

    with perf.range("pipeline"):
        asyncio.run(main())
    assert drawn(log) == "!recorder pipeline(<good#1 good#1>)"


def test_what_a_task_left_open_is_named(perf: PerfRecorder) -> None:
    async def main() -> None:
        perf.push_range("forgotten")

    asyncio.run(main())
    with pytest.raises(RecorderError, match="forgotten"):
        perf.finalize()


def test_cancelled_task_closes_its_blocks_and_deletes_its_batch(perf: PerfRecorder, log: RangeLog) -> None:
    async def work() -> None:
        with perf.range("outer"), perf.batch(0, total_items=1):
            await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    perf.finalize()
    assert drawn(log) == "!recorder <outer#1 <batch#1=0 !items=1#1 !delete#1 batch#1> outer#1>"


def test_the_stacks_of_callbacks_worker_threads_and_coroutines(perf: PerfRecorder, log: RangeLog) -> None:
    @perf.annotate("stage")
    async def stage(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    def record(name: str) -> None:
        with perf.range(name):
            pass

    async def main() -> list[int]:
        asyncio.get_running_loop().call_soon(record, "callback")
        await asyncio.sleep(0)
        with perf.range("task"):
            await asyncio.to_thread(record, "worker")
        return list(await asyncio.gather(stage(1), stage(2)))

    assert asyncio.run(main()) == [2, 4]
    assert asyncio.iscoroutinefunction(stage)
    perf.finalize()
    assert drawn(log) == "!recorder callback() <task#1 task#1> <stage#1 <stage#2 stage#1> stage#2>"
    assert perf._core.registry.threads == 2


def test_annotated_async_generator_has_a_range_per_step(perf: PerfRecorder, log: RangeLog) -> None:
    heard = []
    closed = []

    @perf.annotate("load")
    async def load() -> Any:
        try:
            for i in range(2):
                await asyncio.sleep(0)
                try:
                    heard.append((yield i))
                except KeyError:
                    heard.append("thrown")
                    yield "answer"
        finally:
            closed.append(True)

    async def main() -> None:
        async for _ in load():
            with perf.range("use"):
                await asyncio.sleep(0)
        talk = load()
        assert await talk.__anext__() == 0
        assert await talk.asend("sent") == 1
        assert await talk.athrow(KeyError()) == "answer"
        await talk.aclose()

    asyncio.run(main())
    perf.finalize()
    loop = "<load#1 load#1> <use#1 use#1> "
    assert drawn(log).startswith(f"!recorder {loop}{loop}<load#1 !delete#1 load#1>")
    assert heard == [None, None, "sent", "thrown"]
    assert closed == [True, True]


def test_async_generator_that_the_loop_closes_ends_its_range(perf: PerfRecorder, log: RangeLog) -> None:
    async def numbers() -> AsyncIterator[int]:
        with perf.range("numbers"):
            yield 1
            yield 2

    async def main() -> None:
        async for _ in numbers():
            break
        gc.collect()

    asyncio.run(main())  # closes what is left of the generators, in a task of its own
    perf.finalize()
    assert drawn(log) == "!recorder <numbers#1 numbers#1>"


def test_ranges_of_two_recorders_have_numbers_of_their_own(log: RangeLog) -> None:
    """Two recorders in one loop, and two objects of one name: each range ends at its own end."""
    fast, slow, again = PerfRecorder("fast"), PerfRecorder("slow"), PerfRecorder("fast")

    async def one(perf: PerfRecorder, name: str, turns: int) -> None:
        with perf.range(name):
            for _ in range(turns):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(one(fast, "f", 2), one(slow, "s", 5), one(again, "a", 3))

    asyncio.run(main())
    logged = read(log)
    (table, _), attributes = decode(logged), logged.attributes
    found = {
        attributes[key].message: (attributes[key].category, end)
        for key, end, kind in zip(table["key"], table["end"], table["event_type"], strict=True)
        if kind == schema.NVTX_START_END_RANGE
    }
    assert len({end for _, end in found.values()}) == 3
    assert found["f"][1] < found["a"][1] < found["s"][1]
    assert {name: category for name, (category, _) in found.items()} == {"f": "fast#1", "s": "slow#1", "a": "fast#2"}
