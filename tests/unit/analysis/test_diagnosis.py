"""The diagnosis beyond one cause: several GPUs, processes and passes; CUDA calls, recompiling, readings; advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.diagnosis import (
    OtherProcesses,
    Pass,
    advise,
    agreement,
    diagnose,
    diagnosis_findings,
    find_evidence,
)
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model import nsys_schema as schema
from perfharness.model.activity import Activity
from perfharness.model.conventions import MARK_COMPILING, MARK_QUEUED, MARK_READY_TIME
from perfharness.model.diagnosis import Cause, Code, Diagnosis, StageDiagnosis, WarmupDiagnosis
from tests.support.made_batches import BATCH, Batch, diagnosed, made_analysis, near, stage_of
from tests.support.trace_builder import US, Recorded, TraceBuilder


def diagnosis_of(builder: TraceBuilder, path: Path, warmup: int = 0) -> Diagnosis:
    return diagnose(find_evidence(Pass(builder.analysis(path, warmup))))


# ---- several GPUs ----

TWO: dict[str, Any] = {"gpus": 2, "batches": 4}
IN_TURNS = "launch 10..14 -> 20..480 grid=132; launch 490..494 -> 500..900 device=1 grid=132"


def test_another_gpus_work_does_not_make_this_one_busy(tmp_path: Path) -> None:
    # first  |k...........|  GPU 0 at work from 20 to 900
    # second .|...k.......|  GPU 1 at work from 500 to 520: idle for all the rest, whatever GPU 0 does
    text = "launch 5..9 -> 20..900 grid=132; launch 490..494 -> 500..520 device=1 grid=132"
    found = diagnosed(tmp_path, text, "first 0..10; second 10..960", **TWO)
    assert [gpu.uuid for gpu in found.gpus] == ["u-0", "u-1"]
    first, second = (stage_of(found, name) for name in ("first", "second"))
    assert (first.gpu_busy_ms, second.gpu_busy_ms) == pytest.approx((0.88, 0.02))
    assert (first.verdict.code, second.verdict.code) == (Code.GPU_BOUND, Code.UNKNOWN)
    assert [group.gpu for group in second.kernels] == [1]


def test_a_stage_on_two_gpus_has_the_work_of_both(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(tmp_path, IN_TURNS, **TWO))
    assert (stage.verdict.code, stage.gpu_busy_ms) == (Code.GPU_BOUND, near(0.86))
    kernels = [value for group in stage.kernels for value in (group.gpu, group.time_ms, group.count)]
    assert kernels == pytest.approx([0, 0.46, 1, 1, 0.4, 1])


@pytest.mark.parametrize(("uuid", "share"), [("u-1", 0.4), ("u-0", 0.46), (None, None)])
def test_other_processes_count_only_on_their_gpu(uuid: str | None, share: float | None, tmp_path: Path) -> None:
    begins = np.arange(1, 5) * BATCH
    others = OtherProcesses(BusyLine(begins, begins + BATCH), 1, gpu_uuid=uuid)
    stage = stage_of(diagnosed(tmp_path, IN_TURNS, others=others, **TWO))
    waits = [cause.share for cause in stage.causes if cause.detail == "process"]
    assert waits == ([] if share is None else [pytest.approx(share)])


def test_a_gpu_whose_other_users_are_not_known_is_named(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, IN_TURNS, others=OtherProcesses(None, 1, "a trace is missing"), **TWO)
    assert [one.code for one in diagnosis_findings(found, "a trace is missing")] == ["gpu-sharing-unknown"]
    assert not [cause for cause in stage_of(found).causes if cause.detail == "process"]


def test_forked_workers_on_one_gpu_are_on_one_gpu(tmp_path: Path) -> None:
    text = "launch 10..14 -> 20..480 grid=132; launch 20..24 -> 500..900 pid=200 tid=200"
    found = diagnosed(tmp_path, text, **TWO)
    assert (len(found.gpus), stage_of(found).gpu_busy_ms) == (1, near(0.46))


def test_a_stage_of_some_batches_is_counted_over_all_of_them(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        if batch.index % 2:
            batch.add("rare 100..500; launch 110..114 -> 130..280 x2+200; copy 111..112 -> 281..291 x2+200")

    stage = stage_of(diagnosed(tmp_path, content, "", batches=4), "rare")
    assert (stage.batches, stage.wall_ms, stage.gpu_busy_ms) == (4, near(0.2), near(0.16))
    ((kernels, kernel_ms),) = [(one.count, one.time_ms) for one in stage.kernels]
    ((copied, copy_ms),) = [(one.count, one.time_ms) for one in stage.copies]
    assert (kernels, kernel_ms, copied, copy_ms) == pytest.approx((1, 0.15, 1, 0.01))


# ---- CUDA calls ----

EMBEDDED = {schema.META_CUDA_TRACED: "yes", schema.META_CUDA_USED: "yes"}
TRACERS = {"nsys": {}, "embedded": {**EMBEDDED, schema.META_ALL_CALLS: "yes"}, "launches alone": EMBEDDED}
CHURN = "cudaMalloc 5..120 x3+300; launch 122..126 -> 130..150 x3+300; cudaFree 155..290 x3+300"
WAITS = "launch 1..5 -> 6..70 x9+100; cudaStreamSynchronize 8..80 x9+100"


@pytest.mark.parametrize(("text", "code"), [(CHURN, Code.ALLOCATOR_CHURN), (WAITS, Code.SYNCHRONIZATION)])
def test_all_calls_of_the_embedded_tracer_tell_what_nsys_tells(text: str, code: Code, tmp_path: Path) -> None:
    found = {name: stage_of(diagnosed(tmp_path, text, meta=meta)) for name, meta in TRACERS.items()}
    assert asdict(found["embedded"]) == asdict(found["nsys"])
    assert found["nsys"].verdict.code is code
    assert found["launches alone"].gpu_busy_ms == found["nsys"].gpu_busy_ms


def test_a_wait_for_another_stages_copy_is_counted(tmp_path: Path) -> None:
    text = "copy 10..20 -> 30..31 kind=D2H pageable=0; cudaStreamSynchronize 110..170"
    verdict = stage_of(diagnosed(tmp_path, text, "copy_out 0..100; synchronize 100..200"), "synchronize").verdict
    assert (verdict.code, verdict.share) == (Code.SYNCHRONIZATION, near(0.6))


def test_calls_between_batches_that_touch_count_once(tmp_path: Path) -> None:
    """Each batch begins, to the nanosecond, with the end of the one before it, and with a call."""
    verdict = stage_of(diagnosed(tmp_path, "cudaMalloc 0..400")).verdict
    assert (verdict.code, verdict.share) == (Code.ALLOCATOR_CHURN, near(0.4))
    assert verdict.what.startswith("1 call")


@pytest.mark.parametrize(("end", "is_cause"), [(923, False), (922, True)])
def test_waits_for_a_gpu_that_is_at_work_cost_nothing(end: int, is_cause: bool, tmp_path: Path) -> None:
    """The GPU is idle for 20 us before the first kernel, 2 between them, and 77 or 78 after the last."""
    runs = [(20, 330), (331, 640), (641, end)]
    calls = [
        f"launch {first - 10}..{first - 6} -> {first}..{last}; cudaStreamSynchronize {first}..{last}"
        for first, last in runs
    ]
    found = stage_of(diagnosed(tmp_path, ";".join(calls)))
    assert found.verdict.code is Code.GPU_BOUND
    assert (Code.SYNCHRONIZATION in {cause.code for cause in found.causes}) is is_cause


# ---- compiling and loading in the steady state ----


@pytest.mark.parametrize(
    ("new", "share"),
    [
        ({2, 6, 8, 10}, 4 / 16),
        ({1, 2, 3, 8}, None),  # one late kernel may be a rare branch
    ],
)
def test_new_kernels_that_recur_are_compiled_in_the_steady_state(
    new: set[int], share: float | None, tmp_path: Path
) -> None:
    """Batches of 1 ms; those in `new` run a kernel of a new name, and take 2 ms."""
    builder, begin = TraceBuilder(), 1000
    for index in range(12):
        us, name = (2000, f"kernel_{index}") if index in new else (1000, "kernel")
        text = f"batch_{index} 0..{us}; stage 0..{us}; launch 0.01..0.02 -> 0.1..0.2 name=name"
        builder.add(text, begin, unit=US, words={"name": name})
        begin += us
    verdict = stage_of(diagnosis_of(builder, tmp_path)).verdict
    assert (verdict.code is Code.COMPILATION) is (share is not None)
    if share is not None:
        assert (verdict.share, verdict.saves_ms) == pytest.approx((share, 4 / 12))


# ---- readings of threads ----


def read(path: Path, each_us: Mapping[str, int]) -> Diagnosis:
    """Batches of 1 ms whose stage takes 700 us; counters that grow by so much from one batch to the next."""
    builder = Recorded("r")
    for index in range(13):
        for mark, us in each_us.items():
            grown = (index + 1) * us * US
            builder.mark(mark, (index + 1) * BATCH, domain="perfharness", category="r", payload=grown)
        if index < 12:
            builder.batch(index, index + 1, index + 2, None)
            builder.add("stage 1.1..1.8", index)
    return diagnosis_of(builder, path)


@pytest.mark.parametrize(
    ("ready_us", "waits", "computes", "code"),
    [
        # what exceeds the ready time was waited at least, what of it does not fit beside the stage was computed
        (1000, 0.0, 1.0, Code.CPU_BOUND),
        (650, 0.05 / 0.7, 0.5, Code.CPU_BOUND),
        (600, 0.1 / 0.7, 0.3 / 0.7, Code.UNKNOWN),
        (350, 0.5, 0.05 / 0.7, Code.WAITING),
        (0, 1.0, 0.0, Code.WAITING),
    ],
)
def test_ready_time_that_was_read_in_batches(
    ready_us: int, waits: float, computes: float, code: Code, tmp_path: Path
) -> None:
    stage = stage_of(read(tmp_path, {MARK_READY_TIME: ready_us}))
    shares = [stage.activities.get(one, 0.0) for one in (Activity.OTHER, Activity.COMPUTE, Activity.UNKNOWN)]
    assert shares == pytest.approx([waits, computes, 1 - waits - computes])
    assert (stage.verdict.code, stage.samples) == (code, 0)


@pytest.mark.parametrize(
    ("ran_us", "queued_us", "code", "detail", "share"),
    [
        # what others had of the CPUs is neither computing nor waiting
        (230, 550, Code.CPU_BOUND, None, 0.23),
        (500, 0, Code.WAITING, "other", 0.5),
        (510, 0, Code.CPU_BOUND, None, 0.51),
    ],
)
def test_waiting_for_a_cpu_that_was_read_in_batches(
    ran_us: int, queued_us: int, code: Code, detail: str | None, share: float, tmp_path: Path
) -> None:
    batch = stage_of(read(tmp_path, {MARK_READY_TIME: ran_us + queued_us, MARK_QUEUED: queued_us}), "batch")
    assert batch.activities.get(Activity.NO_CPU, 0.0) == pytest.approx(queued_us / 1000)
    assert (batch.verdict.code, batch.verdict.detail, batch.verdict.share) == (code, detail, near(share))


@pytest.mark.parametrize(("compiled_us", "is_verdict"), [(370, True), (365, False), (950, True)])
def test_compiling_that_was_read_in_batches(compiled_us: int, is_verdict: bool, tmp_path: Path) -> None:
    """Of batches of 1 ms whose stage takes 700 us, 300 of what was compiled may have been beside it."""
    verdict = stage_of(read(tmp_path, {MARK_READY_TIME: 1000, MARK_COMPILING: compiled_us})).verdict
    assert (verdict.code is Code.COMPILATION) is is_verdict
    assert not is_verdict or verdict.share == pytest.approx((compiled_us - 300) / 700, abs=1e-3)


# ---- whole diagnoses ----


def test_what_the_warm_up_cuts_off_is_in_no_number(tmp_path: Path) -> None:
    """Two batches of 40 ms that load modules, then 18 of 1 ms that the GPU fills."""
    builder, begin = TraceBuilder(), 1000
    for index in range(20):
        us = 40_000 if index < 2 else 1000
        loads = "cuLibraryLoadData 10..29000" if index < 2 else ""
        work = f"launch {us - 990}..{us - 986} -> {us - 980}..{us - 40}"
        builder.add(f"batch_{index} 0..{us}; stage 0..{us}; {loads}; {work}", begin, unit=US)
        begin += us
    leaked, cut = (diagnosis_of(builder, tmp_path, warmup) for warmup in (1, 2))
    assert [(one.state, one.steady_from) for one in leaked.warmup] == [("too-short", 2)]
    assert stage_of(leaked).wall_ms == pytest.approx((40 + 17) / 18)
    assert (stage_of(cut).verdict.code, stage_of(cut).wall_ms, cut.warmup[0].state) == (Code.GPU_BOUND, 1.0, "enough")
    assert diagnosed(tmp_path, "", warmup=6).stages == []


@pytest.mark.parametrize(
    ("slow_us", "stage_us", "is_changed"),
    [(1000, 700, False), (1000, 720, False), (1000, 1000, True), (2000, 1400, False), (1000, 300, True)],
)
def test_times_are_of_the_measured_pass_and_shares_of_the_profiling_pass(
    slow_us: int, stage_us: int, is_changed: bool, tmp_path: Path
) -> None:
    """600 of 1000 us in the measured pass; by more than 1.5 times or less than that part it is marked as changed."""
    measured = made_analysis(tmp_path, "", "stage 0..600", apart=3)
    batch, half = f"0..{slow_us}", stage_us / 2
    text = f"sleep@wait 0..{half}; running@work {half}..{slow_us}"
    found = diagnosed(tmp_path, text, f"stage 0..{stage_us}", batch=batch, apart=3, measured=measured)
    stage = stage_of(found)
    assert stage.slowdown == pytest.approx(stage_us / 600)
    assert stage.is_changed is is_changed
    assert (stage.wall_ms, stage.verdict.detail) == (near(0.6), "sleep")
    assert (stage.verdict.share, stage.verdict.saves_ms) == pytest.approx((0.5, 0.3), abs=0.02)


def test_processes_side_by_side(tmp_path: Path) -> None:
    """Two compute, the second of them for longer; the third sleeps."""
    contents = {"a": ("running@work", 600), "b": ("running@work", 800), "c": ("sleep@wait", 1000)}
    made = {name: diagnosed(tmp_path, f"{what} 0..1000", f"stage 0..{us}") for name, (what, us) in contents.items()}
    batch, stage = agreement(made)
    assert (stage.path[-1], stage.verdicts) == ("stage", {Code.CPU_BOUND: 2, Code.WAITING: 1})
    assert (stage.process, stage.wall_ms, stage.processes) == ("b", near(0.8), 3)
    assert batch.wall_ms == pytest.approx(1.0)


NAMES = st.lists(st.sampled_from(["a", "a/b", "a/b/c", "a/d", "e", "e/f"]), unique=True)
CAUSES = st.builds(
    Cause,
    st.sampled_from([Code.CPU_BOUND, Code.WAITING, Code.GPU_BOUND, Code.UNKNOWN]),
    share=st.floats(0.05, 1),
    saves_ms=st.none() | st.floats(1.5, 10),
    what=st.just("what"),
    step=st.just("step"),
    least=st.just(0.3),
)
LOOP = ("rec", "batch")


@given(NAMES, st.data())
def test_no_cause_is_lost_and_none_is_named_twice_along_a_path(names: list[str], data: st.DataObject) -> None:
    stages = [StageDiagnosis((*LOOP, *name.split("/")), 10, 10.0, None, {}, 100, [data.draw(CAUSES)]) for name in names]
    batch = StageDiagnosis(LOOP, 10, 20.0, None, {}, 100, [data.draw(CAUSES)])
    loop = WarmupDiagnosis(LOOP, 12, 1, 0, "enough", 20.0, 1.0, None)
    found = advise({"one": Diagnosis([batch, *stages], [loop])})
    known = [one for one in (batch, *stages) if one.verdict.code is not Code.UNKNOWN]
    for stage in known:  # it speaks, or one around or inside it does, for the same cause
        speakers = [one.path for one in found if one.cause.code is stage.verdict.code]
        assert any(stage.path[: len(one)] == one or one[: len(stage.path)] == stage.path for one in speakers)
    for one in found:
        inside = [other for other in found if other.path != one.path and other.path[: len(one.path)] == one.path]
        assert one.cause.code not in {other.cause.code for other in inside}
    assert found == sorted(found, key=lambda one: (one.cause.saves_ms is None, -one.worth_ms))
    assert {one.batch_ms for one in found} <= {20.0}
