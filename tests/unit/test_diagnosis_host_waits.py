"""Threads that wait for other threads: with the operating system's calls, and by hand-overs without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import StageDiagnosis, Verdict
from perfharness.testing.trace_builder import TraceBuilder
from perfharness.trace import open_trace

US = 1000
BATCH = 1000 * US
BATCHES = 12
MAIN, WORKER = 100, 101


def os_call(builder: TraceBuilder, name: str, start: int, end: int, tid: int = MAIN) -> None:
    builder.row(
        "OSRT_API", start=start, end=end, eventClass=27, globalTid=schema.global_tid(100, tid),
        nameId=builder.string(name), returnValue=0, nestingLevel=0, callchainId=0,
    )  # fmt: skip


def pipeline(decode: tuple[int, int] | None, *waits: tuple[str, int, int]) -> TraceBuilder:
    """Batches of 1 ms whose `fetch` takes 10 to 910 us; `decode` of another thread, and what `fetch` is blocked in."""
    builder = TraceBuilder()
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        builder.range("fetch", begin + 10 * US, begin + 910 * US)
        if decode is not None:
            builder.range("decode", begin + decode[0] * US, begin + decode[1] * US, tid=WORKER)
        for name, first, last in waits:
            os_call(builder, name, begin + first * US, begin + last * US)
    return builder


def fetch(builder: TraceBuilder, path: Path) -> StageDiagnosis:
    trace = open_trace(builder.write(path / "t.sqlite"))
    stages = diagnose(Analysis(trace)).stages
    return next(stage for stage in stages if stage.path[-1] == "fetch")


def blocked(stage: StageDiagnosis) -> dict[str, float | None]:
    assert stage.host is not None
    return stage.host.blocked_ms


def test_a_wait_for_a_queue_names_the_stage_that_fills_it(tmp_path: Path) -> None:
    # fetch  |.wwwwwwwwwwww..|     720 of 900 us blocked
    # decode |dddddddddddd...|     at work from 0 to 620: 520 of these 720
    stage = fetch(pipeline((0, 620), ("sem_wait", 100, 820)), tmp_path)
    assert stage.verdict.verdict is Verdict.WAITING_ON_STAGE
    assert "waits for a lock or a queue 80 % of its host time" in stage.verdict.evidence[0]
    assert "during 72 % of that another thread is at work in 'decode'" in stage.verdict.evidence[0]
    assert stage.cost.saving_share is None
    assert "waits for locks or queues 72 % of its time" in (stage.cost.reason or "")
    assert blocked(stage) == {
        "lock": pytest.approx(0.72), "sleep": 0.0, "process": 0.0, "file": 0.0,
    }  # fmt: skip


def test_without_the_wait_the_same_stage_computes(tmp_path: Path) -> None:
    # 35 % of the stage, below the threshold of 40 %: the rest computes.
    stage = fetch(pipeline((0, 620), ("sem_wait", 100, 415)), tmp_path)
    assert stage.verdict.verdict is Verdict.CPU_BOUND
    assert "35 % is blocked in the operating system." in stage.verdict.evidence
    assert stage.verdict.missing == []


def test_a_lock_that_no_stage_explains_is_not_pinned_on_one(tmp_path: Path) -> None:
    # decode works during 200 of the 720 us: 28 %.
    stage = fetch(pipeline((620, 950), ("pthread_cond_timedwait", 100, 820)), tmp_path)
    assert stage.verdict.verdict is Verdict.WAITING_ON_SYSTEM
    assert "none was in a stage" in stage.verdict.missing[0]


def test_a_thread_that_waits_too_is_not_at_work(tmp_path: Path) -> None:
    builder = pipeline((0, 900), ("sem_wait", 100, 820))
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        os_call(builder, "pthread_mutex_lock", begin + 50 * US, begin + 800 * US, tid=WORKER)
    assert fetch(builder, tmp_path).verdict.verdict is Verdict.WAITING_ON_SYSTEM


@pytest.mark.parametrize(
    ("name", "kind", "verdict"),
    [
        ("clock_nanosleep", "sleep", Verdict.WAITING_ON_SYSTEM),
        ("read", "file", Verdict.WAITING_ON_SYSTEM),
        ("waitpid", "process", Verdict.WAITING_ON_PROCESS),
        ("pthread_cond_signal", None, Verdict.CPU_BOUND),  # wakes, and does not wait
    ],
)
def test_what_it_waits_for(name: str, kind: str | None, verdict: Verdict, tmp_path: Path) -> None:
    stage = fetch(pipeline(None, (name, 100, 820)), tmp_path)
    assert stage.verdict.verdict is verdict
    assert {each for each, ms in blocked(stage).items() if ms} == ({kind} if kind else set())


def test_waits_inside_of_cuda_calls_belong_to_those(tmp_path: Path) -> None:
    builder = pipeline((0, 620), ("sem_wait", 100, 820))
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.call("cudaEventRecord_v3020", begin + 50 * US, begin + 700 * US)
    assert blocked(fetch(builder, tmp_path))["lock"] == pytest.approx(0.12)


def test_a_moment_in_two_calls_counts_once(tmp_path: Path) -> None:
    stage = fetch(pipeline(None, ("sem_wait", 100, 600), ("read", 400, 820), ("sem_wait", 200, 500)), tmp_path)
    assert blocked(stage) == {
        "lock": pytest.approx(0.5), "sleep": 0.0, "process": 0.0, "file": pytest.approx(0.22),
    }  # fmt: skip


def test_without_the_calls_nothing_is_known_of_waiting(tmp_path: Path) -> None:
    stage = fetch(pipeline(None), tmp_path)
    assert stage.verdict.verdict is Verdict.CPU_BOUND
    assert stage.cost.saving_share == pytest.approx(0.9)
    assert set(blocked(stage).values()) == {None}
    assert "--trace-os" in stage.verdict.missing[0]


def test_a_stage_that_ends_when_anothers_ends_looks_like_waiting(tmp_path: Path) -> None:
    # decode ends 10 us before fetch, every time; within 90 us (a tenth of it) of such an end lie 9 % of the time.
    stage = fetch(pipeline((200, 900)), tmp_path)
    assert stage.verdict.verdict is Verdict.WAITING_ON_STAGE
    assert "100 % of the times it ends right after 'decode' of another thread" in stage.verdict.evidence[0]
    assert "by chance: 9 %" in stage.verdict.evidence[0]
    assert "--trace-os" in stage.verdict.missing[0]
    assert stage.cost.saving_share is None
    assert "wait for another thread" in (stage.cost.reason or "")


@pytest.mark.parametrize(
    ("decode", "why"),
    [
        ((200, 800), "it ends 110 us later, and 90 would be close"),
        ((400, 930), "the other ends after it: that one may wait for this one"),
        ((-200, 5), "the other ended before this began: nobody was woken"),
    ],
)
def test_other_ends_are_no_hand_over(decode: tuple[int, int], why: str, tmp_path: Path) -> None:
    assert fetch(pipeline(decode), tmp_path).verdict.verdict is Verdict.CPU_BOUND, why


def test_a_thread_that_ends_something_all_the_time_hands_nothing_over(tmp_path: Path) -> None:
    builder = pipeline(None)
    for at in range(BATCH, (BATCHES + 1) * BATCH, 50 * US):
        builder.range("tick", at, at + 40 * US, tid=WORKER)
    assert fetch(builder, tmp_path).verdict.verdict is Verdict.CPU_BOUND


def test_another_process_hands_nothing_over(tmp_path: Path) -> None:
    builder = pipeline(None)
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range("decode", begin + 200 * US, begin + 900 * US, pid=200, tid=200)
    assert fetch(builder, tmp_path).verdict.verdict is Verdict.CPU_BOUND
