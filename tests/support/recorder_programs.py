"""What a recorder writes for each way to annotate: programs, their events, and what is counted.

Events in one line: `batch=0(stage() !items=4)` is a batch with index 0, a stage and a mark inside; `<a#1 a#1>` is a
range of the first lane, from its start to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, NamedTuple

from perfharness import PerfRecorder
from perfharness.errors import RecorderError


class Program(NamedTuple):
    """A program; its events on the main thread; ranges, batches, items, deleted ranges, failed batches."""

    run: Callable[[PerfRecorder], object]
    events: str
    counts: tuple[int, int, int, int, int]


PROGRAMS: dict[str, Program] = {}


def program(events: str, *counts: int) -> Callable[[Callable[[PerfRecorder], object]], None]:
    """Add a program to the table."""

    def add(run: Callable[[PerfRecorder], object]) -> None:
        PROGRAMS[run.__name__] = Program(run, events, counts)  # type: ignore[arg-type]

    return add


class Scalar:
    """An integer as NumPy's are."""

    def __index__(self) -> int:
        return 6


@program("pipeline(batch=3(stage() !items=2) batch=4(!items=0) batch=5())", 5, 3, 2, 0, 0)
def calls_of_cvcuda(perf: PerfRecorder) -> None:
    perf.push_range("pipeline")
    perf.push_range("batch", "blue", None, None, 3)
    perf.push_range(message="stage", color="green", domain=None, category="c", batch_idx=None)
    perf.pop_range(None, None, False)
    perf.pop_range(None, 2)
    perf.push_range("batch", batch_idx=4)
    perf.pop_range(total_items=0)
    perf.push_range("batch", batch_idx=5)
    perf.pop_range()
    perf.pop_range()


@program("batch=6(!items=6)", 1, 1, 6, 0, 0)
def integers_of_numpy(perf: PerfRecorder) -> None:
    perf.push_range("batch", batch_idx=Scalar())  # type: ignore[arg-type]
    perf.pop_range(total_items=Scalar())  # type: ignore[arg-type]


@program("batch=-9223372036854775808(batch=9223372036854775807(!items=1099511627776))", 2, 2, 1 << 40, 0, 0)
def batches_in_batches(perf: PerfRecorder) -> None:
    with perf.batch(-(1 << 63)), perf.batch((1 << 63) - 1, total_items=1 << 40):
        pass


@program("a(!delete) batch=1(b() !items=3 !shared !delete) c()", 4, 1, 3, 2, 0)
def deleted_and_shared(perf: PerfRecorder) -> None:
    perf.push_range("a")
    perf.pop_range(delete_range=True)
    perf.push_range("batch", batch_idx=1)
    perf.push_range("b")
    perf.pop_range()
    perf.pop_range(total_items=3, delete_range=True, shared=True)
    perf.push_range("c")
    perf.pop_range()


@program("stage(stage(stage())) stage()", 4, 0, 0, 0, 0)
def blocks_are_entered_again(perf: PerfRecorder) -> None:
    stage = perf.range("stage")
    with stage, stage, perf.range("stage"):
        pass
    with stage:
        pass


@program("stage(stage() stage())", 3, 0, 0, 0, 0)
def a_block_and_a_push_of_one_name(perf: PerfRecorder) -> None:
    with perf.range("stage"):
        perf.push_range("stage")
        perf.pop_range()
        with perf.range("stage"):
            pass


@program("batch=0(!items=9) batch=1() batch=2(!items=1 !delete)", 3, 3, 10, 1, 0)
def items_set_inside(perf: PerfRecorder) -> None:
    with perf.batch(0) as batch:
        batch.total_items = 9
    with perf.batch(1):
        pass
    with perf.batch(2, total_items=1) as batch:
        batch.delete_range = True


@program("pipeline(batch=0(left(stage()) !items=8 !delete)) batch=1(inner=0(!delete) !delete)", 6, 3, 8, 3, 3)
def exceptions(perf: PerfRecorder) -> None:
    """They close what is open, and delete their batches."""
    with contextlib.suppress(KeyError), perf.range("pipeline"), perf.batch(0, total_items=8):
        perf.push_range("left")
        with perf.range("stage"):
            raise KeyError
    with contextlib.suppress(KeyError), perf.batch(1):
        perf.push_range("inner", batch_idx=0)
        raise KeyError


