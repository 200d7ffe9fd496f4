"""The start barrier: who waits where, who opens the gate, and what the recorder's ranges show of it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.model import conventions, environment
from perfharness.recorder import barrier as recorder_barrier
from perfharness.tracer.range_log import RangeLog
from perfharness_launcher.barrier import StartBarrier, start_barrier
from tests.unit.recorder_events import drawn, events

ROOT = Path(__file__).parents[3]
TWO = {0: "proc_0_gpu_0", 1: "proc_1_gpu_0"}
THREE = {**TWO, 2: "proc_2_gpu_0"}
PATIENCE_S = 60.0

Hold = Callable[..., StartBarrier]


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hold(tmp_path: Path, clock: Clock) -> Iterator[Hold]:
    opened = []

    def make(processes: Mapping[int, str]) -> StartBarrier:
        manager = start_barrier(tmp_path / "barrier", processes, timeout_s=30.0, clock=clock)
        opened.append(manager)
        return manager.__enter__()

    yield make
    for manager in opened:
        manager.__exit__(None, None, None)


def come(barrier: StartBarrier, index: int, unix_ns: int = 5) -> None:
    """What the recorder writes."""
    with (barrier.folder / environment.BARRIER_ARRIVALS).open("wb", buffering=0) as arrivals:
        arrivals.write(b"%d 4711 %d -1 -1\n" % (index, unix_ns))


def codes(barrier: StartBarrier) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.process) for finding in barrier.findings()]


def is_open(barrier: StartBarrier) -> bool:
    """Asked each time anew, which a type checker does not expect of a property."""
    return barrier.is_open


# ---- the launch's side ----


def test_the_gate_opens_when_all_have_come(hold: Hold) -> None:
    barrier = hold(TWO)
    barrier.poll([])
    come(barrier, 1, unix_ns=70)
    barrier.poll([])
    assert not is_open(barrier)
    assert (barrier.holds(0), barrier.holds(1)) == (False, True)
    come(barrier, 1)  # a second thread of the same process
    barrier.poll([])
    assert not is_open(barrier)
    come(barrier, 0, unix_ns=90)
    barrier.poll([])
    assert is_open(barrier)
    assert not barrier.holds(1)
    assert barrier.record().arrived_unix_ns == {"proc_0_gpu_0": 90, "proc_1_gpu_0": 70}
    assert codes(barrier) == []


def test_one_that_never_comes_is_named_and_the_others_go_on(hold: Hold, clock: Clock) -> None:
    barrier = hold(THREE)
    clock.now += 1000  # imports may take as long as they like before the first one is there
    barrier.poll([])
    come(barrier, 0)
    come(barrier, 2)
    barrier.poll([])
    clock.now += 29.9
    barrier.poll([])
    assert not is_open(barrier)
    clock.now += 0.2
    barrier.poll([])
    assert is_open(barrier)
    assert codes(barrier) == [("start-barrier-timeout", "proc_1_gpu_0")]


@pytest.mark.parametrize(
    ("processes", "steps", "opens", "found"),
    [
        (THREE, [0, [1], 2, [1]], 3, [("start-barrier-missed", "proc_1_gpu_0")]),
        (TWO, [0, [], [1]], 2, [("start-barrier-missed", "proc_1_gpu_0")]),
        (TWO, [[0, 1]], None, [("start-barrier-not-reached", None)]),
        (THREE, [0, [], [0], 1, 2, [0]], 5, []),
    ],
    ids=["one ends before it comes", "the last one ends", "nobody comes", "one ended while it waited"],
)
def test_who_is_waited_for(
    hold: Hold, processes: Mapping[int, str], steps: list[Any], opens: int | None, found: list[tuple[str, str | None]]
) -> None:
    """A number: that process comes. A list: the processes that are over at a poll. Opens at that step, not before."""
    barrier = hold(processes)
    for place, step in enumerate(steps):
        if isinstance(step, int):
            come(barrier, step)
        else:
            barrier.poll(step)
        assert is_open(barrier) is (opens is not None and place >= opens)
    assert codes(barrier) == found
    assert (barrier.record().opened_unix_ns is None) is (opens is None)


def test_a_line_that_comes_in_two_parts(hold: Hold) -> None:
    barrier = hold(TWO)
    with (barrier.folder / environment.BARRIER_ARRIVALS).open("wb", buffering=0) as arrivals:
        arrivals.write(b"1 47")
        barrier.poll([])
        arrivals.write(b"11 5\n0 4712 6\n")
        barrier.poll([])
    assert barrier.arrived_unix_ns == {1: 5, 0: 6}


# ---- the recorder's side ----


@pytest.fixture
def held(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> StartBarrier:
    """A barrier of two processes of which this is the first; one warm-up batch."""
    barrier = hold(TWO)
    monkeypatch.setenv(environment.START_BARRIER, str(barrier.folder))
    monkeypatch.setenv(environment.PROCESS_INDEX, "0")
    monkeypatch.setenv(environment.WARMUP_BATCHES, "1")
    return barrier


def opening(barrier: StartBarrier, come_first: Callable[[], None] = lambda: None) -> threading.Thread:
    """Opens the gate once process 0 is there, after doing `come_first`."""

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
    return thread


def without_times(text: str) -> str:
    return re.sub(r"(start_barrier)=\d+", r"\1", text)


def batches(perf: PerfRecorder, count: int) -> None:
    for index in range(count):
        perf.push_range("batch", batch_idx=index)
        perf.push_range("stage")
        perf.pop_range()
        perf.pop_range(total_items=1)


def test_it_stands_before_the_first_batch_after_the_warmup(held: StartBarrier, log: RangeLog) -> None:
    perf = PerfRecorder("rec")
    seen: list[str] = []
    watcher = opening(held, lambda: seen.append(drawn(log, threading.main_thread().native_id)))
    with perf.range("pipeline"):
        batches(perf, 3)
    watcher.join()
    one = "batch={}(stage() !items=1)"
    assert seen == [f"!recorder pipeline({one.format(0)}"], "while it waited, batch 1 was not pushed"
    assert without_times(drawn(log)) == (
        f"!recorder pipeline({one.format(0)} !start_barrier {one.format(1)} {one.format(2)})"
    )
    (mark,) = [event for event in events(log) if event.message == conventions.MARK_BARRIER]
    assert mark.category == f"rec/{conventions.WITH_WORKERS}", "another thread, which might have loaded something"
    (wait,) = recorder_barrier.active().waits  # type: ignore[union-attr]
    assert wait["loop"] == "rec/pipeline/batch"
    assert wait["waited_ns"] > 0
    counts = perf.counts()
    assert [counts[name] for name in ("ranges", "batches", "items")] == [7, 3, 3]


@pytest.mark.parametrize("way", ["with", "loop"])
def test_blocks_and_loops_wait_too(held: StartBarrier, log: RangeLog, way: str) -> None:
    perf = PerfRecorder("rec")
    watcher = opening(held)
    if way == "with":
        for index in range(2):
            with perf.batch(index, total_items=1):
                pass
    else:
        for _ in perf.batches("ab", items=1):
            pass
    watcher.join()
    text = without_times(drawn(log)).split(" ", 1)[1]
    assert text == ("batch=0(!items=1) !start_barrier batch=1(!items=1)")


def test_nested_batches_are_no_loop_of_their_own(held: StartBarrier, log: RangeLog) -> None:
    perf = PerfRecorder("rec")
    with perf.batch(0):
        batches(perf, 4)  # inside the warm-up batch: nobody waits
    assert not recorder_barrier.active().is_open  # type: ignore[union-attr]
    assert held.arrived_unix_ns == {}


def test_tasks_of_asyncio(held: StartBarrier, log: RangeLog) -> None:
    perf = PerfRecorder("rec")

    async def work(index: int) -> None:
        with perf.batch(index, total_items=1):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(work(index) for index in range(4)))

    watcher = opening(held)
    asyncio.run(main())
    watcher.join()
    assert drawn(log).count("start_barrier") == 1
    assert perf.counts()["batches"] == 4


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_open_gate_and_a_gate_that_is_gone_hold_nobody(
    held: StartBarrier, log: RangeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    held.open()
    if is_gone:
        monkeypatch.setenv(environment.START_BARRIER, str(tmp_path / "gone"))
    batches(PerfRecorder("rec"), 3)
    assert drawn(log).count("start_barrier") == (0 if is_gone else 1)


def test_a_launch_that_dies_lets_those_go_that_wait(held: StartBarrier) -> None:
    waiting = recorder_barrier.active()
    assert waiting is not None
    threads = [threading.Thread(target=waiting.wait, args=("loop",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not held.arrived_unix_ns:
        held.poll([])
    os.close(held.arrivals)  # as the kernel does for whoever is killed
    for thread in threads:
        thread.join(PATIENCE_S)
    held.arrivals = os.open(os.devnull, os.O_RDONLY)
    assert not any(thread.is_alive() for thread in threads)


def test_a_launch_that_does_nothing_is_waited_for_as_long_as_it_promised(held: StartBarrier) -> None:
    barrier = recorder_barrier.StartBarrier(held.folder, 0, 0, limit_s=0.01)
    assert barrier.wait("loop") >= 0.01e9
    assert barrier.is_open


CHILD = """
import os, signal, sys, multiprocessing
from perfharness import PerfRecorder

