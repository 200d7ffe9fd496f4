"""Each verdict at its threshold: a stage of 1 ms that just gets it, and the same less one microsecond, which does not.

All figures are reckoned by hand from the microseconds that stand here; the evidence must say the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import ALONE, OtherProcesses, diagnose
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Diagnosis, Verdict
from perfharness.model.trace import CopyKind
from perfharness.trace import open_trace
from tests.support.made_batches import (
    BATCH,
    DEVICE_SYNCHRONIZE,
    SYNCHRONIZE,
    US,
    WORKER,
    Batch,
    Content,
    diagnosed,
    gpu_of,
    host_of,
    nothing,
    stage_of,
)
from tests.support.trace_builder import TraceBuilder

EMBEDDED = {schema.META_CUDA_TRACED: "yes"}
MALLOC, RECORD, LOAD = "cudaMalloc_v3020", "cudaEventRecord_v3020", "cuLibraryLoadData"


def gpu(last: float) -> Content:
    return lambda batch: batch.kernel(10, 20, last)


def transfer(last: float) -> Content:
    return lambda batch: batch.copy((10, 14), (20, last), pageable=False, stream=8)


def transfer_beside_a_kernel(last: float) -> Content:
    def content(batch: Batch) -> None:
        batch.copy((10, 14), (20, 420), pageable=False, stream=8)
        batch.kernel(14, 419, last)

    return content


def launches(count: int, apart: float = 10, call: float = 4) -> Content:
    """So many launches, `apart` from start to start; each kernel takes 2 us."""

    def content(batch: Batch) -> None:
        for number in range(count):
            at = 10 + number * apart
            batch.launch((at, at + call), (at + call + 1, at + call + 3))

    return content


def copies(count: int, call: float, on_gpu: float = 1) -> Content:
    """So many copies of 1 kB from pinned memory, with 4 us of the host before each; and a launch."""

    def content(batch: Batch) -> None:
        for number in range(count):
            at = 4 + number * (call + 4)
            batch.copy((at, at + call), (at + 5, at + 5 + on_gpu), pageable=False, size=1000)
        batch.kernel(900, 910, 912)

    return content


def pageable(call: float) -> Content:
    """A copy with 4 us before it, half as long on the GPU."""

    def content(batch: Batch) -> None:
        batch.copy((4, 4 + call), (10, 10 + call / 2))
        batch.kernel(900, 910, 912)

    return content


def pageable_transfer(last: float) -> Content:
    return lambda batch: batch.copy((10, 14), (20, last), stream=8)


def values(count: int, each: float) -> Content:
    """So many values that the host reads: a copy of 5 us, and a wait for the rest."""

    def content(batch: Batch) -> None:
        for number in range(count):
            at = 10 + number * 240
            batch.copy((at, at + 5), (at + 40, at + 41), kind=CopyKind.DEVICE_TO_HOST, pageable=False, size=4)
            batch.call(SYNCHRONIZE, at + 5, at + each)

    return content


def waits(*pairs: tuple[float, float]) -> Content:
    """Waits while the stage's own kernels run."""

    def content(batch: Batch) -> None:
        for first, end in pairs:
            batch.kernel(first - 10, first, end)
            batch.call(SYNCHRONIZE, first, end)

    return content


def three_waits(last: float) -> Content:
    return waits((100, 150), (400, 450), (700, last))


def reads_of_a_helper(count: int, last: float) -> Content:
    """The stage waits for a lock, while a thread without stages copies so many values to the host."""

    def content(batch: Batch) -> None:
        batch.kernel(10, 100, last - 20)
        batch.os_call("pthread_cond_wait", 100, last)
        for number in range(count):
            at = 100 + number * (last - 100) / count
            batch.copy((at, at + 5), (at + 6, at + 7), kind=CopyKind.DEVICE_TO_HOST, pageable=False, size=4, tid=WORKER)

    return content