@program("pipeline(batch=1(deep()))", 3, 1, 0, 0, 0)
def ranges_left_open_in_a_block(perf: PerfRecorder) -> None:
    with contextlib.suppress(RecorderError), perf.range("pipeline"):
        perf.push_range("batch", batch_idx=1)
        perf.push_range("deep")


@program("batch=1(!delete) batch=2(!delete)", 2, 2, 0, 2, 1)
def bad_items_of_a_block(perf: PerfRecorder) -> None:
    """Nothing is opened, or the batch is deleted; an exception under way matters more."""
    with contextlib.suppress(RecorderError), perf.batch(0, total_items=-1):
        raise AssertionError
    with contextlib.suppress(RecorderError), perf.batch(1) as batch:
        batch.total_items = 2.5  # type: ignore[assignment]
    with contextlib.suppress(KeyError), perf.batch(2) as batch:
        batch.total_items = -1
        raise KeyError


@program("batch=0(stage() !items=2) batch=1(stage() !items=3) chunk=5(!items=7)", 5, 3, 12, 0, 0)
def a_loop(perf: PerfRecorder) -> None:
    for _ in perf.batches(["ab", "abc"], items=len):
        with perf.range("stage"):
            pass
    assert list(perf.batches(["d"], items=7, start=5, message="chunk")) == [(5, "d")]


@program("load() chunk=5() load() chunk=6()", 4, 2, 0, 0, 0)
def the_loader_is_outside_of_the_batches(perf: PerfRecorder) -> None:
    def loader() -> Iterator[int]:
        for i in range(2):
            with perf.range("load"):
                pass
            yield i

    for _ in perf.batches(loader(), start=5, message="chunk"):
        pass


@program("pipeline(batch=0(!items=1) batch=1(!items=1)) batch=0(left() !items=1)", 5, 3, 3, 0, 0)
def break_and_exception_end_the_batch(perf: PerfRecorder) -> None:
    """A generator sees neither of them, so the batch is not deleted."""
    perf.push_range("pipeline")
    for i, _ in perf.batches("abc", items=1):
        if i == 1:
            break
    perf.pop_range()
    with contextlib.suppress(KeyError):
        for _ in perf.batches("abc", items=1):
            perf.push_range("left")
            raise KeyError


@program("stage() named()", 2, 0, 0, 0, 0)
def functions(perf: PerfRecorder) -> None:
    @perf.annotate("stage", color="red", category="io")
    def double(x: int, *, plus: int = 0) -> int:
        return 2 * x + plus

    @perf.annotate
    def named() -> None: ...

    assert (double(2, plus=1), double.__name__) == (5, "double")
    named()


@program("load() use() load() use() load()", 5, 0, 0, 0, 0)
def steps_of_a_generator(perf: PerfRecorder) -> None:
    @perf.annotate("load")
    def load() -> Iterator[int]:
        yield 1
        yield 2

    for _ in load():
        with perf.range("use"):
            pass


@program("talk() talk() talk() talk()", 4, 0, 0, 0, 0)
def what_a_generator_is_sent(perf: PerfRecorder) -> None:
    closed = []

    @perf.annotate("talk")
    def talk() -> Any:
        heard: list[Any] = []
        try:
            while len(heard) < 5:
                heard.append((yield len(heard)))
        except KeyError as error:
            return [*heard, error]
        finally:
            closed.append(True)

    def listen(conversation: Any) -> Generator[Any, Any, None]:
        returned.append((yield from conversation))

    returned: list[Any] = []
    conversation, problem = listen(talk()), KeyError("b")
    assert (next(conversation), conversation.send("a")) == (0, 1)
    with contextlib.suppress(StopIteration):
        conversation.throw(problem)
    assert returned == [["a", problem]]
    abandoned = talk()
    next(abandoned)
    abandoned.close()
    assert closed == [True, True]


@program("<load#1 load#1> <use#1 use#1> <load#1 load#1> <load#1 load#1> <load#1 load#1>", 5, 0, 0, 0, 0)
def steps_of_an_asynchronous_generator(perf: PerfRecorder) -> None:
    @perf.annotate("load")
    async def load() -> Any:
        try:
            yield "first"
        except KeyError:
            await asyncio.sleep(0)
            yield "answer"

    async def main() -> None:
        async for _ in load():
            with perf.range("use"):
                await asyncio.sleep(0)
        talk = load()
        assert await talk.__anext__() == "first"
        assert await talk.athrow(KeyError()) == "answer"
        await talk.aclose()

    asyncio.run(main())


