"""Threads that wait for other threads: with the operating system's calls, and by hand-overs without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.model.diagnosis import StageDiagnosis, Verdict
from tests.support.made_batches import WORKER, Batch, Content, diagnosed, host_of, nothing, stage_of

QUEUE = ("sem_wait", 100, 820)


def fetch(
    path: Path, decode: tuple[int, int] | None, *waits: tuple[str, int, int], more: Content = nothing
) -> StageDiagnosis:
    """Batches of 1 ms whose `fetch` takes 10 to 910 us; `decode` of another thread, and what `fetch` is blocked in."""

    def content(batch: Batch) -> None:
        if decode is not None:
            batch.range("decode", *decode, tid=WORKER)
        for wait in waits:
            batch.os_call(*wait)
        more(batch)

    return stage_of(diagnosed(path, content, {"fetch": (10, 910)}), "fetch")


def test_a_wait_for_a_queue_names_the_stage_that_fills_it(tmp_path: Path) -> None:
    # fetch  |.wwwwwwwwwwww..|     720 of 900 us blocked
    # decode |dddddddddddd...|     at work from 0 to 620: 520 of these 720
    stage = fetch(tmp_path, (0, 620), QUEUE)
    assert stage.verdict.verdict is Verdict.WAITING_ON_STAGE
    assert all(part in stage.verdict.evidence[0] for part in ("80 %", "72 %", "'decode'"))
    assert stage.cost.saving_share is None


def test_without_the_wait_the_same_stage_computes(tmp_path: Path) -> None:
    # 35 % of the stage, below the threshold of 40 %: the rest computes.
    stage = fetch(tmp_path, (0, 620), ("sem_wait", 100, 415))
    assert (stage.verdict.verdict, stage.verdict.missing) == (Verdict.CPU_BOUND, [])
    assert any("35 %" in said for said in stage.verdict.evidence)


def test_a_lock_that_no_stage_explains_is_not_pinned_on_one(tmp_path: Path) -> None:
    # decode works during 200 of the 720 us: 28 %.
    stage = fetch(tmp_path, (620, 950), ("pthread_cond_timedwait", 100, 820))
    assert stage.verdict.verdict is Verdict.WAITING_ON_SYSTEM


def test_a_thread_that_waits_too_is_not_at_work(tmp_path: Path) -> None:
    stage = fetch(tmp_path, (0, 900), QUEUE, more=lambda batch: batch.os_call("pthread_mutex_lock", 50, 800, WORKER))
    assert stage.verdict.verdict is Verdict.WAITING_ON_SYSTEM


@pytest.mark.parametrize(
    ("waits", "cuda_ms", "blocked"),
    [
        ([QUEUE], 0, {"lock": 0.72}),
        ([("clock_nanosleep", 100, 820)], 0, {"sleep": 0.72}),
        ([("read", 100, 820)], 0, {"file": 0.72}),
        ([("recv", 100, 820)], 0, {"socket": 0.72}),
        ([("waitpid", 100, 820)], 0, {"process": 0.72}),
        ([("pthread_cond_signal", 100, 820)], 0, {}),  # wakes, and does not wait
        ([QUEUE], 700, {"lock": 0.12}),  # inside of CUDA calls it belongs to those
        ([("sem_wait", 100, 600), ("read", 400, 820), ("sem_wait", 200, 500)], 0, {"lock": 0.5, "file": 0.22}),
    ],
)
def test_each_moment_of_waiting_counts_once(
    waits: list[tuple[str, int, int]], cuda_ms: int, blocked: dict[str, float], tmp_path: Path
) -> None:
    def cuda(batch: Batch) -> None:
        if cuda_ms:
            batch.call("cudaEventRecord_v3020", 50, cuda_ms)

    stage = fetch(tmp_path, None, *waits, more=cuda)
    assert host_of(stage).blocked_ms == pytest.approx(
        dict.fromkeys(("lock", "sleep", "process", "file", "socket"), 0.0) | blocked
    )


def test_without_the_calls_nothing_is_known_of_waiting(tmp_path: Path) -> None:
    stage = fetch(tmp_path, None)
    assert stage.verdict.verdict is Verdict.CPU_BOUND
    assert stage.cost.saving_share == pytest.approx(0.9)
    assert set(host_of(stage).blocked_ms.values()) == {None}


def test_a_stage_that_ends_when_anothers_ends_looks_like_waiting(tmp_path: Path) -> None:
    # decode ends 10 us before fetch, every time; within 90 us (a tenth of it) of such an end lie 9 % of the time.
    stage = fetch(tmp_path, (200, 900))
    assert stage.verdict.verdict is Verdict.WAITING_ON_STAGE
    assert all(part in stage.verdict.evidence[0] for part in ("100 %", "'decode'", "9 %"))
    assert stage.cost.saving_share is None


def ticks(batch: Batch) -> None:
    for at in range(0, 1000, 50):
        batch.range("tick", at, at + 40, tid=WORKER)


@pytest.mark.parametrize(
    ("decode", "more"),
    [
        ((200, 800), nothing),  # it ends 110 us later, and 90 would be close
        ((400, 930), nothing),  # the other ends after it: that one may wait for this one
        ((-200, 5), nothing),  # the other ended before this began: nobody was woken
        (None, ticks),  # a thread that ends something all the time
        (None, lambda batch: batch.range("decode", 200, 900, pid=200, tid=200)),  # another process
    ],
)
def test_other_ends_are_no_hand_over(decode: tuple[int, int] | None, more: Content, tmp_path: Path) -> None:
    assert fetch(tmp_path, decode, more=more).verdict.verdict is Verdict.CPU_BOUND
