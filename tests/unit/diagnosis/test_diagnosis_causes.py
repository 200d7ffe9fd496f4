"""Causes: what only samples can tell, each at its threshold; what comes first, what is left out, what is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.analysis.diagnosis.thread_readings import CpuTime, ThreadReadings, thread_times
from perfharness.analysis.diagnosis.rules import RULES, judge
from perfharness.analysis.diagnosis.rules.evidence import (
    MISSING_OS,
    Compiling,
    Figures,
    Issuing,
    KeptCpu,
    Recompiling,
)
from perfharness.model.conventions import (
    MARK_COLLECTING,
    MARK_COMPILING,
    MARK_CROWDED,
    MARK_PROCESS_TIME,
    MARK_QUEUED,
    MARK_READY_TIME,
    MARK_RECORDER,
)
from perfharness.model.diagnosis import (
    Cause,
    Diagnosis,
    StageDiagnosis,
    Verdict,
)
from perfharness.model.host_samples import HostEventKind, HostProbe, HostState
from perfharness.model.trace import PID_SHIFT, CopyKind, OsWaitKind
from perfharness.trace import open_trace
from tests.support.diagnosis_builder import figures, host_evidence, line
from tests.support.made_batches import BATCH, SYNCHRONIZE, US, Batch, Content, diagnosed, nothing, stage_of
from tests.support.probe_builder import ProbeBuilder
from tests.support.trace_builder import TraceBuilder

WORK = replace(line("work", 7), self_ms=100.0)


NO_WAITS = dict.fromkeys(OsWaitKind, 0)
AT_THE_GPU = {"outside": 1e6, "waiting_share": 0.6, "uses_gpu": True}


def by_samples(**profile: object) -> Figures:
    return figures(100.0, uses_gpu=False, host=host_evidence(profile=dict(profile), busiest=WORK))


def loading(ms: float, state: str = "lock") -> Figures:
    evidence = host_evidence(
        profile={"state_ms": {state: ms}}, work_ms={"loader": ms}, work_lines={"loader": line("next")}
    )
    return figures(100.0, uses_gpu=False, host=evidence)


def exchanging(ms: float) -> Figures:
    evidence = host_evidence(
        profile={"state_ms": {"pipe": ms}}, work_ms={"exchange": ms}, work_lines={"exchange": line("send")}
    )
    return figures(100.0, uses_gpu=False, host=evidence)


def crowded(ms: float) -> Figures:
    evidence = host_evidence(profile={"state_ms": {"runnable": ms}}, busiest=line("work", 7), crowded_ms=ms)
    return figures(100.0, uses_gpu=False, host=evidence)


def bound(ms: float, *, is_worker: bool, before: int | None = 2) -> Figures:
    """Ready without a CPU, itself or those that it waits for, since the process may use one of two only."""
    more: dict[str, Any] = {"workers_crowded_share": ms / 100, "work_ms": {"hand-over": 100.0}}
    evidence = host_evidence(
        profile={"state_ms": {} if is_worker else {"runnable": ms}, "cpus": 1}, busiest=line("work", 7),
        cpus_before=before, **(more if is_worker else {"crowded_ms": ms}),
    )  # fmt: skip
    return figures(100.0, uses_gpu=False, host=evidence)


def limited(ms: float, **states: float) -> Figures:
    kept = KeptCpu(quota_cpus=2.0, quota_ns=ms * 1e6)
    return replace(by_samples(state_ms=states), kept=kept) if states else figures(100.0, uses_gpu=False, kept=kept)


def kept(computing: float, **shares: float) -> Figures:
    kept = KeptCpu(computing_share=computing, **shares)
    return figures(100.0, uses_gpu=False, kept=kept)


def compiling(ms: float) -> Figures:
    evidence = host_evidence(compiling=Compiling("NVRTC", "Keep kernels.", ms, ms, line("forward", 3)))
    return figures(100.0, uses_gpu=False, host=evidence)


@pytest.mark.parametrize(
    ("verdict", "has", "has_not"),
    [
        (Verdict.GARBAGE_COLLECTION, by_samples(collections=2.0, collection_ms=15.0), by_samples(collection_ms=14.9)),
        (Verdict.GIL_CONTENTION, by_samples(state_ms={"gil": 20.0}), by_samples(state_ms={"gil": 19.9})),
        (Verdict.CPU_CONTENTION, crowded(20.0), crowded(19.9)),
        (Verdict.CPU_CONTENTION, crowded(20.0), by_samples(state_ms={"runnable": 40.0})),
        (Verdict.CPU_CONTENTION, bound(20.0, is_worker=False), bound(19.9, is_worker=False)),
        (Verdict.CPU_CONTENTION, bound(20.0, is_worker=True), bound(19.9, is_worker=True)),
        (Verdict.CPU_CONTENTION, bound(20.0, is_worker=True), bound(20.0, is_worker=True, before=None)),
        (Verdict.CPU_QUOTA, limited(20.0), limited(19.9)),
        (Verdict.CPU_QUOTA, limited(60.0, running=80.0), limited(60.0, running=80.1)),
        (Verdict.CPU_QUOTA, limited(60.0, running=40.0, lock=60.0), limited(60.0, running=51.0, sleep=20.0, file=9.1)),
        (Verdict.CPU_QUOTA, limited(60.0, running=60.0, socket=20.0), limited(60.0, running=60.0, socket=20.1)),
        (Verdict.CPU_STEAL, kept(0.5, stolen_share=0.4), kept(0.49, stolen_share=0.4)),
        (Verdict.FILE_WAIT, by_samples(state_ms={"file": 30.0}), by_samples(state_ms={"file": 29.9})),
        (Verdict.NETWORK_WAIT, by_samples(state_ms={"socket": 30.0}), by_samples(state_ms={"socket": 29.9})),
        (Verdict.WAITING_ON_PROCESS, by_samples(state_ms={"process": 40.0}), by_samples(state_ms={"process": 39.9})),
        (Verdict.WAITING_ON_SYSTEM, by_samples(state_ms={"sleep": 50.0}), by_samples(state_ms={"sleep": 49.9})),
        (Verdict.WAITING_ON_PROCESS, by_samples(state_ms={"pipe": 30.0}), by_samples(state_ms={"pipe": 29.9})),
        (Verdict.WAITING_ON_PROCESS, by_samples(state_ms={"pipe": 29.0, "process": 1.0}), by_samples()),
        (Verdict.NETWORK_WAIT, by_samples(state_ms={"loopback": 20.0, "socket": 10.0}), by_samples()),
        (Verdict.WAITING_ON_PROCESS, exchanging(30.0), exchanging(29.9)),
        (Verdict.DATA_LOADER_STARVATION, loading(30.0), loading(29.9)),
        (Verdict.DATA_LOADER_STARVATION, loading(30.0), loading(30.0, "running")),
        (Verdict.RECOMPILATION, compiling(10.0), compiling(9.9)),
    ],
)
def test_a_wait_of_samples_at_its_threshold(verdict: Verdict, has: Figures, has_not: Figures) -> None:
    judged = judge(has)
    assert judged.verdict.verdict is verdict
    assert judged.causes[0].code == verdict.value
    assert judge(has_not).verdict.verdict is Verdict.CPU_BOUND


def test_a_loader_that_waits_for_its_processes_waits_once() -> None:
    evidence = host_evidence(
        profile={"state_ms": {"pipe": 50.0}}, work_ms={"loader": 50.0, "loader of processes": 50.0},
        work_lines={"loader": line("next")},
    )  # fmt: skip
    codes = [cause.code for cause in judge(figures(100.0, uses_gpu=False, host=evidence)).causes]
    assert codes == ["data-loader-starvation", "cpu-bound"]


def test_a_stage_of_many_short_ranges_is_bound_by_the_recorder() -> None:
    def judged(recorder_ms: float, busiest_ms: float) -> Cause:
        evidence = host_evidence(
            profile={"recorder_ms": recorder_ms}, busiest=replace(WORK, self_ms=busiest_ms), recorder=line("loop", 9)
        )
        return judge(figures(100.0, uses_gpu=False, host=evidence)).causes[0]

    most = judged(60.0, 40.0)
    assert (most.code, most.where, most.share, most.saves_ms) == ("cpu-bound", line("loop", 9), 0.6, 60.0)
    for little in (judged(29.0, 20.0), judged(45.0, 55.0)):
        assert little.where is not None
        assert little.where.function == "work"
    assert (judged(29.0, 20.0).share, judged(45.0, 55.0).share) == pytest.approx((0.71, 0.55))


def test_the_holder_of_the_interpreter_lock_is_where_to_look() -> None:
    holders = [replace(line("spin", 12), self_ms=3.0), replace(line("other", 20), self_ms=1.0)]
    (cause, *_) = judge(by_samples(state_ms={"gil": 40.0}, gil_holders=holders)).causes
    assert (cause.code, cause.where, cause.share, cause.saves_ms) == ("gil-contention", holders[0], 0.4, 40.0)
    holders[0] = replace(holders[0], callee="json.encoder.encode")
    (cause, *_) = judge(by_samples(state_ms={"gil": 40.0}, gil_holders=holders)).causes
    assert "spin (user.py:12), in json.encoder.encode" in cause.what


def test_computing_is_never_without_a_function_or_the_reason() -> None:
    (known,) = judge(by_samples()).causes
    assert (known.code, known.where, known.where_reason) == ("cpu-bound", WORK, None)
    (unknown,) = judge(figures(uses_gpu=False)).causes
    assert (unknown.code, unknown.where) == ("cpu-bound", None)
    assert "--explain" in (unknown.where_reason or "")


def test_computing_saves_no_more_than_its_function_takes() -> None:
    busiest = replace(WORK, self_ms=60.0)
    some = figures(100.0, uses_gpu=False, host=host_evidence(profile={"state_ms": {"file": 14.0}}, busiest=busiest))
    (cause,) = judge(some).causes
    assert cause.code == "cpu-bound"
    assert (cause.share, cause.saves_ms) == pytest.approx((0.86, 60.0))


def in_library(path: str, ms: float, **profile: object) -> Figures:
    """100 ms of `work`, which calls a function of that file for so long."""
    called = replace(line("call"), file=f"/usr/lib/python3.11/site-packages/{path}", self_ms=ms)
    evidence = host_evidence(profile=dict(profile), busiest=WORK, in_libraries=[called])
    return figures(100.0, uses_gpu=False, host=evidence)


def through_library(entered: str, ms: float) -> Figures:
    """100 ms of `work`, which calls that file for so long; half of that is in each of two other modules."""
    by = replace(line("emit"), file=f"/usr/lib/python3.11/{entered}", self_ms=ms)
    inner = [replace(line(name), file=f"/usr/lib/python3.11/{name}.py", self_ms=ms / 2) for name in ("ast", "token")]
    evidence = host_evidence(profile={}, busiest=WORK, in_libraries=inner, called=[by])
    return figures(100.0, uses_gpu=False, host=evidence)


HALF_IDLE: dict[str, object] = {"cpus": 2, "cpus_used": 1.0}


@pytest.mark.parametrize(
    ("stage", "saves_ms", "names"),
    [
        (by_samples(), 100.0, "work"),
        (by_samples(**HALF_IDLE), 100.0, "processes"),
        (in_library("json/encoder.py", 50.0), 100.0, "json"),
        (in_library("json/encoder.py", 49.0), 100.0, "work"),
        (in_library("json/encoder.py", 50.0), 100.0, "smaller inputs"),
        (in_library("threading.py", 90.0), 100.0, "larger pieces"),
        (through_library("logging/__init__.py", 90.0), 100.0, "emit of logging"),
        (through_library("logging/__init__.py", 49.0), 100.0, "work"),
        (in_library("onnxruntime/run.py", 90.0), None, "onnxruntime"),  # the network is what the stage is for
        (in_library("onnxruntime/run.py", 90.0, **HALF_IDLE), 50.0, "intra_op_num_threads"),
        (in_library("torch/nn/linear.py", 90.0, cpus=8, cpus_used=2.0), 75.0, "set_num_threads"),
        (in_library("torch/nn/linear.py", 90.0, cpus=8, cpus_used=5.0), None, "torch"),
        (in_library("torch/nn/linear.py", 90.0, **HALF_IDLE, state_ms={"runnable": 20.0}), None, "torch"),
        (in_library("torch/nn/linear.py", 90.0, **HALF_IDLE, state_ms={"runnable": 10.0}), 400 / 9, "set_num_threads"),
        (in_library("torch/nn/linear.py", 90.0, cpus=8, cpus_used=1.0, state_ms={"runnable": 26.0}), None, "torch"),
    ],
)
def test_what_computing_saves_and_whose_it_is(stage: Figures, saves_ms: float | None, names: str) -> None:
    (cause,) = judge(stage).causes
    assert (cause.code, cause.where) == ("cpu-bound", WORK)
    assert cause.saves_ms == (None if saves_ms is None else pytest.approx(saves_ms))
    assert names in cause.try_this


def test_what_is_not_computed_does_not_wait_for_a_cpu_either() -> None:
    judged = judge(by_samples(state_ms={"runnable": 60.0}))
    (cause,) = judged.causes
    assert (cause.share, cause.saves_ms) == pytest.approx((0.4, 100.0))
    assert any("60 %" in evidence for evidence in judged.verdict.evidence)


def test_a_stage_that_waits_for_many_things_is_not_bound_by_the_cpu() -> None:
    states = {"file": 29.0, "socket": 20.0, "gil": 19.0, "running": 24.0, "sleep": 8.0}
    judged = judge(by_samples(state_ms=states))
    assert judged.verdict.verdict is Verdict.WAITING_ON_SYSTEM  # 57 of 100 ms in the operating system
    states = {"file": 29.0, "socket": 18.0, "gil": 19.0, "running": 24.0, "driver": 10.0}
    computing = judge(by_samples(state_ms=states))
    assert computing.verdict.verdict is Verdict.CPU_BOUND  # what has no name is 34 of 100
    mixed = judge(by_samples(state_ms=states | {"other": 2.0, "collection": 0.0}, collection_ms=8.0))
    assert mixed.verdict.verdict is Verdict.CANNOT_TELL  # 24 of 100
    assert [cause.code for cause in mixed.causes] == [
        "file-wait",
        "gil-contention",
        "network-wait",
        "garbage-collection",
    ]


def test_where_the_system_shows_no_states_recorded_calls_count() -> None:
    unknown = by_samples(state_ms={"file": None, "running": None})
    recorded = replace(unknown, blocked=dict.fromkeys(OsWaitKind, 0) | {OsWaitKind.FILE: 40_000_000})
    assert judge(recorded).verdict.verdict is Verdict.FILE_WAIT
    assert judge(unknown).verdict.verdict is Verdict.CPU_BOUND


def test_further_causes_take_half_of_what_a_verdict_takes_and_come_by_size() -> None:
    sampled = by_samples(collections=1.0, collection_ms=20.0, state_ms={"gil": 10.0, "runnable": 9.9, "file": 15.0})
    judged = judge(sampled)
    assert judged.verdict.verdict is Verdict.GARBAGE_COLLECTION
    # of 100 ms: 34.9 waiting, 20 collecting, of which a tenth is waiting for a CPU, too, and the rest computes
    assert [(cause.code, round(cause.share, 3)) for cause in judged.causes] == [
        ("garbage-collection", 0.18), ("cpu-bound", 0.471), ("file-wait", 0.15), ("gil-contention", 0.1),
    ]  # fmt: skip


def test_what_hides_behind_the_gpu_is_no_further_cause() -> None:
    issuing = Issuing(launches=100, launching_ns=400_000.0, issued_gpu_ns=350_000.0)
    launching = figures(issuing=issuing, gpu_busy=700_000.0, gpu_idle=300_000.0, outside=0.0)
    judged = judge(launching)  # 0.4 ms of launching, of which 0.05 would be gained
    assert [cause.code for cause in judged.causes] == ["gpu-bound", "dispatch-bound"]
    assert judged.causes[1].saves_ms == pytest.approx(0.05)
    less = replace(launching, issuing=replace(issuing, issued_gpu_ns=351_000.0))
    assert [cause.code for cause in judge(less).causes] == ["gpu-bound"]


@pytest.mark.parametrize(
    ("used_ms", "readings", "share"),
    [
        (30, (0, 1000), 0.95),  # 50 ms with the resolution, of 1000 ms
        (480, (0, 1000), 0.5),
        (2000, (0, 1000), 0.0),
        (30, (-10, 1000), None),  # one reading in the stage
        (30, (0, 499), None),  # less than half of it lies between them
        (30, (400, 900), 0.9),
    ],
)
def test_cpu_time_that_was_not_used_was_waited(used_ms: int, readings: tuple[int, int], share: float | None) -> None:
    times = np.asarray(readings, dtype=np.int64) * BATCH
    used = CpuTime(times, np.asarray([7, 7 + used_ms], dtype=np.int64) * BATCH)
    starts = np.arange(0, 1000, 100, dtype=np.int64) * BATCH
    assert used.waiting_share(starts, starts + 100 * BATCH) == (None if share is None else pytest.approx(share))
    for percent, known in ((89.0, share), (90.0, None)):
        machine = replace(used, busy_time_ns=times, busy_percent=np.asarray([percent - 5, percent + 5]))
        assert machine.waiting_share(starts, starts + 100 * BATCH) == (None if known is None else pytest.approx(known))


@pytest.mark.parametrize(
    ("used_us", "shares"),
    [
        # ranges take 700 of each 1000 us: at least what exceeds the ready time was waited, at least what of it does not
        # fit beside them was computed
        ([1000] * 12, (0.0, 1.0)),
        ([0] * 12, (1.0, 0.0)),
        ([350] * 12, (0.5, 0.05 / 0.7)),
        ([700] * 12, (0.0, 0.4 / 0.7)),
        ([650] * 12, (0.05 / 0.7, 0.5)),
        ([600] * 12, (0.1 / 0.7, 0.3 / 0.7)),
        ([700, 0] * 6, (0.5, 0.2 / 0.7)),  # no batch lends another what it did not use
    ],
)
def test_ready_time_read_in_batches(used_us: list[int], shares: tuple[float, float], tmp_path: Path) -> None:
    builder, used = TraceBuilder(), 5 * BATCH
    builder.mark(MARK_RECORDER, 0, domain="r", category="r")
    builder.mark(MARK_READY_TIME, BATCH, domain="r", category="r", payload=used)
    builder.mark(MARK_READY_TIME, BATCH + 1, domain="r", category="r", payload=9, tid=101)
    for index, each in enumerate(used_us):
        begin = (index + 1) * BATCH
        builder.range("batch", begin, begin + BATCH, domain="r", category="r", payload=index)
        builder.range("stage", begin + 100 * US, begin + 800 * US, domain="r", category="r")
        used += each * US
        builder.mark(MARK_READY_TIME, begin + BATCH, domain="r", category="r", payload=used)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    begins = (np.arange(12) + 1) * BATCH
    thread = np.full(12, trace.ranges.thread[0])
    read = thread_times(trace).ready
    assert read.shares(thread, begins + 100 * US, begins + 800 * US) == pytest.approx(shares)
    assert read.shares(thread + 1, begins, begins + BATCH) is None
    assert read.shares(thread, begins + 12 * BATCH, begins + 13 * BATCH) is None

    stage = stage_of(diagnose(Analysis(trace)), "stage")
    waits, ready = shares
    otherwise = Verdict.CPU_BOUND if ready >= 0.5 else Verdict.CANNOT_TELL
    assert stage.verdict.verdict is (Verdict.WAITING_ON_SYSTEM if waits >= 0.5 else otherwise)


def read_in_batches(path: Path, each_us: dict[str, int]) -> Diagnosis:
    """Batches of 1 ms whose stage takes 700 us; counters that grow by so much from one batch to the next."""
    builder = TraceBuilder()
    builder.mark(MARK_RECORDER, 0, domain="r", category="r")
    for index in range(13):
        begin = (index + 1) * BATCH
        for mark, us in each_us.items():
            builder.mark(mark, begin, domain="r", category="r", payload=(index + 1) * us * US)
        if index < 12:
            builder.range("batch", begin, begin + BATCH, domain="r", category="r", payload=index)
            builder.range("stage", begin + 100 * US, begin + 800 * US, domain="r", category="r")
    return diagnose(Analysis(open_trace(builder.write(path / "t.sqlite"))))


@pytest.mark.parametrize(
    ("ran_us", "queued_us", "verdict", "share"),
    [
        # of each 1000 us; what others had of the CPUs is neither computing nor waiting
        (100, 500, Verdict.WAITING_ON_SYSTEM, 0.4),
        (230, 550, Verdict.CPU_BOUND, 0.45),  # it computes longer than it waits, 220
        (210, 560, Verdict.WAITING_ON_SYSTEM, 0.23),
        (5, 795, Verdict.WAITING_ON_SYSTEM, 0.2),
        (500, 0, Verdict.WAITING_ON_SYSTEM, 0.5),
        (510, 0, Verdict.CPU_BOUND, 0.51),  # and waits for something in the rest
    ],
)
def test_what_other_processes_take_is_read_in_batches(
    ran_us: int, queued_us: int, verdict: Verdict, share: float, tmp_path: Path
) -> None:
    each_us = {MARK_READY_TIME: ran_us + queued_us, MARK_QUEUED: queued_us}
    stage = stage_of(read_in_batches(tmp_path, each_us), "batch")
    assert stage.verdict.verdict is verdict
    assert stage.causes[0].share == pytest.approx(share)
    assert stage.queued_ms == pytest.approx(queued_us / 1000)


@pytest.mark.parametrize(
    ("marks", "queued_ms"),
    [
        ((MARK_READY_TIME,), None),  # of a recorder that does not read it
        ((MARK_READY_TIME, MARK_PROCESS_TIME), 0.0),
        ((MARK_READY_TIME, MARK_QUEUED), 0.25),
    ],
)
def test_waiting_for_a_cpu_that_was_not_read_is_not_none_of_it(
    marks: tuple[str, ...], queued_ms: float | None, tmp_path: Path
) -> None:
    each_us = {mark: 250 if mark == MARK_QUEUED else 750 for mark in marks}
    stage = stage_of(read_in_batches(tmp_path, each_us), "batch")
    assert stage.queued_ms == (None if queued_ms is None else pytest.approx(queued_ms))


@pytest.mark.parametrize(
    ("meanwhile_us", "otherwise_us", "verdict"),
    [
        (0, 0, Verdict.WAITING_ON_SYSTEM),
        (199, 0, Verdict.WAITING_ON_SYSTEM),  # of 400 us that are waited for
        (201, 0, Verdict.WAITING_ON_STAGE),
        (400, 120, Verdict.WAITING_ON_STAGE),
        (400, 130, Verdict.WAITING_ON_SYSTEM),  # of 500 us: they are no work that it asked for
    ],
)
def test_other_threads_that_compute_while_a_stage_waits(
    meanwhile_us: int, otherwise_us: int, verdict: Verdict, tmp_path: Path
) -> None:
    """A stage of 500 us that computes for 100, after one of 500 that computes all the time; read at their ends."""
    builder, ready, process = TraceBuilder(), 0, 0
    builder.mark(MARK_RECORDER, 0, domain="r", category="r")
    for index in range(13):
        begin = (index + 1) * BATCH
        for name, own, others in (("computes", 500, otherwise_us), ("waits", 100, meanwhile_us)):
            for mark, payload in ((MARK_READY_TIME, ready), (MARK_PROCESS_TIME, process)):
                builder.mark(mark, begin, domain="r", category="r", payload=payload)
            builder.range(name, begin, begin + BATCH // 2, domain="r", category="r")
            begin, ready, process = begin + BATCH // 2, ready + own * US, process + (own + others) * US
        builder.range("batch", begin - BATCH, begin, domain="r", category="r", payload=index)
    diagnosis = diagnose(Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))))
    waits = stage_of(diagnosis, "waits")
    assert waits.verdict.verdict is verdict
    assert waits.causes[0].share == pytest.approx(0.8)
    assert stage_of(diagnosis, "computes").verdict.verdict is Verdict.CPU_BOUND


@given(
    thread=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=2, max_size=20),
    first=st.integers(0, 500),
    length=st.integers(1, 500),
)
def test_what_is_spread_evenly_lies_between_what_is_proven(
    thread: list[tuple[int, int]], first: int, length: int
) -> None:
    """Of what a thread spent between readings, never more than the time that passed."""
    time = np.cumsum([step for step, _ in thread])
    spent = np.cumsum([min(step, did) for step, did in thread])
    read = ThreadReadings(np.zeros(len(time), dtype=np.int64), time, spent)
    ranges = np.zeros(1, dtype=np.int64), np.asarray([first]), np.asarray([first + length])
    evenly, shares = read.evenly_ns(*ranges), read.shares(*ranges)
    inside = max(min(first + length, int(time[-1])) - max(first, int(time[0])), 0)
    assert 0 <= evenly <= inside + 1e-6
    if shares is not None:
        otherwise, did = shares
        assert did * inside - 1e-6 <= evenly <= (1 - otherwise) * inside + 1e-6


@pytest.mark.parametrize(
    ("mark", "code", "read_us", "least"),
    [
        (MARK_COLLECTING, "garbage-collection", 405, 0.15),
        (MARK_COLLECTING, "garbage-collection", 400, None),
        (MARK_COLLECTING, "garbage-collection", 1000, 1.0),
        (MARK_CROWDED, "cpu-contention", 440, 0.2),
        (MARK_CROWDED, "cpu-contention", 430, None),
    ],
)
def test_what_was_read_in_batches_may_have_been_beside_the_stage(
    mark: str, code: str, read_us: int, least: float | None, tmp_path: Path
) -> None:
    """For 300 of the 1000 us of a batch; of a batch itself, nothing can be."""
    diagnosis = read_in_batches(tmp_path, {mark: read_us})
    for name, share in (("stage", least), ("batch", read_us / 1000)):
        first, *others = stage_of(diagnosis, name).causes
        assert (first.code == code) is (share is not None)
        if share is not None:
            assert first.share == pytest.approx(share)
            assert (first.saves_ms is None) == (mark == MARK_COLLECTING)
            assert sum(cause.share for cause in others) <= 1 - share + 1e-9


@pytest.mark.parametrize(
    ("compiled_us", "batches", "least"),
    [(370, 12, 0.1), (365, 12, None), (950, 12, 650 / 700), (950, 7, None)],  # of which the second half has one
)
def test_compilations_read_in_batches(compiled_us: int, batches: int, least: float | None, tmp_path: Path) -> None:
    """Of batches of 1 ms whose stage takes 700 us, 300 of what was compiled may have been beside it."""
    builder = TraceBuilder()
    builder.mark(MARK_RECORDER, 0, domain="r", category="r")
    for index in range(12):
        begin, until = (index + 1) * BATCH, (min(index, batches), min(index + 1, batches))
        for at, count in ((begin, until[0]), (begin + BATCH - 1, until[1])):
            builder.mark(MARK_COMPILING, at, domain="r", category="r", payload=count * compiled_us * US)
        builder.range("batch", begin, begin + BATCH - 1, domain="r", category="r", payload=index)
        builder.range("stage", begin + 100 * US, begin + 800 * US, domain="r", category="r")
    causes = stage_of(diagnose(Analysis(open_trace(builder.write(tmp_path / "t.sqlite")))), "stage").causes
    assert (causes[0].code == "recompilation") is (least is not None)
    if least is not None:
        assert causes[0].share == pytest.approx(least, abs=1e-4)
        assert sum(cause.share for cause in causes) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("known", "verdict", "shares"),
    [
        # computing is not claimed where half of it may be waiting, unless there is a GPU or waits were recorded
        ({"ready_share": 0.5, "waiting_share": 0.2}, Verdict.CPU_BOUND, [0.8]),
        ({"ready_share": 0.49, "waiting_share": 0.2}, Verdict.CANNOT_TELL, None),
        ({"ready_share": 0.49, "waiting_share": 0.2, "uses_gpu": True}, Verdict.CPU_BOUND, None),
        ({"ready_share": 0.49, "waiting_share": 0.2, "blocked": NO_WAITS}, Verdict.CPU_BOUND, None),
        ({"waiting_share": 0.2}, Verdict.CPU_BOUND, None),
        # what waits at least does not compute
        ({"waiting_share": 0.64, "uses_gpu": True}, Verdict.WAITING_ON_SYSTEM, [0.64, 0.36]),
        # waiting for a CPU is no sign of computing: 0.2 may be waiting for something else, so as much is computed
        ({"ready_share": 0.8, "queued_share": 0.6, "waiting_share": 0.0}, Verdict.CPU_BOUND, [0.4]),
        ({"ready_share": 0.8, "queued_share": 0.61, "waiting_share": 0.0}, Verdict.CANNOT_TELL, None),
        ({"ready_share": 0.6, "queued_share": 0.3, "waiting_share": 0.0}, Verdict.CANNOT_TELL, None),
        # little waiting is not known on a machine that others use up
        ({"ready_share": 0.81, "queued_share": 0.8, "waiting_share": 0.19}, Verdict.CANNOT_TELL, None),
        ({"ready_share": 0.81, "queued_share": 0.8, "waiting_share": 0.2}, Verdict.WAITING_ON_SYSTEM, None),
        # a stage whose process used no CPU time waits; 0.21 of the waiting may have been in CUDA calls
        ({"waiting_share": 0.5}, Verdict.WAITING_ON_SYSTEM, [0.5, 0.5]),
        ({"waiting_share": 0.49}, Verdict.CPU_BOUND, None),
        ({"waiting_share": 0.7, "outside": 0.79e6}, Verdict.CPU_BOUND, None),
        # where waiting for the GPU is not recorded, it may be while the GPU is at work
        (AT_THE_GPU | {"gpu_idle": 0.5e6}, Verdict.WAITING_ON_SYSTEM, None),
        (AT_THE_GPU | {"gpu_idle": 0.49e6}, Verdict.CPU_BOUND, None),
        (AT_THE_GPU | {"gpu_idle": 0.9e6, "api_is_complete": False}, Verdict.WAITING_ON_SYSTEM, None),
        (AT_THE_GPU | {"gpu_idle": 0.89e6, "api_is_complete": False}, Verdict.CANNOT_TELL, None),
        # nor do samples of the measured pass say whether a line computes or is in a call that was not recorded
        (AT_THE_GPU | {"api_is_complete": False, "host": host_evidence(busiest=WORK)}, Verdict.CANNOT_TELL, None),
    ],
)
def test_computing_and_waiting_by_readings(known: dict[str, Any], verdict: Verdict, shares: list[float] | None) -> None:
    judged = judge(figures(**({"uses_gpu": False} | known)))
    assert judged.verdict.verdict is verdict
    assert shares is None or [cause.share for cause in judged.causes] == pytest.approx(shares)


@pytest.mark.parametrize(("ready", "is_missing"), [(None, True), (0.94, True), (0.95, False), (1.0, False)])
def test_what_was_ready_all_the_time_may_not_have_waited(ready: float | None, is_missing: bool) -> None:
    verdict = judge(figures(uses_gpu=True, ready_share=ready)).verdict
    assert (verdict.verdict, MISSING_OS in verdict.missing) == (Verdict.CPU_BOUND, is_missing)


TIMES = st.floats(0, 1e9, allow_nan=False)
COUNTS = st.integers(0, 10**6)


@st.composite
def any_figures(draw: st.DrawFn) -> Figures:
    drawn: dict[str, Any] = {
        each.name: draw(COUNTS if each.type == "int" else TIMES) for each in fields(Issuing) if "bytes" not in each.name
    }
    states = draw(st.dictionaries(st.sampled_from([state.name.lower() for state in HostState]), TIMES))
    host = host_evidence(
        profile={"state_ms": states, "collection_ms": draw(st.none() | TIMES)}, work_ms={"loader": 1.0}
    )
    return figures(
        draw(st.sampled_from([0.0, 1e-6, 1.0])),
        batches=draw(st.integers(1, 1000)),
        issuing=Issuing(**drawn),
        uses_gpu=draw(st.booleans()),
        api_is_complete=draw(st.booleans()),
        host=draw(st.sampled_from([None, host])),
        blocked=draw(st.none() | st.fixed_dictionaries(dict.fromkeys(OsWaitKind, COUNTS))),
        recompiling=draw(st.none() | st.builds(Recompiling, TIMES, COUNTS, st.just("Modules are loaded"))),
        shared=draw(st.none() | TIMES),
        waiting_share=draw(st.none() | st.floats(0, 1)),
        **{
            name: draw(TIMES)
            for name in ("gpu_busy", "copy_only", "pageable", "blocking_idle", "for_stages", "slow_start")
        },
    )


@given(any_figures())
def test_any_figures_give_shares_and_savings_within_the_stage(f: Figures) -> None:
    for rule in RULES:
        rule(f)
    judged = judge(f)
    for cause in judged.causes:
        assert 0 <= cause.share <= 1
        assert cause.saves_ms is None or 0 <= cause.saves_ms <= max(f.wall, f.span) / 1e6
        assert (cause.where is None) == (cause.where_reason is not None)
        assert cause.what
        assert cause.try_this
    codes = [cause.code for cause in judged.causes]
    assert len(set(codes)) == len(codes)
    if codes and judged.verdict.verdict is not Verdict.CANNOT_TELL:
        assert codes[0] == judged.verdict.verdict.value


def sampled(path: Path, content: Content, probe: ProbeBuilder, batches: int = 12) -> StageDiagnosis:
    """The stage of batches of 1 ms, whose thread was sampled."""
    return stage_of(diagnosed(path, content, batches=batches, probe=probe))


Moment = tuple[tuple[str, ...], HostState]
"""A stack and a state."""
R, L, F, S, Q = HostState.RUNNING, HostState.LOCK, HostState.FILE, HostState.SOCKET, HostState.RUNNABLE
INFER: Moment = ("infer@user.py:9",), R
WORK_ON: Moment = ("work@user.py:5",), R
WAIT = "wait@/usr/lib/python3.11/threading.py:327"
IN_QUEUE = (WAIT, "get@/usr/lib/python3.11/queue.py:1", "take@user.py:5")
IN_FUTURE = (WAIT, "result@/usr/lib/python3.11/concurrent/futures/_base.py:1", "take@user.py:5")
IDLE: Moment = ("get@/usr/lib/python3.11/queue.py:170", "serve@user.py:20"), L


def decodes(state: HostState) -> Moment:
    return ("decode@user.py:21",), state


def in_tenths(
    path: Path,
    *threads: Sequence[Moment],
    events: Sequence[tuple[HostEventKind, int, int]] = (),
    cpus: int | None = None,
) -> StageDiagnosis:
    """Batches of ten samples of each thread, the stage's own first; events are from 0 to so many us of a batch."""
    probe = ProbeBuilder(100 * US, cpus)
    for begin in range(BATCH, 13 * BATCH, BATCH):
        for number, moments in enumerate(threads):
            for position, (stack, state) in enumerate(moments):
                probe.sample(begin + (50 + 100 * position) * US, stack, state=state, tid=100 + number)
        for kind, until_us, detail in events:
            probe.event(kind, begin, begin + until_us * US, detail, tid=7)
    return sampled(path, nothing, probe)


