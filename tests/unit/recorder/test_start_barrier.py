"""The start barrier: who waits where, who opens the gate, and what the recorder's ranges show of it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.model import conventions, environment
from perfharness.tracer.range_log import RangeLog
from perfharness_launcher.barrier import StartBarrier
from tests.unit.recorder_events import drawn, events

ROOT = Path(__file__).parents[3]
TWO = {0: "proc_0_gpu_0", 1: "proc_1_gpu_0"}
THREE = {**TWO, 2: "proc_2_gpu_0"}
PATIENCE_S = 60.0

Hold = Callable[..., StartBarrier]


@pytest.fixture
def clock() -> SimpleNamespace:
    """Time that the test moves."""
    return SimpleNamespace(now=100.0)


@pytest.fixture
def hold(tmp_path: Path, clock: SimpleNamespace) -> Iterator[Hold]:
    opened = []

    def make(processes: Mapping[int, str]) -> StartBarrier:
        opened.append(StartBarrier(tmp_path / "barrier", processes, timeout_s=30.0, clock=lambda: float(clock.now)))
        return opened[-1]

    yield make
    for barrier in opened:
        barrier.close()


def come(barrier: StartBarrier, index: int) -> None:
    """What the recorder writes."""
    with (barrier.folder / environment.BARRIER_ARRIVALS).open("wb", buffering=0) as arrivals:
        arrivals.write(b"%d 4711 5 -1 -1\n" % index)


def codes(barrier: StartBarrier) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.process) for finding in barrier.findings()]


# ---- the launch's side ----


MISSED = ("start-barrier-missed", "proc_1_gpu_0")


@pytest.mark.parametrize(
    ("processes", "steps", "opens", "found"),
    [
        (TWO, [[], 1, [], 1, [], 0, []], 6, []),
        (THREE, [1000.0, [], 0, 2, [], 29.9, [], 0.2, []], 8, [MISSED]),
        (THREE, [0, [1], 2, [1]], 3, [MISSED]),
        (TWO, [0, [], [1]], 2, [MISSED]),
        (TWO, [[0, 1]], None, [("start-barrier-missed", None)]),
        (THREE, [0, [], [0], 1, 2, [0]], 5, []),
    ],
    ids=[
        "two threads of one process, then the other",
        "one never comes; the time before the first one does not count",
        "one ends before it comes",
        "the last one ends",
        "nobody comes",
        "one ended while it waited",
    ],
)
def test_who_is_waited_for(
    hold: Hold,
    clock: SimpleNamespace,
    processes: Mapping[int, str],
    steps: list[Any],
    opens: int | None,
    found: list[Any],
) -> None:
    """A number: that process comes. A list: the processes that are over at a poll. A fraction: so many seconds pass.
    Opens at that step, not before.
    """
    barrier = hold(processes)
    come_by_now: set[int] = set()
    for place, step in enumerate(steps):
        if isinstance(step, int):
            come(barrier, step)
            come_by_now.add(step)
        elif isinstance(step, float):
            clock.now += step
        else:
            barrier.poll(step)
            holding = {index for index in processes if barrier.holds(index)}
            assert holding == (set() if barrier.is_open else come_by_now)
        assert barrier.is_open is (opens is not None and place >= opens)
    assert codes(barrier) == found
    assert (barrier.record().opened_unix_ns is None) is (opens is None)


def test_a_line_that_comes_in_two_parts(hold: Hold) -> None:
    barrier = hold(TWO)
    with (barrier.folder / environment.BARRIER_ARRIVALS).open("wb", buffering=0) as arrivals:
        arrivals.write(b"1 47")
        barrier.poll([])
        arrivals.write(b"11 5\n0 4712 6\n")
        barrier.poll([])
    assert barrier.record().arrived_unix_ns == {"proc_0_gpu_0": 6, "proc_1_gpu_0": 5}


# ---- the recorder's side ----


@pytest.fixture
def held(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> StartBarrier:
    """A barrier of two processes of which this is the first; one warm-up batch."""
    barrier = hold(TWO)
    monkeypatch.setenv(environment.START_BARRIER, str(barrier.folder))
    monkeypatch.setenv(environment.PROCESS_INDEX, "0")
    monkeypatch.setenv(environment.WARMUP_BATCHES, "1")
    return barrier


@contextmanager
def opening(barrier: StartBarrier, come_first: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Opens the barrier once process 0 is there, after doing `come_first`."""

    def watch() -> None:
        pause = threading.Event()
        while not barrier.holds(0):
            barrier.poll([])
            pause.wait(0.01)
        come_first()
        come(barrier, 1)
        barrier.poll([])

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


