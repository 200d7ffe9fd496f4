"""The fourteen causes: made traces and samples -> cause and dominant figure; the same less a little -> another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import (
    CpuSupply,
    OtherProcesses,
    Pass,
    advise,
    diagnose,
    find_evidence,
    unexplained,
    with_rank_delays,
)
from perfharness.analysis.ranks.results import RankDelay
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Code, Diagnosis, StageDiagnosis
from perfharness.model.host_samples import HostEventKind, HostState
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
    made_analysis,
)
from tests.support.trace_builder import TraceBuilder

APP = "/app/main.py"
WORK, WAIT = (f"work@{APP}:7", f"main@{APP}:3"), (f"wait@{APP}:9", f"main@{APP}:3")
LOADER = ("_try_get_data@/usr/lib/site-packages/torch/utils/data/dataloader.py:1100", *WAIT)
COMPILER = ("_compile@/usr/lib/site-packages/torch/_dynamo/convert_frame.py:9", *WORK)
IMPORT = ("exec_module@<frozen importlib._bootstrap_external>:995", *WORK)


def causes_of(path: Path, content: Content, stage: str = "stage", **more: Any) -> StageDiagnosis:
    return stage_of(diagnose(find_evidence(Pass(made(path, content, **more)))), stage)


def made(path: Path, content: Content, **more: Any) -> Analysis:
    facts: dict[str, Any] = {"batch": (-100.0, 1000.0), "apart": 2} | more
    return made_analysis(path, content, **facts)


def stage_of(causes: Diagnosis, name: str = "stage") -> StageDiagnosis:
    return next(one for one in causes.stages if one.path[-1] == name)


def gpu(last: float) -> Content:
    return lambda batch: batch.kernel(10, 20, last)


def outlasting(last: float) -> Content:
    """The host part takes 100 us, the kernel longer; it begins late, behind other work."""

    def content(batch: Batch) -> None:
        batch.range("issue", 0, 100)
        batch.kernel(10, 500, last)

    return content


def transfer(last: float, *, pageable: bool = False) -> Content:
    return lambda batch: batch.copy((10, 14), (20, last), pageable=pageable, stream=8)


def launches(count: int) -> Content:
    """So many launches of 4 us, 10 us from start to start; each kernel takes 2 us."""

    def content(batch: Batch) -> None:
        for at in range(10, 10 + 10 * count, 10):
            batch.launch((at, at + 4), (at + 5, at + 7))

    return content


def copies(count: int, call: float) -> Content:
    """So many copies of 1 kB from pinned memory, with 4 us of the host before each; and a launch."""

    def content(batch: Batch) -> None:
        for number in range(count):
            at = 4 + number * (call + 4)
            batch.copy((at, at + call), (at + 5, at + 6), pageable=False, size=1000)
        batch.kernel(900, 910, 912)

    return content


def values(count: int, each: float) -> Content:
    """So many values that the host reads: a copy of 5 us, and a wait for the rest."""

    def content(batch: Batch) -> None:
        for at in range(10, 10 + 240 * count, 240):
            batch.copy((at, at + 5), (at + 40, at + 41), kind=CopyKind.DEVICE_TO_HOST, pageable=False, size=4)
            batch.call(SYNCHRONIZE, at + 5, at + each)

    return content


def one_call(name: str, last: float) -> Content:
    def content(batch: Batch) -> None:
        batch.call(name, 0, last)

    return content


def system(name: str, last: float) -> Content:
    return lambda batch: batch.os_call(name, 100, last)


def elsewhere(last: float) -> Content:
    """The GPU works on what the range before the stage started, while the stage waits for it from 500 to `last`."""

    def content(batch: Batch) -> None:
        batch.range("before", -60, -20)
        batch.kernel(-50, 500, last)
        batch.call(DEVICE_SYNCHRONIZE, 500, last)

    return content


def captures(last: float) -> Content:
    """A CUDA graph is captured and made."""

    def content(batch: Batch) -> None:
        batch.call("cudaStreamBeginCapture_v10000", 100, 101)
        batch.call("cudaStreamEndCapture_v10000", last - 3, last - 2)
        batch.call("cudaGraphInstantiateWithFlags_v11040", last - 2, last)

    return content


def read_by_a_helper(count: int) -> Content:
    """A lock, while a library's thread reads so many values from the GPU; and a launch."""

    def content(batch: Batch) -> None:
        states((300, HostState.LOCK))(batch)
        for at in range(10, 10 + 20 * count, 20):
            batch.copy((at, at + 2), (at + 3, at + 4), kind=CopyKind.DEVICE_TO_HOST, size=4, tid=WORKER)
        batch.kernel(900, 905, 906)

    return content


