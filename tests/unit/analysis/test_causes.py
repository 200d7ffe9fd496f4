"""The fourteen causes: made traces and samples -> cause and dominant figure; the same less a little -> another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.diagnosis import CpuSupply, OtherProcesses, advise, unexplained, with_rank_delays
from perfharness.analysis.diagnosis.cpu_supply import CpuQuota
from perfharness.analysis.ranks.results import CallWait, RankDelay
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Code, StageDiagnosis
from tests.support.made_batches import BATCH, Batch, Content, diagnosed, stage_of
from tests.support.trace_builder import US

BATCHES: dict[str, Any] = {"batch": "-100..1000", "apart": 2}
BEGINS = 2 * np.arange(1, 13) * BATCH


def causes_of(path: Path, content: Content, stage: str = "stage", **more: Any) -> StageDiagnosis:
    return stage_of(diagnosed(path, content, **(BATCHES | more)), stage)


def then(us: float, state: str, stack: str = "wait") -> str:
    """So many microseconds in a state, by samples; the rest computes in `work`."""
    return f"{state}@{stack} 0..{us}; running@work {us}..1000"


D2H = "kind=D2H pageable=0 size=4"
LAST = "launch 900..904 -> 910..912"
COLLECTS = "running@work 0..1000; collects 100..{}"
CROWDED = "crowded 0..{0}; runnable@wait 0..{0}; running@work {0}..1000"
HOLDS = "gil@wait 0..{0} gil_holder=101; running@work {0}..1000; running@prepare 0..{0} tid=101"
HELPER = "lock@wait 0..300; running@work 300..1000; copy 10..12 -> 13..14 kind=D2H size=4 tid=101 x{}+20; " + LAST
THREAD = "lock@wait 0..600; running@work 600..1000; {}@prepare 0..600 tid=101; crowded 0..600"
CAPTURE = "cudaStreamBeginCapture 100..101; cudaStreamEndCapture {0}..{0}; cudaGraphInstantiateWithFlags {0}..{0}"
ELSEWHERE = "before -60..-20; launch -50..-46 -> 500..{0}; cudaDeviceSynchronize 500..{0}"

ROWS: dict[str, tuple[str, float, int | None, str, Any, Any]] = {
    # name: (cause, its share, the line, a trace, with what it has the cause, and with what it has another one)
    "gpu": ("gpu-bound:unknown", 0.6, None, "launch 10..14 -> 20..{}", 620, 619),
    "copies without a kernel": ("copy-bound", 0.4, None, "copy 10..14 -> 20..{} pageable=0 stream=8", 420, 419),
    "pageable": ("copy-bound", 0.4, None, "copy 10..14 -> 20..{} stream=8", 420, 419),
    "small copies": (
        "small-copies", 0.3, None, "copy 4..{0} -> 9..10 pageable=0 size=1000 x10+{1}; " + LAST, (30, 30), (29.9, 29.9),
    ),
    "few copies": ("small-copies", 0.34, None, "copy 4..34 -> 9..10 pageable=0 size=1000 x{}+34; " + LAST, 10, 9),
    "launches": ("launch-bound", 0.504, None, "launch 10..14 -> 15..17 x{}+10", 50, 49),
    "values": (
        "synchronization", 0.2, None,
        f"copy 10..15 -> 50..51 {D2H} x4+240; cudaStreamSynchronize 15..{{}} x4+240", 60, 59.9,
    ),
    "a wait": ("synchronization", 0.3, None, "cudaDeviceSynchronize 0..{}", 300, 299),
    "values read by a helper": ("synchronization", 0.3, 9, HELPER, 3, 2),
    "allocations": ("allocator-churn", 0.3, None, "cudaMalloc 0..{}", 300, 299),
    "modules": ("compilation", 0.1, None, "cuLibraryLoadData 0..{}", 100, 99),
    "capture": ("compilation", 0.1, None, CAPTURE, 200, 199),
    "work of others": ("waiting:stage", 0.4, None, ELSEWHERE, 900, 899),
    "recorded wait": ("waiting:file", 0.3, None, "os:fsync 100..{}", 400, 399),
    "compiler": ("compilation", 0.1, 7, "{}", then(100, "running", "compiler"), then(50, "running", "compiler")),
    "import": ("compilation", 0.1, 7, "{}", then(100, "running", "import"), then(50, "running", "import")),
    "collector": ("garbage-collection", 0.4, 7, COLLECTS, 500, 240),
    "interpreter lock": ("gil-contention", 0.4, 40, HOLDS, 400, 150),
    "own threads": ("cpu-contention", 0.5, None, CROWDED, 500, 150),
    "threads of a wait": ("cpu-contention", 0.6, None, THREAD, "runnable", "running"),
    "data loader": ("data-loader", 0.6, 9, "{}", then(600, "lock", "loader"), then(600, "lock")),
    "lock": ("waiting:lock", 0.6, 9, "{}", then(600, "lock"), then(250, "lock")),
    "a thread's work": ("waiting:stage", 0.6, 9, "{}", THREAD.format("running"), then(600, "lock")),
    "sleep": ("waiting:sleep", 0.6, 9, "{}", then(600, "sleep"), then(250, "sleep")),
    "file": ("waiting:file", 0.6, 9, "{}", then(600, "file"), then(250, "file")),
    "network": ("waiting:network", 0.6, 9, "{}", then(600, "socket"), then(250, "socket")),
    "process": ("waiting:process", 0.6, 9, "{}", then(600, "pipe"), then(250, "pipe")),
    "several waits": (
        "waiting:file", 0.6, 9, "file@wait 0..{0}; sleep@wait {0}..{1}; running@work {1}..1000", (350, 600), (150, 250),
    ),
    "computing": (
        "cpu-bound", 0.7, 7, "sleep@wait 0..{0}; file@wait {0}..{1}; running@work {1}..1000", (150, 300), (500, 550),
    ),
    "nothing known": ("unknown", 1.0, None, "{}", "", then(250, "sleep")),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_cause_and_its_figure(name: str, tmp_path: Path) -> None:
    said, share, line, text, *values = ROWS[name]
    has, less = (text.format(*(one if isinstance(one, tuple) else (one,))) for one in values)
    verdict, other = causes_of(tmp_path, has).verdict, causes_of(tmp_path, less).verdict
    assert (verdict.code.value, verdict.detail)[: said.count(":") + 1] == tuple(said.split(":"))
    assert verdict.share == pytest.approx(share, abs=0.005)
    assert (None if verdict.place is None else verdict.place.line) == line
    assert verdict.step
    assert (other.code, other.detail) != (verdict.code, verdict.detail)


def test_every_cause_has_a_row() -> None:
    assert {said.partition(":")[0] for said, *_ in ROWS.values()} == {code.value for code in Code}


LATE = "issue 0..100; launch 10..14 -> 500..{}"
"""The host part takes 100 us, the kernel longer; it begins late, behind other work."""


@pytest.mark.parametrize(
    ("last", "more", "is_gpu_bound"),
    [(900, "", True), (559, "", False), (900, "; cuLibraryLoadData 30..45", True)],
    ids=["case g04", "as long as the host part", "case g12: loads for a little"],
)
def test_a_short_host_part_is_judged_by_its_gpu_work(last: int, more: str, is_gpu_bound: bool, tmp_path: Path) -> None:
    stage = causes_of(tmp_path, LATE.format(last) + more, "issue", stages="")
    assert (stage.verdict.code is Code.GPU_BOUND) is is_gpu_bound
    assert stage.gpu_busy_ms == pytest.approx((last - 500) / 1000)
    assert not is_gpu_bound or stage.verdict.share == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "code", "alone", "line"),
    [
        # the thread is on a CPU while the GPU does what the range before has started: it may wait for it
        (
            f"before -60..-20; launch -50..-46 -> 500..950; {LAST.replace('90', '96')}; running@work 0..1000",
            Code.CPU_BOUND, Code.UNKNOWN, 7,
        ),
        ("launch 10..14 -> 15..17 x60+10", Code.LAUNCH_BOUND, Code.UNKNOWN, None),
        ("launch 10..14 -> 15..17 x90+10", Code.LAUNCH_BOUND, Code.LAUNCH_BOUND, None),
        (ROWS["values"][3].format(60), Code.SYNCHRONIZATION, Code.SYNCHRONIZATION, None),
    ],
    ids=["computing", "some launches", "many launches", "values"],
)  # fmt: skip
def test_what_one_pass_does_not_record_is_unknown(
    text: str, code: Code, alone: Code, line: int | None, tmp_path: Path
) -> None:
    meta = {schema.META_TRACER_VERSION: "1", schema.META_CUDA_TRACED: "yes"}
    for calls, expected in (("yes", code), ("no", alone)):
        verdict = causes_of(tmp_path, text, meta=meta | {schema.META_ALL_CALLS: calls}).verdict
        assert verdict.code is expected
    if alone is Code.UNKNOWN:
        assert "--explain" in verdict.step
        assert (None if verdict.place is None else verdict.place.line) == line


def lost(batch: Batch) -> None:
    batch.add("launch 10..14 -> 15..17 x50+10")
    batch.builder.operation(BATCH, BATCH + 300, 1_000_000 + batch.index)


def some_samples(batch: Batch) -> None:
    if batch.index < 4:
        batch.add("lock@wait 0..100")  # two in each batch


@pytest.mark.parametrize(("content", "samples"), [(lost, 0), (some_samples, 8)])
def test_too_little_is_known(content: Content, samples: int, tmp_path: Path) -> None:
    """The trace lost work of the GPU, or there are fewer than ten samples."""
    stage = causes_of(tmp_path, content)
    assert (stage.samples, stage.verdict.code) == (samples, Code.UNKNOWN)
    assert stage.gpu_busy_ms is None


def test_values_of_a_helper_are_of_no_stage_where_several_threads_have_stages(tmp_path: Path) -> None:
    found = causes_of(tmp_path, HELPER.format(3) + "; other 0..10 tid=102")
    assert Code.SYNCHRONIZATION not in [cause.code for cause in found.causes]


def cpu(cpus: int, processes: int, threads: float | None) -> dict[str, CpuSupply]:
    return {"supply": CpuSupply(cpus, processes, threads)}


def quota(lost_us: int) -> dict[str, CpuQuota]:
    return {"quota": CpuQuota(2.0, BEGINS, BEGINS + lost_us * US)}


def others(first_us: int, last_us: int) -> OtherProcesses:
    return OtherProcesses(BusyLine(BEGINS + first_us * US, BEGINS + last_us * US), 1)


OTHERS = others(-500, 320)


@pytest.mark.parametrize(
    ("text", "of_pass", "code", "detail", "share"),
    [
        ("launch 10..14 -> 20..500", {"others": OTHERS}, Code.WAITING, "process", 0.3),
        # of GPU work that takes longer than the stage itself
        ("launch 10..14 -> 20..1520", {"others": others(0, 770)}, Code.WAITING, "process", 0.5),
        # processes of a launch share the CPUs
        (then(500, "runnable"), cpu(2, 2, 4.0), Code.CPU_CONTENTION, "siblings", 0.5),
        (then(500, "runnable"), cpu(2, 1, 4.0), Code.CPU_BOUND, None, 0.5),
        (then(500, "runnable"), cpu(2, 2, 2.3), Code.CPU_BOUND, None, 0.5),
        (then(500, "runnable"), cpu(2, 2, None), Code.CPU_BOUND, None, 0.5),
        # ready without a CPU while a quota holds the process up; computing takes 0.5 to be the verdict, the quota 0.2
        (then(300, "runnable"), quota(300), Code.CPU_CONTENTION, "quota", 0.3),
        (then(250, "runnable"), quota(250), Code.CPU_BOUND, None, 0.75),
    ],
)
def test_what_others_have(
    text: str, of_pass: dict[str, Any], code: Code, detail: str | None, share: float, tmp_path: Path
) -> None:
    verdict = causes_of(tmp_path, text, **of_pass).verdict
    assert (verdict.code, verdict.detail) == (code, detail)
    assert verdict.share == pytest.approx(share, abs=0.005)


RUN = "running@run@/v/lib/python3.12/site-packages/onnxruntime/capi/session.py:9|work@a.py:7 0..1000"


@pytest.mark.parametrize(
    ("used_us", "of_pass", "has_more_threads", "load"),
    [
        (1000, cpu(2, 1, None), True, "50 %"),
        (1590, cpu(2, 1, None), True, "80 %"),
        (1650, cpu(2, 1, None), False, "82 %"),
        (1000, cpu(2, 2, None), False, "100 %"),  # the other process has as many threads
        (1700, cpu(8, 1, None) | quota(0), False, "85 %"),
        (None, cpu(2, 1, None), False, None),
        (1000, {}, False, None),
    ],
)
def test_more_threads_are_advised_while_cpus_are_free(
    used_us: int | None, of_pass: dict[str, Any], has_more_threads: bool, load: str | None, tmp_path: Path
) -> None:
    used = "" if used_us is None else f"; used -1000..1000 detail={2 * used_us}"
    verdict = causes_of(tmp_path, RUN + used, **of_pass).verdict
    assert verdict.code is Code.CPU_BOUND
    assert ("intra_op_num_threads" in verdict.step) is has_more_threads
    assert (f"{load} of the CPUs" in verdict.what) is (load is not None)


def test_activities_add_up_and_further_causes_follow(tmp_path: Path) -> None:
    stage = causes_of(tmp_path, "lock@wait 0..300; file@wait 300..500; gil@wait 500..800; running@work 800..1000")
    assert sum(stage.activities.values()) == pytest.approx(1.0)
    assert [cause.code for cause in stage.causes] == [Code.WAITING, Code.GIL_CONTENTION]
    assert stage.causes[0].saves_ms == pytest.approx(0.5)


def test_advice_names_the_innermost_stage_and_savings_come_first(tmp_path: Path) -> None:
    text = """
        decode 0..400; running@work 0..400
        infer 400..900; driver@wait 400..900; launch 405..409 -> 420..890; cudaStreamSynchronize 415..895
    """
    found = diagnosed(tmp_path, text, "", **BATCHES)
    advice = advise({"one": found, "two": found})
    assert [(one.path[-1], one.cause.code) for one in advice] == [("decode", Code.CPU_BOUND), ("infer", Code.GPU_BOUND)]
    assert advice[0].share == pytest.approx(0.4 / 1.1, abs=0.01)
    assert (advice[0].processes, advice[1].share) == (2, None)
    verdicts = {stage.path: stage.verdict for stage in found.stages}
    assert all(verdicts[one.path] is one.cause for one in advice)
    assert unexplained({"one": found}) == [one for one, verdict in verdicts.items() if verdict.code is Code.UNKNOWN]
    waits = advise({"one": diagnosed(tmp_path, ELSEWHERE.format(950), **BATCHES)})
    assert [one.path[-1] for one in waits] == ["before", "stage"], "the work before the wait for it"


@pytest.mark.parametrize(
    ("process", "waited_ms", "detail", "share"),
    [("one", 0.5, "rank", 0.5), ("one", 0.2, "lock", 0.6), ("other", 0.5, "lock", 0.6)],
    ids=["waits", "hardly waits", "another process waits"],
)
def test_a_wait_for_a_late_rank(process: str, waited_ms: float, detail: str, share: float, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, then(600, "lock"), **BATCHES)
    delay = RankDelay(
        rank=3, process="late", at_stage=stage_of(found).path, operation="all_reduce", batches=12,
        lag_ms=waited_ms, late_share=1.0, waiting_ms=waited_ms, waiting_by_process={process: waited_ms},
        calls=[CallWait(process, stage_of(found).path, waited_ms)],
        saves_ms=0.4, batch_share=0.5, stage=("nvtx", "decode"), basis="host", between_batches=False, excess_ms=0.5,
        reason=None,
    )  # fmt: skip
    verdict = stage_of(with_rank_delays(found, [delay], "one")).verdict
    assert (verdict.code, verdict.detail) == (Code.WAITING, detail)
    assert verdict.share == pytest.approx(share, abs=0.005)
