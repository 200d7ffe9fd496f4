"""What the sampler reads of stacks, against what this interpreter runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CodeType

import pytest

from perfharness.host_probe.layout import find_layout
from perfharness.host_probe.reader import InterpreterReader, Memory, UnreadableError

PATIENCE_S = 15.0


def test_frames_that_may_be_suspended_are_marked() -> None:
    go, ready = threading.Event(), threading.Event()

    def plain() -> int:
        ready.set()
        go.wait(PATIENCE_S)
        return 1

    def generator() -> Iterator[int]:
        yield plain()

    async def steps() -> AsyncIterator[int]:
        yield sum(generator())

    async def coroutine() -> int:
        async for number in steps():
            return number
        return 0

    def in_loop() -> None:
        asyncio.run(coroutine())

    thread = threading.Thread(target=in_loop)
    thread.start()
    try:
        ready.wait(PATIENCE_S)
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            reader = InterpreterReader(Memory(memory.fileno()), find_layout(memory.fileno()))
            marked = _marked(reader, thread)
    finally:
        go.set()
        thread.join()
    mine = {name: is_marked for name, is_marked in marked.items() if name in ("plain", "in_loop")}
    suspended = {name: marked[name] for name in ("generator", "steps", "coroutine")}
    assert mine == {"plain": False, "in_loop": False}
    assert suspended == dict.fromkeys(suspended, True)


class MovedMemory(Memory):
    """This process's memory, with another object at the address of one that is freed."""

    def __init__(self, file: int, freed: object, now: object) -> None:
        super().__init__(file)
        self._freed, self._now, self.is_freed = id(freed), id(now), False

    def read(self, address: int, length: int) -> bytes:
        return super().read(self._now if self.is_freed and address == self._freed else address, length)


@pytest.mark.parametrize("source", ["value = 1", "class Settings:\n    value = 1"])
def test_code_that_took_the_place_of_a_module_s_is_not_taken_for_it(source: str) -> None:
    """Code of a module, or of a class's body, runs once and is freed: another object may have its address soon."""
    first = compile(source, "module.py", "exec")
    first = next((one for one in first.co_consts if isinstance(one, CodeType)), first)

    def classify() -> int:
        return 1

    with Path("/proc/self/mem").open("rb", buffering=0) as file:
        memory = MovedMemory(file.fileno(), first, classify.__code__)
        reader = InterpreterReader(memory, find_layout(file.fileno()))
        before = reader.code(id(first)).at(0)
        memory.is_freed = True
        after = reader.code(id(first)).at(0)
    assert before[:2] == (first.co_name, "module.py")  # of the first level, so qualified as well
    assert after[0].endswith("classify")
    assert after[1] == __file__


def _marked(reader: InterpreterReader, thread: threading.Thread) -> dict[str, bool]:
    """By the names of the functions on a thread's stack; read again while it is on its way into the wait."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        with contextlib.suppress(UnreadableError, KeyError):
            first = {ident: first for _, ident, first in reader.threads()}[thread.ident or 0]
            found = {name.rpartition(".")[2]: len(rest) == 3 for name, *rest in reader.stack(first)}
            if {"in_loop", "coroutine", "steps", "generator", "plain"} <= found.keys():
                return found
        time.sleep(0.001)
    raise AssertionError("the stack was not read")