def without_times(text: str) -> str:
    return re.sub(r"(start_barrier)=\d+", r"\1", text)


def pushed(perf: PerfRecorder) -> None:
    for index in range(3):
        perf.push_range("batch", batch_idx=index)
        perf.pop_range(total_items=1)


def blocks(perf: PerfRecorder) -> None:
    for index in range(3):
        with perf.batch(index, total_items=1):
            pass


def looped(perf: PerfRecorder) -> None:
    for _ in perf.batches("abc", items=1):
        pass


@pytest.mark.parametrize("make_batches", [pushed, blocks, looped])
def test_it_stands_before_the_first_batch_after_the_warmup(
    held: StartBarrier, log: RangeLog, make_batches: Callable[[PerfRecorder], None]
) -> None:
    perf = PerfRecorder("rec")
    seen: list[str] = []
    with opening(held, lambda: seen.append(drawn(log, threading.main_thread().native_id))), perf.range("pipeline"):
        make_batches(perf)
    zero, one, two = (f"batch={index}(!items=1)" for index in range(3))
    assert seen == [f"!recorder pipeline({zero}"], "while it waited, batch 1 was not pushed"
    assert without_times(drawn(log)) == f"!recorder pipeline({zero} !start_barrier {one} {two})"
    (mark,) = [event for event in events(log) if event.message == conventions.MARK_BARRIER]
    assert (mark.payload or 0) > 0
    assert perf.counts()["batches"] == 3


def test_nested_batches_are_no_loop_and_tasks_are_one(held: StartBarrier, log: RangeLog) -> None:
    perf = PerfRecorder("rec")
    with perf.batch(0):
        pushed(perf)  # inside the warm-up batch: nobody waits
    assert held.arrived_unix_ns == {}

    async def work(index: int) -> None:
        with perf.batch(index, total_items=1, message="task"):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(work(index) for index in range(4)))

    with opening(held):
        asyncio.run(main())
    assert drawn(log).count("start_barrier") == 1
    assert perf.counts()["batches"] == 8


@pytest.mark.parametrize("is_gone", [False, True])
def test_one_that_is_open_or_gone_holds_nobody(
    held: StartBarrier, log: RangeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    held.open()
    if is_gone:
        monkeypatch.setenv(environment.START_BARRIER, str(tmp_path / "gone"))
    pushed(PerfRecorder("rec"))
    assert drawn(log).count("start_barrier") == (0 if is_gone else 1)


def test_a_launch_that_dies_lets_those_go_that_wait(held: StartBarrier, log: RangeLog) -> None:
    def wait() -> None:
        pushed(PerfRecorder("rec"))

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not held.arrived_unix_ns:
        held.poll([])
    os.close(held.arrivals)  # as the kernel does for whoever is killed
    for thread in threads:
        thread.join(PATIENCE_S)
    held.arrivals = os.open(os.devnull, os.O_RDONLY)
    assert not any(thread.is_alive() for thread in threads)


def test_a_launch_that_does_nothing_is_waited_for_as_long_as_it_promised(
    held: StartBarrier, log: RangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.START_BARRIER_LIMIT, "1")
    begin = time.monotonic()
    pushed(PerfRecorder("rec"))
    assert time.monotonic() - begin >= 1


CHILD = """
import multiprocessing, os, sys
from perfharness import PerfRecorder

def work():
    perf = PerfRecorder("rec", domain="d%d" % os.getpid())
    for i in range(3):
        with perf.batch(i, total_items=1):
            print("batch", i, flush=True)

if __name__ == "__main__":
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    worker.start()
    worker.join()
"""


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_wait_too(held: StartBarrier, tmp_path: Path, way: str) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), environment.OUTPUT_DIR: str(tmp_path / "proc")}
    command = [sys.executable, str(script), way]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "batch 0\n"
        with opening(held):
            assert process.stdout.read() == "batch 1\nbatch 2\n"
    assert process.returncode == 0
    assert held.arrived_unix_ns.keys() == {0, 1}
