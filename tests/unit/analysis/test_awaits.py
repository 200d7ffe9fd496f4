"""Samples of event loops that wait show the coroutine that ran last in the same stage."""

from __future__ import annotations

from pathlib import Path

from perfharness.analysis.host_samples.awaits import with_awaits
from perfharness.model.diagnosis import Code
from perfharness.model.host_samples import Frame, HostSamples, HostState
from tests.support.made_batches import Batch, diagnosed, near, stage_of
from tests.support.probe_builder import ProbeBuilder

LIBRARY = "/usr/lib/python3.11"
LOOP = (
    f"BaseEventLoop._run_once@{LIBRARY}/asyncio/base_events.py:1884",
    f"BaseEventLoop.run_forever@{LIBRARY}/asyncio/base_events.py:607",
    f"Runner.run@{LIBRARY}/asyncio/runners.py:118",
    "main@user.py:90",
)
WAITS = (f"EpollSelector.select@{LIBRARY}/selectors.py:468", *LOOP)
STEP = f"Handle._run@{LIBRARY}/asyncio/events.py:80"
WRITES = (f"StreamWriter.write@{LIBRARY}/asyncio/streams.py:343", "encode@user.py:5", "embed@user.py:9", STEP, *LOOP)
COUNTS = ("cluster@user.py:20", STEP, *LOOP)
WAKES = (f"_set_state@{LIBRARY}/asyncio/futures.py:403", STEP, *LOOP)
EMBED, CLUSTER = ("p", "embed"), ("p", "cluster")


def functions(samples: HostSamples) -> list[list[str]]:
    """Of each sample, the functions on its stack, the innermost first."""
    return [[samples.frames[number].function for number in samples.stacks[stack]] for stack in samples.stack.tolist()]


def test_a_waiting_loop_has_the_coroutine_of_its_stage_below_its_wait() -> None:
    probe = ProbeBuilder()
    sampled = [
        (COUNTS, CLUSTER), (WAITS, EMBED), (WRITES, EMBED), (WAKES, EMBED), (WAITS, EMBED), (WAITS, CLUSTER),
        (WAITS, None),
    ]  # fmt: skip
    for number, (stack, stage) in enumerate(sampled):
        state = HostState.SOCKET if stack is WAITS else HostState.RUNNING
        probe.sample(number * 1000, stack, stage=stage, state=state)
    for state in (HostState.RUNNING, HostState.RUNNABLE):  # the loop is at work, or would be
        probe.sample((len(sampled) + state) * 1000, WAITS, stage=EMBED, state=state)
    before = probe.build().samples
    after = with_awaits(before)
    loop = [frame.partition("@")[0] for frame in LOOP]
    embeds, counts = ["EpollSelector.select", "encode", "embed", *loop], ["EpollSelector.select", "cluster", *loop]
    found = functions(after)
    assert [found[1], found[4], found[5]] == [embeds, embeds, counts]
    unchanged = [0, 2, 3, 6, 7, 8]
    assert [found[number] for number in unchanged] == [functions(before)[number] for number in unchanged]
    assert (after.state == before.state).all()


def test_what_a_coroutine_only_called_has_returned() -> None:
    suspended = Frame("stream", "user.py", 30, suspends=True), Frame("main", "user.py", 40, suspends=True)
    step = (Frame("next_token", "user.py", 21), *suspended, STEP, *LOOP)
    probe = ProbeBuilder()
    probe.sample(0, step, stage=EMBED)
    probe.sample(1000, WAITS, stage=EMBED, state=HostState.SLEEP)
    loop = [frame.partition("@")[0] for frame in LOOP]
    ran, waited = functions(with_awaits(probe.build().samples))
    assert ran[:3] == ["next_token", "stream", "main"]
    assert waited == ["EpollSelector.select", "stream", "main", *loop]


def test_other_threads_and_blocked_coroutines_stay_as_they_are() -> None:
    probe = ProbeBuilder()
    probe.sample(0, WRITES, stage=EMBED, tid=100)
    probe.sample(1000, WAITS, stage=EMBED, tid=101)
    probe.sample(2000, ("get@user.py:7", "embed@user.py:9", STEP, *LOOP), stage=EMBED, state=HostState.LOCK)
    probe.sample(3000, stage=EMBED)
    samples = probe.build().samples
    assert with_awaits(samples) is samples or functions(with_awaits(samples)) == functions(samples)


def test_a_native_loop_has_no_frames_of_its_own() -> None:
    """As uvloop: below `asyncio.run` there is either the coroutine or nothing."""
    native, probe = LOOP[2:], ProbeBuilder()
    probe.sample(0, ("embed@user.py:9", *native), stage=EMBED)
    probe.sample(1000, native, stage=EMBED, state=HostState.SOCKET)
    assert functions(with_awaits(probe.build().samples))[1] == ["embed", "Runner.run", "main"]


def test_a_loop_that_was_woken_and_waits_for_a_cpu_is_no_function_to_make_cheaper(tmp_path: Path) -> None:
    """Of 1 ms, 600 us are ready in the selector on a busy machine, and the user's own function computes for 400."""

    def content(batch: Batch) -> None:
        batch.sampled(0, 600, *WAITS, state=HostState.RUNNABLE)
        batch.sampled(600, 1000, "digest@user.py:5", "main@user.py:90")

    verdict = stage_of(diagnosed(tmp_path, content)).verdict
    assert verdict.code is Code.CPU_BOUND
    assert verdict.place is not None
    assert (verdict.place.function, verdict.share) == ("digest", near(0.4))