@program("pipeline(<a#1 <b#2 <batch#1=0 <batch#2=1 !items=1#1 batch#1> !items=1#2 batch#2> a#1> b#2>)", 5, 2, 2, 0, 0)
def tasks_keep_their_nesting(perf: PerfRecorder) -> None:
    async def work(index: int) -> None:
        perf.push_range("ab"[index])
        await asyncio.sleep(0)
        perf.push_range("batch", batch_idx=index)
        await asyncio.sleep(0)
        perf.pop_range(total_items=1)
        await asyncio.sleep(0)
        perf.pop_range()

    async def main() -> None:
        await asyncio.gather(work(0), work(1))

    with perf.range("pipeline"):
        asyncio.run(main())


@program("<a#1 <b#2 a#1> b#2> <a#1 <b#2 a#1> b#2>", 4, 0, 0, 0, 0)
def lanes_are_used_again(perf: PerfRecorder) -> None:
    async def work(name: str) -> None:
        with contextlib.suppress(RecorderError):
            perf.push_range("")  # what is refused takes no lane
        with contextlib.suppress(RecorderError):
            perf.push_range("batch", batch_idx="1")  # type: ignore[arg-type]
        with perf.range(name):
            await asyncio.sleep(0)

    async def main() -> None:
        for _ in range(2):
            await asyncio.gather(work("a"), work("b"))

    asyncio.run(main())


@program("<a#1 <b#2 a#1> b#2> <c#1 <d#2 <e#1 e#1> c#1> d#2>", 5, 0, 0, 0, 0)
def tasks_that_change_lanes(perf: PerfRecorder) -> None:
    """Each has one as long as it has a range open."""

    async def one() -> None:
        for name in "ad":
            perf.push_range(name)
            await asyncio.sleep(0)
            perf.pop_range()
            await asyncio.sleep(0)

    async def other() -> None:
        perf.push_range("b")
        await asyncio.sleep(0)
        perf.pop_range()
        perf.push_range("c")
        await asyncio.sleep(0)
        with perf.range("e"):
            pass
        perf.pop_range()

    async def main() -> None:
        await asyncio.gather(one(), other())

    asyncio.run(main())


@program("<outer#1 <batch#1=0 !items=1#1 !delete#1 batch#1> outer#1>", 2, 1, 1, 1, 1)
def a_cancelled_task(perf: PerfRecorder) -> None:
    async def work() -> None:
        with perf.range("outer"), perf.batch(0, total_items=1):
            await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


@program("callback() <task#1 task#1> <stage#1 <stage#2 stage#1> stage#2>", 5, 0, 0, 0, 0)
def callbacks_workers_and_coroutines(perf: PerfRecorder) -> None:
    @perf.annotate("stage")
    async def stage() -> None:
        await asyncio.sleep(0)

    def record(name: str) -> None:
        with perf.range(name):
            pass

    async def main() -> None:
        asyncio.get_running_loop().call_soon(record, "callback")
        await asyncio.sleep(0)
        with perf.range("task"):
            await asyncio.to_thread(record, "worker")
        await asyncio.gather(stage(), stage())

    asyncio.run(main())


@program("<numbers#1 numbers#1>", 1, 0, 0, 0, 0)
def an_asynchronous_generator_that_the_loop_closes(perf: PerfRecorder) -> None:
    async def numbers() -> AsyncIterator[int]:
        with perf.range("numbers"):
            yield 1
            yield 2

    async def main() -> None:
        async for _ in numbers():
            break
        gc.collect()

    asyncio.run(main())


@program("main()", 21, 20, 40, 0, 0)
def threads_that_end(perf: PerfRecorder) -> None:
    def work() -> None:
        with contextlib.suppress(RecorderError):
            perf.pop_range()  # on the main thread one is open
            raise AssertionError
        with perf.batch(0, total_items=2):
            pass

    with perf.range("main"):
        for _ in range(20):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()


@program("a\\x00b() caf\\udce9.jpg()", 2, 0, 0, 0, 0)
def names_that_nvtx_cannot_hold(perf: PerfRecorder) -> None:
    for name in ("a\0b", "caf\udce9.jpg"):
        with perf.range(name, category="c\ud800"):
            pass


@program("outer(inner())", 2, 0, 0, 0, 0)
def two_objects_of_one_name(perf: PerfRecorder) -> None:
    """They are one recorder: each pops the innermost range, and the last of them finalizes."""
    other = PerfRecorder(perf.name, domain="elsewhere")
    perf.push_range("outer")
    other.push_range("inner")
    perf.pop_range()
    perf.finalize()
    other.pop_range()