class ApartBuilder(ProbeBuilder):
    """A process with samples of its own, and those of all beside them, with other numbers for the same stacks."""

    def build(self) -> HostProbe:
        whole = super().build()
        every = whole.samples
        own = every.thread >> PID_SHIFT == every.thread.min() >> PID_SHIFT
        stack = np.where(every.stack[own] < 0, -1, len(every.stacks) - 1 - every.stack[own])
        columns = "time_ns thread length_ns on_cpu_ns runnable_ns state stage gil_holder counts"
        mine = {name: getattr(every, name)[own] for name in columns.split()}
        samples = replace(every, **mine, stack=stack, stacks=every.stacks[::-1])
        return replace(whole, samples=samples, together=every)


def test_the_line_that_reads_values_is_named_from_samples_in_its_calls(tmp_path: Path) -> None:
    def reads(batch: Batch) -> None:
        for at in (100, 400, 700):
            batch.copy((at, at + 5), (at + 80, at + 81), kind=CopyKind.DEVICE_TO_HOST, pageable=False, size=4)
            batch.call(SYNCHRONIZE, at + 5, at + 205)

    probe = ProbeBuilder(100 * US)
    for index in range(12):
        for at in range(50, 1000, 100):
            is_reading = any(first <= at < first + 205 for first in (100, 400, 700))
            stack = ("item@/x/site-packages/torch/a.py:9", f"step@user.py:{31 if is_reading else 30}")
            probe.sample((index + 1) * BATCH + at * US, stack)
    (cause, *_) = sampled(tmp_path, reads, probe).causes
    assert cause.code == "implicit-synchronization"
    assert cause.where is not None
    assert (cause.where.function, cause.where.file, cause.where.line) == ("step", "user.py", 31)
    assert cause.where.self_ms == pytest.approx(0.6)  # 6 of the 10 samples of a batch
    assert cause.share == pytest.approx(0.615)