def close_waits(last: float) -> Content:
    """With 6 us between each wait and the launch before it."""
    return waits((100, 120), (400, 420), (700, last))


def waits_far_apart(last: float) -> Content:
    """61 launches for three waits."""

    def content(batch: Batch) -> None:
        three_waits(last)(batch)
        for at in range(805, 805 + 3 * 58, 3):
            batch.launch((at, at + 2), (at + 2, at + 2.1))

    return content


def one_call(name: str, last: float) -> Content:
    def content(batch: Batch) -> None:
        batch.call(name, 0, last)

    return content


def idle_wait(last: float) -> Content:
    return one_call(DEVICE_SYNCHRONIZE, last)


def system(name: str, last: float) -> Content:
    return lambda batch: batch.os_call(name, 100, last)


def elsewhere(last: float) -> Content:
    """The GPU works on what the range before the stage started, while the stage waits for it from 500 to `last`."""

    def content(batch: Batch) -> None:
        batch.range("before", -60, -20)
        batch.kernel(-50, 500, last)
        batch.call(DEVICE_SYNCHRONIZE, 500, last)

    return content


PAIRS: dict[str, tuple[Verdict, Content, str, Content]] = {
    # 600 us of 1000 on the GPU
    "gpu": (Verdict.GPU_BOUND, gpu(620), "60 %", gpu(619)),
    "copy": (Verdict.COPY_BOUND, transfer(420), "40 %", transfer(419)),
    # 400 us of copy, of which the last has a kernel beside it
    "copy beside": (Verdict.COPY_BOUND, transfer_beside_a_kernel(419), "40 %", transfer_beside_a_kernel(420)),
    # 50 calls of 10 us; of 9.9 us it is what leads to them, too
    "launch": (Verdict.LAUNCH_BOUND, launches(50, 15, 10), "10.0 us", launches(50, 15, 9.9)),
    # 10 us before the first, 50 calls of 4 us, 49 gaps of 6: 504; 49 calls: 494
    "dispatch": (Verdict.DISPATCH_BOUND, launches(50), "50 operations", launches(49)),
    "few operations": (Verdict.DISPATCH_BOUND, launches(20, 48), "20 operations", launches(19, 48)),
    # 10 + 14 x 40 - 36 = 534 us for 14 operations: at most ten calls of 4 us each; of 3.8 us, more
    "at their price": (Verdict.DISPATCH_BOUND, launches(14, 40), "53 %", launches(14, 40, 3.8)),
    # gaps of at most 30 calls lead to launches: 10 + 41 x 0.4 + 40 x 11.9 = 502 us; longer ones, to nothing
    "launch apart": (Verdict.DISPATCH_BOUND, launches(41, 12.3, 0.4), "41 operations", launches(41, 12.5, 0.4)),
    # 10 copies, for each a call of 26 us and 4 us before it: 300 us
    "small copies": (Verdict.SMALL_COPIES, copies(10, 26), "1.0 kB", copies(10, 25.9)),
    "few copies": (Verdict.SMALL_COPIES, copies(10, 30), "34.0 us", copies(9, 30)),
    # 13.1 us of 26.2 us on the GPU: their bytes cost as much as they do
    "large copies": (Verdict.SMALL_COPIES, copies(10, 26, 14.9), "14.9 us", copies(10, 26, 15.1)),
    "pageable": (Verdict.PAGEABLE_COPIES, pageable(296), "30 %", pageable(295)),
    "pageable transfer": (Verdict.PAGEABLE_COPIES, pageable_transfer(420), "100 %", pageable_transfer(419)),
    "helper": (Verdict.IMPLICIT_SYNCHRONIZATION, reads_of_a_helper(3, 300), "3.0", reads_of_a_helper(3, 299)),
    "few of a helper": (Verdict.WAITING_ON_STAGE, reads_of_a_helper(2, 400), "2.0", reads_of_a_helper(2, 399)),
    "values": (Verdict.IMPLICIT_SYNCHRONIZATION, values(4, 50), "4.0", values(4, 49.9)),
    "few values": (Verdict.IMPLICIT_SYNCHRONIZATION, values(3, 149), "45 %", values(2, 149)),
    "close waits": (Verdict.SYNCHRONIZATION_BOUND, close_waits(742), "92 %", close_waits(741)),
    "waits far apart": (Verdict.SYNCHRONIZATION_BOUND, waits_far_apart(800), "20 %", waits_far_apart(799)),
    # two waits of 200 us hand something over; three make host and GPU take turns
    "two waits": (Verdict.SYNCHRONIZATION_BOUND, three_waits(1000), "42 %", waits((100, 300), (500, 700))),
    "idle wait": (Verdict.SYNCHRONIZATION_BOUND, idle_wait(300), "100 %", idle_wait(299)),
    "allocating": (Verdict.ALLOCATOR_CHURN, one_call(MALLOC, 300), "30 %", one_call(MALLOC, 299)),
    "cpu": (Verdict.CPU_BOUND, one_call(RECORD, 500), "50 %", one_call(RECORD, 501)),
    "cannot tell": (Verdict.CANNOT_TELL, one_call(RECORD, 501), "50 %", one_call(RECORD, 500)),
    "stage": (Verdict.WAITING_ON_STAGE, elsewhere(900), "'before'", elsewhere(899)),
    "loading": (Verdict.RECOMPILATION, one_call(LOAD, 100), "12 batches", one_call(LOAD, 99)),
    "sleep": (Verdict.WAITING_ON_SYSTEM, system("clock_nanosleep", 600), "50 %", system("clock_nanosleep", 599)),
    "child": (Verdict.WAITING_ON_PROCESS, system("waitpid", 500), "40 %", system("waitpid", 499)),
    "file": (Verdict.FILE_WAIT, system("fsync", 400), "30 %", system("fsync", 399)),
    "network": (Verdict.NETWORK_WAIT, system("recvfrom", 400), "30 %", system("recvfrom", 399)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_microsecond_makes_the_verdict_and_takes_it_away(name: str, tmp_path: Path) -> None:
    verdict, provokes, evidence, does_not = PAIRS[name]

    def judged(content: Content) -> Diagnosis:
        return diagnosed(tmp_path, content, batch=(-100.0, 1000.0), apart=2)

    found = stage_of(judged(provokes)).verdict
    assert (found.verdict, evidence in " ".join(found.evidence)) == (verdict, True), found
    assert found.next_step
    assert stage_of(judged(does_not)).verdict.verdict is not verdict


NOT_IN_A_TRACE = {
    Verdict.GARBAGE_COLLECTION, Verdict.GIL_CONTENTION, Verdict.CPU_CONTENTION, Verdict.DATA_LOADER_STARVATION,
    Verdict.CPU_QUOTA, Verdict.CPU_STEAL, Verdict.WAITING_ON_RANK,
}  # fmt: skip
"""Those that a trace alone cannot tell: test_diagnosis_causes.py, and of ranks test_ranks_verdict.py."""


def test_every_verdict_has_a_pair() -> None:
    assert {verdict for verdict, *_ in PAIRS.values()} == set(Verdict) - NOT_IN_A_TRACE - {Verdict.FIRST_USE}


@pytest.mark.parametrize(
    ("last", "verdict", "shared_ms"),
    [(320, Verdict.WAITING_ON_PROCESS, 0.3), (319, Verdict.CPU_BOUND, 0.299), (None, Verdict.CPU_BOUND, None)],
)
def test_another_process_beside_the_stages_own_work(
    last: int | None, verdict: Verdict, shared_ms: float | None, tmp_path: Path
) -> None:
    begins = 2 * np.arange(1, 13) * BATCH
    others = ALONE if last is None else OtherProcesses(BusyLine(begins - 500 * US, begins + last * US), 1)
    found = stage_of(diagnosed(tmp_path, gpu(500), apart=2, others=others))
    assert found.verdict.verdict is verdict  # own work from 20 on
    assert gpu_of(found).shared_with_processes_ms == pytest.approx(shared_ms)


def read_backs(wait: float = 0.0) -> Content:
    """47 copies to the host, each with a wait of so many us after it."""

    def content(batch: Batch) -> None:
        for at in range(10, 950, 20):
            batch.kernel(at, at + 5, at + 7)
            batch.copy((at + 5, at + 8), (at + 9, at + 10), kind=CopyKind.DEVICE_TO_HOST, pageable=False)
            if wait:
                batch.call(SYNCHRONIZE, at + 8, at + 8 + wait)

    return content


def blocking_copies(batch: Batch) -> None:
    for at in range(10, 950, 40):
        batch.kernel(at, at + 8, at + 12)
        batch.copy((at + 5, at + 30), (at + 14, at + 15), kind=CopyKind.DEVICE_TO_HOST)


@pytest.mark.parametrize(
    ("content", "meta", "verdict"),
    [
        (blocking_copies, {}, Verdict.IMPLICIT_SYNCHRONIZATION),
        (waits((505, 805)), {}, Verdict.CPU_BOUND),
        (gpu(560), EMBEDDED, Verdict.CANNOT_TELL),
        (read_backs(), EMBEDDED, Verdict.CANNOT_TELL),
    ],
    ids=["copies that block", "a single wait", "waiting or computing", "hidden waits are no launching"],
)
def test_verdicts_beside_the_thresholds(
    content: Content, meta: dict[str, str], verdict: Verdict, tmp_path: Path
) -> None:
    assert stage_of(diagnosed(tmp_path, content, meta=meta)).verdict.verdict is verdict


def test_copies_that_are_read_back_count_as_waiting(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(tmp_path, read_backs(wait=4)))
    assert host_of(stage).blocking_ms == pytest.approx(47 * 0.004)  # the waits alone are 19 % of the stage
    assert stage.verdict.verdict is Verdict.IMPLICIT_SYNCHRONIZATION


def test_pageable_copies_are_named(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.copy((10, 900), (15, 880))

    stage = stage_of(diagnosed(tmp_path, content))
    (group,) = gpu_of(stage).copies
    assert (group.direction, group.host_memory, group.count) == ("host-to-device", "pageable", 1.0)
    assert (group.time_ms, group.gb_per_s) == pytest.approx((0.865, 1_000_000 / 865_000))


def test_a_wait_for_another_stage_names_it(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.kernel(10, 20, 940)
        batch.call(SYNCHRONIZE, 40, 945)

    diagnosis = diagnosed(tmp_path, content, {"compute": (0, 30), "collect": (30, 1000)})
    collect = stage_of(diagnosis, "collect")
    assert collect.verdict.verdict is Verdict.WAITING_ON_STAGE
    assert "'compute'" in collect.verdict.evidence[0]
    longest = host_of(collect).longest_waits[0]
    assert longest.waited_for_stage == "compute"
    assert longest.operation_ms == pytest.approx(0.92)
    assert stage_of(diagnosis, "compute").verdict.verdict is Verdict.GPU_BOUND


def test_a_wait_for_another_stage_s_copy_is_counted(tmp_path: Path) -> None:
    """`synchronize` after `copy_out` on an H100: `0.0 waits for the GPU a batch take 60 % of its host time`."""

    def content(batch: Batch) -> None:
        batch.copy((10, 20), (30, 31), kind=CopyKind.DEVICE_TO_HOST, pageable=False)
        batch.call(SYNCHRONIZE, 110, 170)

    diagnosis = diagnosed(tmp_path, content, {"copy_out": (0, 100), "synchronize": (100, 200)})
    verdict = stage_of(diagnosis, "synchronize").verdict
    assert verdict.verdict is Verdict.SYNCHRONIZATION_BOUND
    assert "60 %" in verdict.evidence[0]


def test_a_stage_that_reads_back_waits_for_the_stage_that_computes(tmp_path: Path) -> None:
    """The copy ends last, and is its own: `results` was said to wait for what 'results' started."""

    def content(batch: Batch) -> None:
        batch.kernel(10, 20, 930)
        batch.kernel(12, 930, 940)
        batch.copy((40, 946), (941, 943), kind=CopyKind.DEVICE_TO_HOST)

    diagnosis = diagnosed(tmp_path, content, {"compute": (0, 11), "more": (11, 30), "results": (30, 1000)})
    (cause, *_) = stage_of(diagnosis, "results").causes
    assert cause.code == "waiting-on-stage"
    assert "'compute'" in cause.what


def test_work_queued_behind_another_stage_waits_for_it(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.kernel(10, 20, 500)
        batch.kernel(20, 501, 900)

    diagnosis = diagnosed(tmp_path, content, {"first": (0, 20), "second": (20, 60)})
    assert stage_of(diagnosis, "second").verdict.verdict is Verdict.WAITING_ON_STAGE
    assert stage_of(diagnosis, "first").verdict.verdict is Verdict.GPU_BOUND
    # of 481 us from the call, 480 behind the first kernel
    assert host_of(stage_of(diagnosis, "batch")).queueing_us == pytest.approx(480 / 2)


def test_first_use_leaks_only_past_a_cut_that_is_too_short(tmp_path: Path) -> None:
    builder = TraceBuilder()
    begin = BATCH
    for index in range(20):
        length = (40 if index < 2 else 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + length)
        builder.range("stage", begin, begin + length)
        if index < 2:
            builder.kernel((begin, begin + 30_000 * US), (begin + 30_010 * US, begin + 30_020 * US))
            builder.call("cuLibraryLoadData", begin + 10 * US, begin + 29_000 * US)
        gpu(940)(Batch(builder, begin + length - BATCH))
        begin += length
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    leaked, cut = (diagnose(Analysis(trace, AnalysisOptions(warmup))) for warmup in (1, 2))
    assert stage_of(leaked).verdict.verdict is Verdict.FIRST_USE
    assert [finding.code for finding in leaked.findings] == ["warmup-too-short"]
    assert "-w 2" in leaked.findings[0].hint
    assert (stage_of(cut).verdict.verdict, cut.findings) == (Verdict.GPU_BOUND, [])
    activity = host_of(stage_of(leaked)).activity_ms
    assert activity["load"] == pytest.approx(28.99 / 18)  # the second batch of 18 that are kept
    assert activity["launch"] == pytest.approx((30.0 - 28.99 + 18 * 0.004) / 18)


@pytest.mark.parametrize(
    ("inner_us", "verdict"), [(500, Verdict.CPU_BOUND), (499, Verdict.CANNOT_TELL), (0, Verdict.CANNOT_TELL)]
)
def test_where_calls_are_not_recorded_ranges_without_any_show_computing(
    inner_us: int, verdict: Verdict, tmp_path: Path
) -> None:
    """A kernel is launched at 900 us of 1 ms; before it may be allocations, but for a range that starts no GPU work."""
    inner = {"decode": (0.0, float(inner_us))} if inner_us else {}
    diagnosis = diagnosed(
        tmp_path, lambda batch: batch.kernel(900, 910, 920), {"stage": (0.0, 1000.0), **inner}, meta=EMBEDDED
    )
    assert stage_of(diagnosis).verdict.verdict is verdict
    assert all(stage_of(diagnosis, name).verdict.verdict is Verdict.CPU_BOUND for name in inner)
    complete = diagnosed(tmp_path, lambda batch: batch.kernel(900, 910, 920))
    assert stage_of(complete).verdict.verdict is Verdict.CPU_BOUND


def test_cannot_tell_without_gpu_rows(tmp_path: Path) -> None:
    builder = TraceBuilder(cuda_traced=False)
    for index in range(3):
        builder.range(f"batch_{index}", index * BATCH, (index + 1) * BATCH)
    (batch,) = diagnose(Analysis(open_trace(builder.write(tmp_path / "t.sqlite")))).stages
    assert batch.verdict.verdict is Verdict.CANNOT_TELL
    assert batch.cpu_ms == pytest.approx(1.0)
    assert (batch.gpu, batch.host, batch.cost.pipeline_ms) == (None, None, None)


def test_cannot_tell_where_the_warm_up_leaves_nothing(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(tmp_path, gpu(940), warmup=6))
    assert (stage.verdict.verdict, stage.batches, stage.cpu_ms) == (Verdict.CANNOT_TELL, 0, None)


def test_the_embedded_tracer_leaves_unrecorded_calls_null(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(tmp_path, lambda batch: batch.kernel(900, 910, 920), meta=EMBEDDED))
    activity = host_of(stage).activity_ms
    assert (activity["synchronize"], activity["outside"], host_of(stage).calls["allocate"]) == (None, None, None)
    assert activity["launch"] == pytest.approx(0.004)
    assert stage.verdict.verdict is Verdict.CANNOT_TELL


def test_a_process_that_used_no_gpu_has_no_calls_to_miss(tmp_path: Path) -> None:
    meta = {schema.META_CUDA_TRACED: "no", schema.META_CUDA_USED: "no"}
    stage = stage_of(diagnosed(tmp_path, nothing, meta=meta))
    assert stage.verdict.verdict is Verdict.CPU_BOUND
    activity = host_of(stage).activity_ms
    assert (activity["synchronize"], activity["outside"]) == pytest.approx((0.0, 1.0))


def test_numbers_of_a_stage(tmp_path: Path) -> None:
    stage = stage_of(diagnosed(tmp_path, launches(95)))
    (during,) = stage.gpu_during
    assert (gpu_of(stage).kernel_count, gpu_of(stage).busy_ms) == pytest.approx((95, 0.190))
    assert (during.idle_ms, during.gaps, during.gap_p50_us) == pytest.approx((0.810, 96, 8.0))
    meanwhile, host = during.host_meanwhile_ms, host_of(stage)
    assert sum(value or 0.0 for value in meanwhile.values()) == pytest.approx(0.810)
    assert meanwhile["launch"] == pytest.approx(0.380)
    assert (host.launch_latency_us, host.queueing_us) == pytest.approx((5.0, 0.0))
    assert host.activity_ms["outside"] == pytest.approx(0.620)


def test_calls_between_batches_that_touch_count_once(tmp_path: Path) -> None:
    """Each batch begins, to the nanosecond, with the end of the one before it, and with a call."""
    stage = stage_of(diagnosed(tmp_path, one_call("cudaMalloc_v3020", 400)))
    assert host_of(stage).calls["allocate"] == 1.0
    assert stage.causes[0].share == pytest.approx(0.4)


def test_what_leads_to_launches_is_named_once(tmp_path: Path) -> None:
    """Of 1000 us 240 are calls, 482 lead to them, and 278 are what else the host computes."""
    causes = stage_of(diagnosed(tmp_path, launches(60, 12))).causes
    assert [(cause.code, round(cause.share, 3)) for cause in causes] == [
        ("dispatch-bound", 0.722),
        ("cpu-bound", 0.278),
    ]


@pytest.mark.parametrize(("end", "is_cause"), [(923, False), (922, True)])
def test_waits_for_a_gpu_that_is_at_work_cost_nothing(end: int, is_cause: bool, tmp_path: Path) -> None:
    """20 us before the first kernel, 2 between, 77 or 78 after the last."""
    found = stage_of(diagnosed(tmp_path, waits((20, 330), (331, 640), (641, end))))
    assert found.verdict.verdict is Verdict.GPU_BOUND
    assert (Verdict.SYNCHRONIZATION_BOUND.value in {cause.code for cause in found.causes}) is is_cause