def states(*parts: tuple[float, HostState], stack: tuple[str, ...] = WAIT) -> Content:
    """So many microseconds in each state, by samples; the rest computes in `work`."""

    def content(batch: Batch) -> None:
        at = 0.0
        for us, state in parts:
            batch.sampled(at, at + us, *stack, state=state)
            at += us
        batch.sampled(at, 1000, *WORK)

    return content


def on_stack(us: float, stack: tuple[str, ...]) -> Content:
    return states((us, HostState.RUNNING), stack=stack)


def collects(us: float) -> Content:
    def content(batch: Batch) -> None:
        batch.sampled(0, 1000, *WORK)
        batch.event(HostEventKind.COLLECTION, 100, 100 + us)

    return content


def crowded(us: float) -> Content:
    """Ready without a CPU while the process has more threads than CPUs."""

    def content(batch: Batch) -> None:
        states((us, HostState.RUNNABLE))(batch)
        batch.event(HostEventKind.CPU_CONTENTION, 0, us, 2)

    return content


def waits_for_a_thread(us: float, state: HostState = HostState.RUNNING) -> Content:
    """A lock, while a thread of the process is in `prepare` and in this state; `wait` is crowded meanwhile."""

    def content(batch: Batch) -> None:
        states((us, HostState.LOCK))(batch)
        stack = (f"prepare@{APP}:40",)
        batch.probe.samples(batch.at(0), batch.at(us), stack, state=state, tid=WORKER)
        batch.event(HostEventKind.CPU_CONTENTION, 0, us, 2)

    return content


def holds_the_lock(us: float) -> Content:
    def content(batch: Batch) -> None:
        batch.sampled(0, us, *WAIT, state=HostState.GIL, holder=WORKER)
        batch.sampled(us, 1000, *WORK)
        batch.probe.samples(batch.at(0), batch.at(us), (f"prepare@{APP}:40",), tid=WORKER)

    return content