@pytest.mark.parametrize(
    ("other", "is_exchange"),
    [
        (["Connection._recv@/usr/lib/python3.11/multiprocessing/connection.py:395", "serve@user.py:4"], True),
        (["resize@/x/site-packages/PIL/Image.py:9", "decode@user.py:5"], False),
        (["decode@user.py:5", "worker@/usr/lib/python3.11/multiprocessing/connection.py:7"], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("is_apart", [False, True])
def test_what_the_other_process_does_at_a_pipe_decides(
    other: list[str], is_exchange: bool, is_apart: bool, tmp_path: Path
) -> None:
    probe = ApartBuilder(100 * US) if is_apart else ProbeBuilder(100 * US)
    for index in range(12):
        begin = (index + 1) * BATCH
        probe.samples(begin, begin + 600 * US, ["exchange@user.py:3"], state=HostState.PIPE)
        probe.samples(begin + 600 * US, begin + 1000 * US, ["use@user.py:8"])
        probe.samples(begin, begin + 500 * US, other, pid=200, tid=200)
    first = sampled(tmp_path, nothing, probe).causes[0]
    assert first.code == "waiting-on-process"
    assert ("shared_memory" in first.try_this) is is_exchange
    assert first.share == pytest.approx(0.6)
    assert first.where is not None
    assert first.where.line == 3


MULTIPROCESSING = "/usr/lib/python3.11/multiprocessing"
RECEIVES = (f"Connection._recv@{MULTIPROCESSING}/connection.py:395", f"get@{MULTIPROCESSING}/queues.py:103")
IN_POOL = ("_process_worker@/usr/lib/python3.11/concurrent/futures/process.py:249", "main@user.py:60")


@pytest.mark.parametrize(("receives_us", "works_us", "code", "line"), [
    (400, 60, "waiting-on-process", 46),  # exchanged
    (400, 0, "waiting-on-process", 46),
    (60, 400, "waiting-on-stage", 28),  # worked on
    (40, 40, "waiting-on-stage", 46),  # neither is what takes the time: 7 % of the wait
    (0, 0, "waiting-on-stage", 46),  # nobody is seen to prepare what was asked for
])  # fmt: skip
def test_what_a_pool_does_meanwhile_decides(
    receives_us: int, works_us: int, code: str, line: int, tmp_path: Path
) -> None:
    probe = ProbeBuilder(20 * US)
    for index in range(12):
        begin = (index + 1) * BATCH
        waits = ["result@/usr/lib/python3.11/concurrent/futures/_base.py:451", "run@user.py:46", "main@user.py:60"]
        probe.samples(begin, begin + 600 * US, waits, state=HostState.LOCK)
        probe.samples(begin + 600 * US, begin + 1000 * US, ["use@user.py:8", "main@user.py:60"])
        works = begin + receives_us * US
        probe.samples(begin, works, [*RECEIVES, *IN_POOL], pid=200, tid=200)
        probe.samples(works, works + works_us * US, ["brighten@user.py:28", *IN_POOL], pid=200, tid=200)
    first = sampled(tmp_path, nothing, probe).causes[0]
    assert (first.code, first.where and first.where.line) == (code, line)
    assert ("shared_memory" in first.try_this) is (code == "waiting-on-process")


def test_libraries_lead_to_the_users_line_and_waits_to_theirs(tmp_path: Path) -> None:
    probe = ProbeBuilder(100 * US)
    for index in range(12):
        begin = (index + 1) * BATCH
        for position, at in enumerate(range(50, 1000, 100)):
            is_waiting = position < 4
            stack = ("get@/usr/lib/python3.11/queue.py:170", "fetch@user.py:5") if is_waiting else ("decode@user.py:8",)
            probe.sample(begin + at * US, stack, state=HostState.LOCK if is_waiting else HostState.RUNNING)
        probe.event(HostEventKind.COLLECTION, begin + 500 * US, begin + 600 * US, 2)
    stage = sampled(tmp_path, nothing, probe)
    assert [(cause.code, cause.where and cause.where.line) for cause in stage.causes] == [
        ("data-loader-starvation", 5), ("cpu-bound", 8), ("garbage-collection", 8),
    ]  # fmt: skip
    assert [round(cause.share, 6) for cause in stage.causes] == [0.4, 0.5, 0.1]
    assert [cause.saves_ms for cause in stage.causes] == pytest.approx([0.4, 0.5, 0.1])


def test_only_threads_of_the_process_itself_are_too_many(tmp_path: Path) -> None:
    """Of ten samples a batch four find no CPU, three of them while the process has more threads ready than CPUs."""
    moments = [(WORK_ON[0], Q)] * 4 + [WORK_ON] * 6
    (cause, *_) = in_tenths(tmp_path, moments, events=[(HostEventKind.CROWDED, 300, 2)]).causes
    assert (cause.code, round(cause.share, 6), round(cause.saves_ms or 0, 6)) == ("cpu-contention", 0.3, 0.3)


@pytest.mark.parametrize(("used_us", "share"), [(2000, 0.6), (1000, 0.6), (400, 0.24)])
def test_while_others_have_the_cpus_its_own_threads_are_not_too_many(
    used_us: int, share: float, tmp_path: Path
) -> None:
    """Ready without a CPU for 60 % of the time, with too many threads throughout, which get 2, 1 or 0.4 of 2 CPUs: one
    thread would have had one, or 0.4, so 60, 60 and 24 % are due to the others.
    """
    events = [(HostEventKind.CROWDED, 1000, 2), (HostEventKind.CPU_TIME, 1000, used_us)]
    causes = in_tenths(tmp_path, [(WORK_ON[0], Q)] * 6 + [WORK_ON] * 4, events=events, cpus=2).causes
    assert {cause.code: cause.share for cause in causes}["cpu-contention"] == pytest.approx(share)


def test_the_cpus_of_a_stage_are_those_that_the_process_may_use_then(tmp_path: Path) -> None:
    """Bound to one core of two before the first batch, it has a thread that waits for another one on it."""
    cpus = {}
    for name, bound_us in (("bound", 500), ("free", None), ("later", 100_000)):
        probe = ProbeBuilder(20 * US, cpus=2)
        if bound_us is not None:
            probe.event(HostEventKind.CPUS, bound_us * US, bound_us * US, 1)
        probe.event(HostEventKind.CPUS, 400 * US, 400 * US, 7, pid=200)  # of another process
        for index in range(12):
            begin = (index + 1) * BATCH
            probe.samples(begin, begin + 800 * US, ["result@user.py:5"], state=HostState.LOCK)
            probe.samples(begin + 800 * US, begin + BATCH, ["use@user.py:6"])
            for tid in (7, 8):
                for at in range(begin + 10 * US, begin + 800 * US, 20 * US):
                    probe.sample(at, ["pack@user.py:1"], tid=tid, on_cpu_ns=10 * US, runnable_ns=10 * US)
            probe.event(HostEventKind.CROWDED, begin, begin + 800 * US, 1, tid=7)
        folder = tmp_path / name
        folder.mkdir()
        stage = sampled(folder, nothing, probe)
        assert stage.profile is not None
        cpus[name] = stage.profile.cpus, stage.causes[0].code
    assert cpus == {"bound": (1, "cpu-contention"), "free": (2, "waiting-on-stage"), "later": (2, "waiting-on-stage")}


def test_what_the_verdict_is_without_a_quota() -> None:
    sampled = replace(
        by_samples(state_ms={"file": 35.0, "runnable": 40.0}), kept=KeptCpu(quota_cpus=1.0, quota_ns=40e6)
    )
    judged = judge(replace(sampled, slow_start=11e6))
    assert (judged.verdict.verdict, judged.verdict.steady) == (Verdict.CPU_QUOTA, Verdict.FILE_WAIT)
    assert judge(by_samples(state_ms={"file": 35.0})).verdict.steady is None


def test_one_percent_of_a_full_quota_is_no_cause() -> None:
    judged = judge(limited(1.0))
    assert [cause.code for cause in judged.causes] == ["cpu-bound"]
    assert judged.causes[0].share == pytest.approx(0.99)


def test_what_a_quota_takes_is_not_other_processes_nor_crowding() -> None:
    """Of 60 ms ready without a CPU the group stood still for 50, and had more threads ready than CPUs for 45."""
    evidence = host_evidence(profile={"state_ms": {"runnable": 60.0, "running": 40.0}}, busiest=WORK, crowded_ms=45.0)
    stage = figures(100.0, uses_gpu=False, host=evidence, kept=KeptCpu(quota_cpus=1.0, quota_ns=50e6))
    assert stage.others_ns == 10e6
    judged = judge(stage)
    assert [cause.code for cause in judged.causes][:1] == ["cpu-quota"]
    assert "cpu-contention" not in [cause.code for cause in judged.causes]
    assert judged.causes[0].saves_ms == 50.0


def test_a_stage_that_is_held_up_does_not_seem_to_wait() -> None:
    """70 of 100 ms were not computed: by a quota, or given to others where CPU time is counted without it."""
    waiting = figures(100.0, uses_gpu=False, waiting_share=0.7)
    assert judge(waiting).verdict.verdict is Verdict.WAITING_ON_SYSTEM
    for kept in (KeptCpu(quota_cpus=1.0, quota_ns=30e6), KeptCpu(stolen_share=0.5, computing_share=0.3)):
        assert judge(replace(waiting, kept=kept)).verdict.verdict is not Verdict.WAITING_ON_SYSTEM
    assert judge(replace(waiting, kept=KeptCpu(quota_cpus=1.0))).verdict.verdict is Verdict.WAITING_ON_SYSTEM


def test_what_is_stolen_is_of_what_its_threads_compute() -> None:
    sampled = replace(by_samples(state_ms={"running": 60.0, "file": 5.0}), kept=KeptCpu(stolen_share=0.5))
    (cause, *_) = judge(sampled).causes
    assert (cause.code, cause.share, cause.saves_ms) == ("cpu-steal", 0.3, 30.0)
    asleep = replace(by_samples(state_ms={"running": 5.0, "sleep": 95.0}), kept=KeptCpu(stolen_share=0.5))
    assert "cpu-steal" not in [cause.code for cause in judge(asleep).causes]


def test_what_one_thread_computed_at_least() -> None:
    """Of 1,000 ms between readings the process used 700; 400 of them lay outside of the ranges."""
    used = CpuTime(np.asarray([0, 1_000_000_000]), np.asarray([0, 700_000_000]))
    start, end = np.asarray([0]), np.asarray([600_000_000])
    assert used.computing_share(start, end) is None  # the second reading lies behind
    start, end = np.asarray([0, 700_000_000]), np.asarray([300_000_000, 1_000_000_000])
    assert used.computing_share(start, end) == pytest.approx((700 - 20 - 400) / 600)
    assert used.waiting_share(start, end) == 0.0


def test_what_other_processes_take_is_no_part_of_the_whole() -> None:
    """Of 100 ms others had the CPUs for 80; of the 20 that are left 6 are 30 %, which a wait for files has to be."""
    busy = by_samples(state_ms={"runnable": 80.0, "file": 6.0})
    judged = judge(busy)
    assert judged.verdict.verdict is Verdict.FILE_WAIT
    assert judged.causes[0].share == pytest.approx(0.06)
    assert judge(by_samples(state_ms={"runnable": 80.0, "file": 5.9})).verdict.verdict is Verdict.CPU_BOUND
    assert judge(by_samples(state_ms={"file": 6.0})).verdict.verdict is Verdict.CPU_BOUND


@pytest.mark.parametrize(
    ("lengths", "verdict"),
    [
        ([12, 12, *[1] * 18], Verdict.FIRST_USE),
        ([12, 12, *[1] * 8, 12, 2, *[1] * 8], Verdict.CPU_BOUND),
        ([7, 7, *[1] * 18], Verdict.FIRST_USE),
        ([5, 5, *[1] * 18], Verdict.CPU_BOUND),
        ([24, *[1] * 19], Verdict.FIRST_USE),
        ([2, 1, 1, 40, *[1] * 16], Verdict.CPU_BOUND),
        ([1, 1, 20, 20, 20, *[1] * 15], Verdict.FIRST_USE),
    ],
)
def test_a_slow_beginning_is_slower_than_anything_later(tmp_path: Path, lengths: list[int], verdict: Verdict) -> None:
    """Two batches that take 12 times as long: by 22 ms, and later two others by
    12 ms; two that take 7 and 5 times as long, 12 of 32 ms and 8 of 28 ms; one that is slow, and is the first, or not.
    """
    builder, begin = TraceBuilder(), BATCH
    for index, length in enumerate(lengths):
        builder.range(f"batch_{index}", begin, begin + length * BATCH)
        builder.range("stage", begin, begin + length * BATCH)
        begin += length * BATCH
    stage = stage_of(diagnose(Analysis(open_trace(builder.write(tmp_path / "t.sqlite")))))
    assert stage.verdict.verdict is verdict


def test_a_slow_beginning_is_not_more_than_what_takes_more() -> None:
    collecting = by_samples(collections=2.0, collection_ms=40.0)
    for slow_ms, expected in ((33.0, ["garbage-collection", "first-use"]), (41.0, ["first-use", "garbage-collection"])):
        codes = [cause.code for cause in judge(replace(collecting, slow_start=slow_ms * 1e6)).causes]
        assert [code for code in codes if code != "cpu-bound"] == expected
    assert judge(replace(by_samples(), slow_start=32.9e6)).verdict.verdict is Verdict.CPU_BOUND
    computing = judge(replace(by_samples(), slow_start=33.0e6))
    assert (computing.verdict.verdict, computing.verdict.steady) == (Verdict.FIRST_USE, Verdict.CPU_BOUND)
    loading = judge(replace(by_samples(), loading=10e6))
    assert (loading.verdict.verdict, loading.causes[0].share) == (Verdict.FIRST_USE, 0.1)


@pytest.mark.parametrize(
    ("early_us", "late_us", "code", "share"),
    [
        (0, 0, "first-use", 58 / 78),
        (10_000, 0, "first-use", 38 / 78),
        (28_900, 0, "cpu-bound", None),  # what is left is 0.2 ms
        (27_000, 900, "first-use", 5.8 / 78),  # others have the CPUs all the time, but for 7.8 ms
    ],
)
def test_a_beginning_while_others_have_the_cpus_is_no_slow_one(
    early_us: int, late_us: int, code: str, share: float | None, tmp_path: Path
) -> None:
    """Two batches of 30 ms before 18 of 1 ms, each with readings at both ends."""
    builder, begin, queued = TraceBuilder(), BATCH, 0
    builder.mark(MARK_RECORDER, 0, domain="r", category="r")
    for index in range(20):
        length = (30 if index < 2 else 1) * BATCH
        for mark, payload in ((MARK_READY_TIME, begin), (MARK_QUEUED, queued)):
            builder.mark(mark, begin, domain="r", category="r", payload=payload)
        builder.range("batch", begin, begin + length, domain="r", category="r", payload=index)
        begin, queued = begin + length, queued + (early_us if index < 2 else late_us) * US
    for mark, payload in ((MARK_READY_TIME, begin), (MARK_QUEUED, queued)):
        builder.mark(mark, begin, domain="r", category="r", payload=payload)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    (cause, *_) = stage_of(diagnose(Analysis(trace)), "batch").causes
    assert cause.code == code
    assert share is None or cause.share == pytest.approx(share)


def queue_and_worker(
    path: Path, states: dict[str, HostState], library: str = "queue.py", function: str = "get"
) -> StageDiagnosis:
    """Batches of 1 ms that wait in a queue for 0.4 ms and compute for the rest; a thread's states in both parts."""
    stack = (WAIT, f"{function}@/x/lib/python3.11/{library}:1", "take@user.py:5")
    wait, compute = (IDLE if states[part] is L else decodes(states[part]) for part in ("wait", "compute"))
    return in_tenths(path, [(stack, L)] * 4 + [INFER] * 6, [wait] * 4 + [compute] * 6)


QUEUES = "multiprocessing/queues.py"
LOADER = "site-packages/torch/utils/data/dataloader.py"


@pytest.mark.parametrize(
    ("waiting", "computing", "function", "library", "code", "number"),
    [
        (R, R, "get", "queue.py", "data-loader-starvation", 5),
        (R, L, "get", "queue.py", "waiting-on-stage", 21),  # a worker that does not work ahead
        (R, L, "get", LOADER, "data-loader-starvation", 5),
        (L, L, "get", "queue.py", "data-loader-starvation", 5),
        (F, L, "get", "queue.py", "waiting-on-stage", 21),
        *((R, works, "put", library, "waiting-on-stage", 21) for works in (R, L) for library in ("queue.py", QUEUES)),
        *((S, works, "join", library, "waiting-on-stage", 21) for works in (R, L) for library in ("queue.py", QUEUES)),
    ],
)
def test_a_queue_is_starving_filled_or_worked_off(
    waiting: HostState, computing: HostState, function: str, library: str, code: str, number: int, tmp_path: Path
) -> None:
    stage = queue_and_worker(tmp_path, {"wait": waiting, "compute": computing}, library, function)
    assert (stage.causes[0].code, stage.causes[0].where and stage.causes[0].where.line) == (code, number)
    assert stage.causes[0].share == pytest.approx(0.4)
    if function != "get":
        assert "data-loader-starvation" not in [cause.code for cause in stage.causes]


@pytest.mark.parametrize(
    ("asked", "code", "number"),
    [(4, "waiting-on-stage", 31), (1, "waiting-on-stage", 31), (0, "data-loader-starvation", 5)],
)
def test_work_on_request_is_waited_for_rather_than_what_others_do_all_the_time(
    asked: int, code: str, number: int, tmp_path: Path
) -> None:
    """Of batches of 1 ms, 0.4 are waited for; one thread works in some of these only, two others sleep all the time."""
    works = [(("tokenize@user.py:31",), R)] * asked + [IDLE] * (10 - asked)
    sleeps = [(("upload@user.py:21",), HostState.SLEEP)] * 10
    first = in_tenths(tmp_path, [(IN_QUEUE, L)] * 4 + [INFER] * 6, works, sleeps, sleeps).causes[0]
    assert (first.code, first.where and first.where.line) == (code, number)
    assert first.share == pytest.approx(0.4)


@pytest.mark.parametrize(("ahead", "code"), [(False, "waiting-on-stage"), (True, "data-loader-starvation")])
def test_a_worker_may_be_a_process_of_its_own(ahead: bool, code: str, tmp_path: Path) -> None:
    """Another process computes while the stage waits in its pool, and all the time or not."""
    probe = ApartBuilder(100 * US)
    stack = ("wait@/usr/lib/python3.11/threading.py:1", "get@/x/python3.11/multiprocessing/pool.py:1", "take@user.py:5")
    for index in range(12):
        begin = (index + 1) * BATCH
        probe.samples(begin, begin + 400 * US, stack, state=HostState.LOCK)
        probe.samples(begin + 400 * US, begin + BATCH, ["infer@user.py:9"])
        probe.samples(begin, begin + (1000 if ahead else 400) * US, ["decode@user.py:21"], pid=200, tid=200)
    stage = sampled(tmp_path, nothing, probe)
    assert stage.causes[0].code == code
    assert stage.causes[0].share == pytest.approx(0.4)
    assert "decode (user.py:21)" in stage.causes[0].what


def handed_over(
    path: Path, waiting: int, stack: tuple[str, ...], workers: list[list[HostState | None]], *, is_crowded: bool = False
) -> StageDiagnosis:
    """Batches that wait first and then compute; workers' states in them, None: idle."""
    at_work = [[IDLE if state is None else decodes(state) for state in states] for states in workers]
    events = [(HostEventKind.CROWDED, 1000, 0)] if is_crowded else []
    return in_tenths(path, [(stack, L)] * waiting + [INFER] * (10 - waiting), *at_work, events=events)


@pytest.mark.parametrize(
    ("stack", "code", "number"),
    [
        (IN_QUEUE, "data-loader-starvation", 5),
        (IN_FUTURE, "waiting-on-stage", 21),  # of a pool's only thread nobody knows what it does unasked
    ],
)
def test_who_always_waits_for_what_it_asked_for_has_no_starving_loader(
    stack: tuple[str, ...], code: str, number: int, tmp_path: Path
) -> None:
    first = handed_over(tmp_path, 10, stack, [[HostState.RUNNING] * 10]).causes[0]
    assert (first.code, first.where and first.where.line, first.share) == (code, number, 1.0)


@pytest.mark.parametrize(("ahead", "code"), [(1, "waiting-on-stage"), (2, "data-loader-starvation")])
def test_many_workers_that_are_at_work_together_work_ahead_once(ahead: int, code: str, tmp_path: Path) -> None:
    """Six samples a batch do not wait, in which eight threads are at work together in one or two."""
    states = [HostState.SLEEP] * (4 + ahead) + [None] * (6 - ahead)
    assert handed_over(tmp_path, 4, IN_FUTURE, [states] * 8).causes[0].code == code


@pytest.mark.parametrize(("samples", "code"), [(4, "cpu-bound"), (5, "data-loader-starvation")])
def test_a_few_samples_say_nothing_of_a_stage(samples: int, code: str, tmp_path: Path) -> None:
    probe = ProbeBuilder(1000 * US)
    for index in range(samples):
        probe.sample((index + 1) * BATCH + 500 * US, IN_QUEUE, state=HostState.LOCK)
    assert sampled(tmp_path, nothing, probe).causes[0].code == code


@pytest.mark.parametrize(
    ("states", "is_crowded", "share"),
    [
        ([R, R, R, R], False, 0.4),
        ([R, R, R, Q], False, 0.3),
        ([R, Q, Q, None], False, None),  # of 0.3 at work 0.2 without a CPU: 0.2 of 0.8 are left
        ([R, Q, Q, None], True, 0.4),  # which the process itself had: more of them would not help either
    ],
)
def test_waiting_for_workers_that_have_no_cpu_is_no_starving_loader(
    states: list[HostState | None], is_crowded: bool, share: float | None, tmp_path: Path
) -> None:
    """They also work while the stage computes."""
    stage = handed_over(tmp_path, 4, IN_QUEUE, [[*states, *[R] * 6]], is_crowded=is_crowded)
    found = [cause.share for cause in stage.causes if cause.code == "data-loader-starvation"]
    assert (stage.verdict.verdict is Verdict.DATA_LOADER_STARVATION) == (share is not None)
    assert found == [pytest.approx(0.2 if share is None else share)]


@pytest.mark.parametrize(
    ("function", "library", "code"),
    [
        ("QueuePool._do_get", "sqlalchemy/pool/impl.py", "waiting-on-system"),
        ("QueuePool._do_return_conn", "sqlalchemy/pool/impl.py", "data-loader-starvation"),
        ("HTTPConnectionPool._get_conn", "urllib3/connectionpool.py", "waiting-on-system"),
        ("HTTPConnectionPool.urlopen", "urllib3/connectionpool.py", "data-loader-starvation"),
    ],
)
def test_a_pool_without_a_free_connection_is_no_starving_loader(
    function: str, library: str, code: str, tmp_path: Path
) -> None:
    stack = (*IN_QUEUE[:2], f"{function}@/x/lib/python3.11/site-packages/{library}:1", "find@user.py:5")
    first = handed_over(tmp_path, 4, stack, [[HostState.RUNNING] * 10]).causes[0]
    assert (first.code, first.where and first.where.line) == (code, 5)
    assert first.share == pytest.approx(0.4)


@pytest.mark.parametrize(("queued", "share"), [(0.0, 0.12), (0.25, 0.09), (0.5, 0.06)])
@pytest.mark.parametrize("collecting", [0.12, 0.16])
def test_what_a_collection_waits_for_a_cpu_is_none_of_it(queued: float, share: float, collecting: float) -> None:
    """Collections that were timed as a whole are waited in as all else, and 15 % are of the rest of the time."""
    more = collecting / 0.12
    judged = judge(figures(uses_gpu=False, collecting_share=collecting, queued_share=queued, ready_share=1.0))
    assert (judged.verdict.verdict is Verdict.GARBAGE_COLLECTION) == (collecting == 0.16)
    found = [cause.share for cause in judged.causes if cause.code == "garbage-collection"]
    assert found == [pytest.approx(share * more)]
    sampled = by_samples(collections=1.0, collection_ms=100 * collecting, state_ms={"runnable": 100 * queued})
    assert [cause.share for cause in judge(sampled).causes if cause.code == "garbage-collection"] == [
        pytest.approx(share * more)
    ]


POOL = "/usr/lib/python3.11/multiprocessing/pool.py"
STARTS = "Process.start@/usr/lib/python3.11/multiprocessing/process.py:121"
THREAD_STARTS = "Thread.start@/usr/lib/python3.11/threading.py:957"


@pytest.mark.parametrize(
    ("starts", "batches", "code"),
    [
        (STARTS, 12, "waiting-on-process"),
        (STARTS, 7, "waiting-on-process"),
        (STARTS, 2, "waiting-on-stage"),
        (THREAD_STARTS, 12, "waiting-on-system"),
        (THREAD_STARTS, 2, "waiting-on-stage"),
    ],
)
def test_workers_that_are_made_for_every_batch(starts: str, batches: int, code: str, tmp_path: Path) -> None:
    """Of ten samples a batch two make workers, in so many batches, two end them, and three wait for a result."""
    probe = ProbeBuilder(100 * US)
    stacks: list[tuple[str, ...]] = [(starts, f"Pool.__init__@{POOL}:215", "augment@user.py:4")] * 2
    stacks += [(f"Pool._help_stuff_finish@{POOL}:675", "augment@user.py:4")] * 2
    stacks += [(f"ApplyResult.wait@{POOL}:765", "augment@user.py:5")] * 3 + [("infer@user.py:9",)] * 3
    for index in range(12):
        for position, stack in enumerate(stacks):
            is_made = index < batches or position >= 2
            state = HostState.LOCK if 2 <= position < 7 else HostState.RUNNING
            at = (index + 1) * BATCH + (50 + 100 * position) * US
            probe.sample(at, stack if is_made else ("infer@user.py:9",), state=state)
    causes = sampled(tmp_path, nothing, probe).causes
    assert (causes[0].code, causes[0].where and causes[0].where.line) == (code, 5 if batches == 2 else 4)
    assert causes[0].share == pytest.approx(0.3 if batches == 2 else 0.2 + 0.2 * batches / 12)


FUTURES = "/usr/lib/python3.11/concurrent/futures/_base.py"


@pytest.mark.parametrize("waits_at", [THREAD_STARTS, f"Future.result@{FUTURES}:451", "join@/lib/python3.11/a.py:1"])
def test_what_a_thread_computes_is_no_cost_of_making_it(waits_at: str, tmp_path: Path) -> None:
    """A thread of its own computes for 0.6 ms of each batch; the stage waits for it, 0.1 ms of that for a CPU."""
    probe = ProbeBuilder(100 * US)
    for index in range(12):
        for position in range(10):
            at = (index + 1) * BATCH + (50 + 100 * position) * US
            stack: tuple[str, ...] = ("infer@user.py:9",)
            if position < 6:
                stack = (WAIT, waits_at, "step@user.py:5")
                probe.sample(at, ("work@user.py:21", "_bootstrap@/lib/python3.11/threading.py:9"), tid=200 + index)
            state = HostState.LOCK if position < 5 else HostState.RUNNING
            probe.sample(at, stack, state=state)
    (cause, *_) = sampled(tmp_path, nothing, probe).causes
    assert (cause.code, cause.where and cause.where.line) == ("waiting-on-stage", 21)
    assert cause.share == pytest.approx(0.5)


@pytest.mark.parametrize(("batches", "code"), [(3, "recompilation"), (2, "cpu-bound")])
def test_a_compiler_in_two_batches_is_none_in_the_steady_state(batches: int, code: str, tmp_path: Path) -> None:
    probe = ProbeBuilder(100 * US)
    for index in range(12):
        compiles = ("compile@/x/site-packages/torch/_dynamo/convert_frame.py:1", "step@user.py:3")
        stack = compiles if index < batches else ("step@user.py:4",)
        probe.samples((index + 1) * BATCH, (index + 2) * BATCH, stack)
    assert sampled(tmp_path, nothing, probe).causes[0].code == code


def test_page_faults_are_compared_with_the_time_that_other_processes_leave() -> None:
    """41 of 500 ns are 5.1 % of 0.4 ms; the other 0.6 ms it waits for a CPU."""
    evidence = host_evidence(
        profile={"minor_faults": 41.0, "state_ms": {"runnable": 0.6}}, busiest=WORK, faulting=line("fill", 3)
    )
    assert "memory" in judge(figures(1.0, uses_gpu=False, host=evidence)).causes[0].try_this


def test_a_wait_is_said_once() -> None:
    judged = judge(by_samples(state_ms={"file": 60.0, "running": 40.0}))
    assert [cause.code for cause in judged.causes] == ["file-wait", "cpu-bound"]
    both = judge(by_samples(state_ms={"file": 31.0, "sleep": 30.0, "running": 39.0}))
    assert [cause.code for cause in both.causes] == ["file-wait", "waiting-on-system", "cpu-bound"]


def test_kernels_that_keep_appearing_are_compiled_in_the_steady_state(tmp_path: Path) -> None:
    """Batches of 1 ms; those with a kernel of a new name take 2 ms: four of 12, of which three in the second half."""

    def made(new: set[int]) -> StageDiagnosis:
        builder, begin = TraceBuilder(), BATCH
        for index in range(12):
            length = 2 * BATCH if index in new else BATCH
            builder.range(f"batch_{index}", begin, begin + length)
            builder.range("stage", begin, begin + length)
            name = f"kernel_{index}" if index in new else "kernel"
            builder.kernel((begin + 10, begin + 20), (begin + 100, begin + 200), name=name)
            begin += length
        return stage_of(diagnose(Analysis(open_trace(builder.write(tmp_path / "t.sqlite")))))

    stage = made({2, 6, 8, 10})
    assert stage.verdict.verdict is Verdict.RECOMPILATION
    assert stage.causes[0].share == pytest.approx(4 / 16)
    assert stage.causes[0].saves_ms == pytest.approx(4 / 12)
    assert made({1, 2, 3, 8}).verdict.verdict is not Verdict.RECOMPILATION  # one late kernel may be a rare branch


@pytest.mark.parametrize(("timings", "late", "share"), [(3, 12, 0.2), (2, 12, None), (3, 7, None), (3, 8, 1.6 / 13.6)])
def test_kernels_that_are_tried_batch_after_batch(timings: int, late: int, share: float | None, tmp_path: Path) -> None:
    """Timings 100 us apart, in batches of 1 ms; where only some batches have them, those take 1.2 ms."""
    builder, begin = TraceBuilder(), BATCH
    for index in range(12):
        tunes = index < late
        length = BATCH if late == 12 or not tunes else BATCH + 200 * US
        builder.range(f"batch_{index}", begin, begin + length)
        builder.range("stage", begin, begin + length)
        builder.kernel((begin + 10, begin + 20), (begin + 100, begin + 200))
        for number in range(timings if tunes else 0):
            at = begin + (200 + number * 100) * US
            builder.call("cudaEventElapsedTime_v3020", at, at + 10)
        begin += length
    stage = stage_of(diagnose(Analysis(open_trace(builder.write(tmp_path / "t.sqlite")))))
    if share is None:
        assert "recompilation" not in [cause.code for cause in stage.causes]
    else:
        assert stage.causes[0].code == "recompilation"
        assert stage.causes[0].share == pytest.approx(share)


def test_a_cause_saves_no_more_than_the_batch_without_the_stage(tmp_path: Path) -> None:
    def beside_the_gpu(batch: Batch) -> None:
        batch.kernel(0, 10, 900)
        batch.call(SYNCHRONIZE, 700, 905)

    diagnosis = diagnosed(tmp_path, beside_the_gpu, {"prepare": (10, 690)})
    stage = stage_of(diagnosis, "prepare")
    assert stage.cost.pipeline_ms is not None
    assert stage.cost.without_stage_ms is not None
    at_most = stage.cost.pipeline_ms - stage.cost.without_stage_ms
    for cause in stage.causes:
        assert cause.saves_ms is None or cause.saves_ms <= at_most + 1e-9


@pytest.mark.parametrize(("state", "line"), [(HostState.RUNNABLE, 8), (HostState.RUNNING, 5)])
def test_a_thread_that_is_ready_in_a_wait_has_nothing_to_compute_there(
    state: HostState, line: int, tmp_path: Path
) -> None:
    """It has been woken, and waits for a CPU. What it runs there is what waking costs."""

    def content(batch: Batch) -> None:
        batch.sampled(0, 600, "Condition.wait@/usr/lib/python3.11/threading.py:327", "run@user.py:5", state=state)
        batch.sampled(600, 1000, "use@user.py:8")

    cause = stage_of(diagnosed(tmp_path, content)).causes[0]
    assert (cause.code, cause.where and cause.where.line) == ("cpu-bound", line)