# A shell starts what it puts into the background with SIGINT ignored, and Python then leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)

def work():
    perf = PerfRecorder("rec", domain="d%d" % os.getpid())
    for i in range(3):
        with perf.batch(i, total_items=1):
            print("batch", i, flush=True)

if __name__ == "__main__":
    try:
        if sys.argv[1] == "plain":
            work()
        else:
            worker = multiprocessing.get_context(sys.argv[1]).Process(target=work)
            worker.start()
            worker.join()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def child(barrier: StartBarrier, tmp_path: Path, way: str) -> subprocess.Popen[str]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    return subprocess.Popen(
        [sys.executable, str(script), way],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            environment.START_BARRIER: str(barrier.folder),
            environment.PROCESS_INDEX: "0",
            environment.WARMUP_BATCHES: "1",
            environment.OUTPUT_DIR: str(tmp_path / "proc"),
        },
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("way", ["plain", "fork", "spawn"])
def test_a_real_process_and_its_workers_wait_in_the_kernel(hold: Hold, tmp_path: Path, way: str) -> None:
    barrier = hold(TWO)
    with child(barrier, tmp_path, way) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "batch 0\n"
        watcher = opening(barrier)
        assert process.stdout.read() == "batch 1\nbatch 2\n"
        watcher.join()
    assert process.returncode == 0
    assert barrier.arrived_unix_ns.keys() == {0, 1}