LOCK, SLEEP, FILE, SOCKET, PIPE = HostState.LOCK, HostState.SLEEP, HostState.FILE, HostState.SOCKET, HostState.PIPE
ROWS: dict[str, tuple[str, float, int | None, Content, Content]] = {
    # name: (cause, its share, the line, a trace that has it, one that has a little less of it)
    "gpu": ("gpu-bound:unknown", 0.6, None, gpu(620), gpu(619)),
    "copies without a kernel": ("copy-bound", 0.4, None, transfer(420), transfer(419)),
    "pageable": ("copy-bound", 0.4, None, transfer(420, pageable=True), transfer(419, pageable=True)),
    "small copies": ("small-copies", 0.3, None, copies(10, 26), copies(10, 25.9)),
    "few copies": ("small-copies", 0.34, None, copies(10, 30), copies(9, 30)),
    "launches": ("launch-bound", 0.504, None, launches(50), launches(49)),
    "values": ("synchronization", 0.2, None, values(4, 50), values(4, 49.9)),
    "a wait": ("synchronization", 0.3, None, one_call(DEVICE_SYNCHRONIZE, 300), one_call(DEVICE_SYNCHRONIZE, 299)),
    "values read by a helper": ("synchronization", 0.3, 9, read_by_a_helper(3), read_by_a_helper(2)),
    "allocations": ("allocator-churn", 0.3, None, one_call("cudaMalloc", 300), one_call("cudaMalloc", 299)),
    "modules": ("compilation", 0.1, None, one_call("cuLibraryLoadData", 100), one_call("cuLibraryLoadData", 99)),
    "capture": ("compilation", 0.1, None, captures(200), captures(199)),
    "work of others": ("waiting:stage", 0.4, None, elsewhere(900), elsewhere(899)),
    "recorded wait": ("waiting:file", 0.3, None, system("fsync", 400), system("fsync", 399)),
    "compiler": ("compilation", 0.1, 7, on_stack(100, COMPILER), on_stack(50, COMPILER)),
    "import": ("compilation", 0.1, 7, on_stack(100, IMPORT), on_stack(50, IMPORT)),
    "collector": ("garbage-collection", 0.4, 7, collects(400), collects(140)),
    "interpreter lock": ("gil-contention", 0.4, 40, holds_the_lock(400), holds_the_lock(150)),
    "own threads": ("cpu-contention", 0.5, None, crowded(500), crowded(150)),
    "threads of a wait": (
        "cpu-contention", 0.6, None, waits_for_a_thread(600, HostState.RUNNABLE), waits_for_a_thread(600),
    ),
    "data loader": ("data-loader", 0.6, 9, states((600, LOCK), stack=LOADER), states((600, LOCK))),
    "lock": ("waiting:lock", 0.6, 9, states((600, LOCK)), states((250, LOCK))),
    "a thread's work": ("waiting:stage", 0.6, 9, waits_for_a_thread(600), states((600, LOCK))),
    "sleep": ("waiting:sleep", 0.6, 9, states((600, SLEEP)), states((250, SLEEP))),
    "file": ("waiting:file", 0.6, 9, states((600, FILE)), states((250, FILE))),
    "network": ("waiting:network", 0.6, 9, states((600, SOCKET)), states((250, SOCKET))),
    "process": ("waiting:process", 0.6, 9, states((600, PIPE)), states((250, PIPE))),
    "several waits": ("waiting:file", 0.6, 9, states((350, FILE), (250, SLEEP)), states((150, FILE), (100, SLEEP))),
    "computing": ("cpu-bound", 0.7, 7, states((150, SLEEP), (150, FILE)), states((550, SLEEP))),
    "nothing known": ("unknown", 1.0, None, lambda batch: None, states((250, SLEEP))),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_cause_and_its_figure(name: str, tmp_path: Path) -> None:
    said, share, line, has, has_less = ROWS[name]
    verdict = causes_of(tmp_path, has).verdict
    assert f"{verdict.code.value}{f':{verdict.detail}' if verdict.code in DETAILED else ''}" == said
    assert verdict.share == pytest.approx(share, abs=0.005)
    assert (None if verdict.place is None else verdict.place.line) == line
    assert verdict.step
    less = causes_of(tmp_path, has_less).verdict
    assert (less.code, less.detail) != (verdict.code, verdict.detail)


DETAILED = (Code.GPU_BOUND, Code.WAITING)


def test_every_cause_has_a_row() -> None:
    assert {said.partition(":")[0] for said, *_ in ROWS.values()} == {code.value for code in Code}


def test_a_short_host_part_is_judged_by_its_gpu_work(tmp_path: Path) -> None:
    """Case g04: 1.6 ms on the host, 9 ms on the GPU, behind other work."""
    stage = causes_of(tmp_path, outlasting(900), "issue", stages={})
    assert stage.verdict.code is Code.GPU_BOUND
    assert stage.verdict.share == pytest.approx(1.0)
    assert stage.gpu_busy_ms == pytest.approx(0.4)
    assert causes_of(tmp_path, outlasting(559), "issue", stages={}).verdict.code is not Code.GPU_BOUND


def test_loading_is_little_of_a_stage_whose_gpu_work_takes_longer(tmp_path: Path) -> None:
    """Case g12: 0.03 of 0.24 ms on the host, 16 ms on the GPU."""

    def content(batch: Batch) -> None:
        outlasting(900)(batch)
        batch.call("cuLibraryLoadData", 30, 45)

    assert causes_of(tmp_path, content, "issue", stages={}).verdict.code is Code.GPU_BOUND


def computes_meanwhile(batch: Batch) -> None:
    """The thread is on a CPU while the GPU does what the range before has started: it may wait for it."""
    batch.range("before", -60, -20)
    batch.kernel(-50, 500, 950)
    batch.kernel(960, 965, 966)
    batch.sampled(0, 1000, *WORK)


@pytest.mark.parametrize(
    ("content", "code", "alone"),
    [
        (computes_meanwhile, Code.CPU_BOUND, Code.UNKNOWN),
        (launches(60), Code.LAUNCH_BOUND, Code.UNKNOWN),
        (launches(90), Code.LAUNCH_BOUND, Code.LAUNCH_BOUND),
        (values(4, 50), Code.SYNCHRONIZATION, Code.SYNCHRONIZATION),
    ],
    ids=["computing", "some launches", "many launches", "values"],
)
def test_what_one_pass_does_not_record_is_unknown(content: Content, code: Code, alone: Code, tmp_path: Path) -> None:
    meta = {schema.META_TRACER_VERSION: "1", schema.META_CUDA_TRACED: "yes"}
    for calls, expected in (("yes", code), ("no", alone)):
        verdict = causes_of(tmp_path, content, meta={**meta, schema.META_ALL_CALLS: calls}).verdict
        assert verdict.code is expected
    if alone is Code.UNKNOWN:
        assert "--explain" in verdict.step
        assert (None if verdict.place is None else verdict.place.line) == (7 if code is Code.CPU_BOUND else None)


def test_nothing_is_said_of_gpu_work_that_the_trace_lost(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        launches(50)(batch)
        batch.builder.operation(batch.at(600), batch.at(900), 1_000_000 + batch.index, table=schema.TABLE_KERNEL)

    stage = causes_of(tmp_path, content)
    assert (stage.verdict.code, stage.gpu_busy_ms) == (Code.UNKNOWN, None)


def test_another_process_on_the_gpu(tmp_path: Path) -> None:
    begins = 2 * np.arange(1, 13) * BATCH
    others = OtherProcesses(BusyLine(begins - 500 * US, begins + 320 * US), 1)
    verdict = stage_of(diagnose(find_evidence(Pass(made(tmp_path, gpu(500)), others)))).verdict
    assert (verdict.code, verdict.detail) == (Code.WAITING, "process")
    assert verdict.share == pytest.approx(0.3)


def test_activities_add_up_and_further_causes_follow(tmp_path: Path) -> None:
    stage = causes_of(tmp_path, states((300, LOCK), (200, FILE), (300, HostState.GIL)))
    assert sum(stage.activities.values()) == pytest.approx(1.0)
    assert [cause.code for cause in stage.causes] == [Code.WAITING, Code.GIL_CONTENTION]
    assert stage.causes[0].saves_ms == pytest.approx(0.5)


def test_few_samples_say_nothing_of_a_stage(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        if batch.index < 4:
            batch.sampled(0, 100, *WAIT, state=LOCK)  # two in each batch

    stage = causes_of(tmp_path, content)
    assert (stage.samples, stage.verdict.code) == (8, Code.UNKNOWN)
    assert "--explain" in stage.verdict.step


@pytest.mark.parametrize(
    ("processes", "threads", "detail"), [(2, 4.0, "siblings"), (1, 4.0, None), (2, 2.3, None), (2, None, None)]
)
def test_processes_of_a_launch_share_the_cpus(
    processes: int, threads: float | None, detail: str | None, tmp_path: Path
) -> None:
    analysis = made(tmp_path, states((500, HostState.RUNNABLE)))
    verdict = stage_of(diagnose(find_evidence(Pass(analysis, supply=CpuSupply(2, processes, threads))))).verdict
    assert verdict.detail == detail
    assert verdict.code is (Code.CPU_BOUND if detail is None else Code.CPU_CONTENTION)


def test_a_rare_stage_is_counted_over_all_batches(tmp_path: Path) -> None:
    """Case c47: 1500 ms once in 98 batches of 26 ms."""

    def content(batch: Batch) -> None:
        if batch.index == 5:
            batch.range("reload", 0, 600)

    stage = causes_of(tmp_path, content, "reload", stages={})
    assert stage.batches == 12
    assert stage.wall_ms == pytest.approx(0.05)


def test_times_are_of_the_measured_pass_and_shares_of_the_profiling_pass(tmp_path: Path) -> None:
    measured, profiling = made(tmp_path, gpu(30)), made(tmp_path, slower, batch=(-100.0, 1800.0), stages={})
    stage = stage_of(diagnose(find_evidence(Pass(measured)), find_evidence(Pass(profiling))))
    assert (stage.wall_ms, stage.slowdown) == pytest.approx((1.0, 1.5))
    assert stage.verdict.code is Code.WAITING
    assert (stage.verdict.share, stage.verdict.saves_ms) == pytest.approx((2 / 3, 2 / 3), abs=0.02)
    assert not stage.is_changed


def slower(batch: Batch) -> None:
    batch.range("stage", 0, 1500)
    batch.sampled(0, 1000, *WAIT, state=LOCK)
    batch.sampled(1000, 1500, *WORK)


def test_a_stage_that_is_another_part_of_its_batch_is_marked(tmp_path: Path) -> None:
    stages = {"stage": (0.0, 200.0)}
    measured, profiling = made(tmp_path, states(), stages=stages), made(tmp_path, states())
    stage = stage_of(diagnose(find_evidence(Pass(measured)), find_evidence(Pass(profiling))))
    assert (stage.is_changed, stage.verdict.code) == (True, Code.CPU_BOUND)


TREND = np.linspace(1.0, 2.5, 24)


@pytest.mark.parametrize(
    ("factors", "state", "finding"),
    [
        (np.ones(24), "enough", None),
        (np.r_[3.0, 3.0, 2.0, np.ones(21)], "too-short", "warmup-too-short"),
        (np.r_[0.5, 0.5, 0.5, np.ones(21)], "enough", None),  # a beginning that is faster is no warm-up
        (TREND, "never-steady", "never-steady"),
        (TREND[::-1], "never-steady", "never-steady"),
        (np.r_[1.0, 6.0, np.ones(22)], "enough", None),  # one outlier
    ],
    ids=["steady", "slow beginning", "fast beginning", "slower", "faster", "outlier"],
)
def test_the_beginning_and_the_drift_of_a_loop(
    factors: np.ndarray, state: str, finding: str | None, tmp_path: Path
) -> None:
    builder = TraceBuilder()
    for index, factor in enumerate(factors.tolist()):
        builder.range(f"batch_{index}", index * BATCH, index * BATCH + int(100 * US * factor))
    causes = diagnose(find_evidence(Pass(Analysis(open_trace(builder.write(tmp_path / "t.sqlite"))))))
    assert [one.state for one in causes.warmup] == [state]
    assert [one.code for one in causes.findings] == ([] if finding is None else [finding])


def test_advice_names_the_innermost_stage_and_savings_come_first(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.range("decode", 0, 400)
        batch.range("infer", 400, 900)
        batch.sampled(0, 400, *WORK)
        batch.sampled(400, 900, *WAIT, state=HostState.DRIVER)
        batch.kernel(405, 420, 890)
        batch.call(SYNCHRONIZE, 415, 895)

    causes = diagnose(find_evidence(Pass(made(tmp_path, content, stages={}))))
    advice = advise({"one": causes, "two": causes})
    assert [(one.path[-1], one.cause.code) for one in advice] == [
        ("decode", Code.CPU_BOUND), ("infer", Code.GPU_BOUND),
    ]  # fmt: skip
    assert advice[0].share == pytest.approx(0.4 / 1.1, abs=0.01)
    assert (advice[0].processes, advice[1].share) == (2, None)
    verdicts = {stage.path: stage.verdict for stage in causes.stages}
    assert all(verdicts[one.path] is one.cause for one in advice)
    assert unexplained({"one": causes}) == [one for one, verdict in verdicts.items() if verdict.code is Code.UNKNOWN]


def test_advice_on_the_work_comes_before_that_on_the_wait_for_it(tmp_path: Path) -> None:
    advice = advise({"one": diagnose(find_evidence(Pass(made(tmp_path, elsewhere(950)))))})
    assert [one.path[-1] for one in advice] == ["before", "stage"]


@pytest.mark.parametrize(
    ("process", "waited_ms", "detail", "share"),
    [("one", 0.5, "rank", 0.5), ("one", 0.2, "lock", 0.6), ("other", 0.5, "lock", 0.6)],
    ids=["waits", "hardly waits", "another process waits"],
)
def test_a_wait_for_a_late_rank(process: str, waited_ms: float, detail: str, share: float, tmp_path: Path) -> None:
    causes = diagnose(find_evidence(Pass(made(tmp_path, states((600, LOCK))))))
    delay = RankDelay(
        rank=3, process="late", at_stage=stage_of(causes).path, operation="all_reduce", call=None, batches=12,
        lag_ms=waited_ms, late_share=1.0, waiting_ms=waited_ms, waiting_by_process={process: waited_ms},
        saves_ms=0.4, batch_share=0.5, stage=("nvtx", "decode"), basis="host", between_batches=False, excess_ms=0.5,
        reason=None,
    )  # fmt: skip
    verdict = stage_of(with_rank_delays(causes, [delay], "one")).verdict
    assert (verdict.code, verdict.detail) == (Code.WAITING, detail)
    assert verdict.share == pytest.approx(share, abs=0.005)
