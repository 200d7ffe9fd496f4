"""The stated error of a clock offset against the real one, over a real connection to a clock that is known."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from socket import create_connection, create_server, socket

import pytest

from perfharness.cluster.member import measure_offset
from perfharness.cluster.wire import Wire

AHEAD_NS = 3_217_000_000
LATE_S = 0.002
PATIENCE_S = 60.0
SPAWN = get_context("spawn")

CASES = {
    # name: (tries, busy loops beside them, seconds that a question is late, seconds that an answer is late)
    "quiet": (400, 0, 0.0, 0.0),
    "busy": (400, 2, 0.0, 0.0),
    "questions are late": (100, 0, LATE_S, 0.0),
    "answers are late": (100, 0, 0.0, LATE_S),
}


def answer(listening: socket, question_late_s: float, answer_late_s: float) -> None:
    """Tell the time as node 0 does, by a clock that is ahead."""
    wire = Wire(listening.accept()[0], PATIENCE_S)
    with suppress(EOFError, OSError):
        while wire.receive():
            time.sleep(question_late_s)
            now_ns = time.time_ns() + AHEAD_NS
            time.sleep(answer_late_s)
            wire.send(unix_ns=now_ns)


def spin() -> None:
    while True:
        pass


@contextmanager
def beside(target: Callable[..., None], *arguments: object) -> Iterator[None]:
    process = SPAWN.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_stated_error_holds(case: str) -> None:
    tries, loops, question_late_s, answer_late_s = CASES[case]
    with ExitStack() as stack:
        listening = stack.enter_context(create_server(("127.0.0.1", 0)))
        stack.enter_context(beside(answer, listening, question_late_s, answer_late_s))
        for _ in range(loops):
            stack.enter_context(beside(spin))
        wire = Wire(create_connection(listening.getsockname()), PATIENCE_S)
        stack.callback(wire.close)
        found = [measure_offset(lambda: int(wire.ask(type="time")["unix_ns"])) for _ in range(tries)]
    real = [abs(one.offset_ns - AHEAD_NS) for one in found]
    stated = [one.error_ns for one in found]
    for name, ns in (("real", real), ("stated", stated)):
        print(f"{case}: {name} error median {statistics.median(ns) / 1e3:.1f} us, worst {max(ns) / 1e3:.1f} us")
    assert sum(error > limit for error, limit in zip(real, stated, strict=True)) == 0
    if question_late_s or answer_late_s:
        assert min(real) >= 0.4e9 * LATE_S, "the delay has an effect"
