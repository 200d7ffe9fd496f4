"""The segment table: what threads do in stages, from events and samples; times in ms, by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.segments import Segments, Sums, paint, sample_times
from perfharness.model import nsys_schema as schema
from perfharness.model.activity import ACTIVITIES
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.trace import open_trace
from tests.support.probe_builder import ProbeBuilder
from tests.unit.recorded_traces import MS, Recorded

STACK = ("nap@/app/main.py:12", "main@/app/main.py:3")
COMPILER = ("visit@/usr/lib/site-packages/torch/_dynamo/convert_frame.py:9", *STACK)


class Made(Recorded):
    """A batch of 100 ms: `decode` from 0 to 40, `infer` from 40 to 90."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = ProbeBuilder()
        self.batch(0, 0, 100)
        self.stage("decode", 0, 40)
        self.stage("infer", 40, 90)

    def os_call(self, name: str, start: float, end: float, tid: int = 100) -> None:
        self.row(
            "OSRT_API",
            start=int(start * MS),
            end=int(end * MS),
            globalTid=schema.global_tid(100, tid),
            nameId=self.string(name),
        )

    def cuda(self, name: str, start: float, end: float, tid: int = 100) -> int:
        return self.call(name, int(start * MS), int(end * MS), tid=tid)

    def kernel_at(self, call: float, start: float, end: float, tid: int = 100) -> None:
        self.kernel((int(call * MS), int((call + 1) * MS)), (int(start * MS), int(end * MS)), name="gemm", tid=tid)

    def wait_for_lock(self, start: float, end: float) -> None:
        self.range("Waiting for GIL", int(start * MS), int(end * MS), domain="GIL Trace")

    def collection(self, start: float, end: float) -> None:
        self.probe.sample(int(start * MS), state=HostState.UNKNOWN)
        self.probe.event(HostEventKind.COLLECTION, int(start * MS), int(end * MS))

    def sampled(self, start: float, end: float, state: HostState, **facts: object) -> None:
        facts.setdefault("stage", ("toy", "batch", "decode"))
        self.probe.samples(int(start * MS), int(end * MS), facts.pop("stack", STACK), state=state, **facts)  # type: ignore[arg-type]

    def analysis(self, folder: Path) -> Analysis:
        probe = self.probe.build() if self.probe.has_samples else None
        return Analysis(open_trace(self.write(folder / "t.sqlite")), host_probe=probe)


def ms(analysis: Analysis, segments: Segments, sums: Sums) -> dict[str, float]:
    """By stage and activity, and what it was."""
    found = {}
    for at in range(len(sums)):
        keys = {name: int(column[at]) for name, column in sums.keys.items()}
        parts = [analysis.stages.paths.names(keys["stage"])[-1], ACTIVITIES[keys["activity"]].value]
        parts += [segments.names[keys[name]] for name in ("name", "gpu") if keys.get(name, -1) >= 0]
        found[" ".join(parts)] = float(sums.ns[at]) / MS
    return found


def nothing(made: Made) -> None:
    pass


def os_calls(made: Made) -> None:
    made.os_call("read", 5, 35)
    made.os_call("pthread_mutex_lock", 10, 20)  # inside of the other
    made.os_call("recv", 80, 95)
    made.os_call("read", 50, 60, tid=101)  # another thread's


def lock_in_a_wait(made: Made) -> None:
    made.os_call("read", 5, 35)
    made.wait_for_lock(30, 38)


def cuda_calls(made: Made) -> None:
    made.os_call("read", 42, 60)
    made.cuda("cudaMalloc_v3020", 50, 55)
    made.cuda("cuMemAlloc_v2", 52, 54)  # a call in a call
    made.collection(53, 53.5)


def waits_for_own_kernel(made: Made) -> None:
    made.kernel_at(41, 45, 70)
    made.cuda("cudaStreamSynchronize_v3020", 50, 80)


def waits_for_others_work(made: Made) -> None:
    made.kernel_at(1, 52, 60, tid=101)
    made.cuda("cudaStreamSynchronize_v3020", 50, 80)


def without_calls_that_wait(made: Made) -> None:
    made.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
    made.kernel_at(41, 45, 70)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (nothing, {"decode unknown": 40, "infer unknown": 50, "batch unknown": 10}),
        (
            os_calls,
            {
                "decode unknown": 10, "decode file": 20, "decode lock": 10,
                "infer unknown": 40, "infer network": 10, "batch network": 5, "batch unknown": 5,
            },
        ),
        (
            lock_in_a_wait,
            {"decode unknown": 7, "decode file": 25, "decode gil": 8, "infer unknown": 50, "batch unknown": 10},
        ),
        (
            cuda_calls,
            {
                "decode unknown": 40, "infer unknown": 32, "infer file": 13, "infer alloc cudaMalloc": 3,
                "infer alloc cuMemAlloc": 1.5, "infer gc": 0.5, "batch unknown": 10,
            },
        ),
        (
            waits_for_own_kernel,
            {
                "decode unknown": 40, "infer unknown": 19, "infer launch": 1,
                "infer sync gemm": 20, "infer sync": 10, "batch unknown": 10,
            },
        ),
        (
            without_calls_that_wait,
            {
                "decode unknown": 40, "infer unknown": 24, "infer launch": 1, "infer unknown gemm": 25,
                "batch unknown": 10,
            },
        ),
        (
            waits_for_others_work,
            {
                "decode unknown": 40, "infer unknown": 20, "infer sync": 22,
                "infer sync GPU work of others": 8, "batch unknown": 10,
            },
        ),
    ],
)  # fmt: skip
def test_what_a_thread_does_in_its_stages(
    tmp_path: Path, plant: Callable[[Made], None], expected: dict[str, float]
) -> None:
    made = Made()
    plant(made)
    analysis = made.analysis(tmp_path)
    segments = paint(analysis)
    assert ms(analysis, segments, segments.sum_by("stage", "activity", "name", "gpu")) == pytest.approx(expected)


def sleeps(made: Made) -> None:
    made.sampled(0, 20, HostState.SLEEP)
    made.sampled(20, 40, HostState.RUNNING)


def runs_and_waits_for_a_cpu(made: Made) -> None:
    made.sampled(0, 40, HostState.RUNNABLE, on_cpu_ns=250_000, runnable_ns=750_000)


def in_a_known_wait(made: Made) -> None:
    made.os_call("read", 0, 20)
    made.sampled(0, 40, HostState.LOCK)


def compiles(made: Made) -> None:
    made.sampled(0, 40, HostState.RUNNING, stack=COMPILER)


def late(made: Made) -> None:
    """Read 40 us after the stage had ended, by its clock; the recorder's stack knows the stage."""
    made.sampled(0, 39, HostState.SLEEP)
    made.probe.sample(int(40.04 * MS), STACK, stage=("toy", "batch", "decode"), state=HostState.FILE)


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (sleeps, {"sleep": 20, "compute": 20}),
        (runs_and_waits_for_a_cpu, {"compute": 10, "no-cpu": 30}),
        (in_a_known_wait, {"lock": 20}),
        (compiles, {"compile": 40}),
        (late, {"sleep": 39, "file": 1}),
    ],
)
def test_samples_show_what_is_unknown(
    tmp_path: Path, plant: Callable[[Made], None], expected: dict[str, float]
) -> None:
    made = Made()
    plant(made)
    analysis = made.analysis(tmp_path)
    times = sample_times(analysis, paint(analysis))
    assert times is not None
    sums = times.where(~times.is_recorded).sum_by("activity")
    names = [ACTIVITIES[code].value for code in sums.keys["activity"].tolist()]
    assert dict(zip(names, (sums.ns / MS).tolist(), strict=True)) == pytest.approx(expected)
    assert sums.samples.sum() == pytest.approx(sum(expected.values()))


def test_the_line_of_a_recorded_wait_is_that_of_its_samples(tmp_path: Path) -> None:
    made = Made()
    in_a_known_wait(made)
    analysis = made.analysis(tmp_path)
    times = sample_times(analysis, paint(analysis))
    assert times is not None
    found = times.sum_by("activity", "line")
    lines = [times.lines[line] for line in found.keys["line"].tolist()]
    assert [(one.function, one.line) for one in lines] == [("nap", 12)] * 2
    assert found.samples.tolist() == [20, 20]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_segments_add_up_to_the_ranges(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is nested, overlaps, or reaches over the ends of ranges."""
    made, moments = Recorded(), st.integers(0, 60)

    def stretch() -> tuple[int, int]:
        first, last = sorted((data.draw(moments), data.draw(moments)))
        return first, last

    for index in range(4):
        at, length = 50 * index, data.draw(st.integers(0, 40))
        made.batch(index, at, at + length, tid=data.draw(st.sampled_from([100, 101])))
        for _ in range(data.draw(st.integers(0, 3))):
            begin, end = stretch()
            made.stage(data.draw(st.sampled_from("ab")), at + min(begin, length), at + min(end, length))
        for _ in range(data.draw(st.integers(0, 4))):
            begin, end = stretch()
            name = data.draw(st.sampled_from(["cudaStreamSynchronize", "cudaMalloc", "cudaLaunchKernel"]))
            correlation = made.call(name, (at + begin) * MS, (at + end) * MS)
            if name == "cudaLaunchKernel":
                first, last = stretch()
                made.operation((at + first) * MS, (at + last) * MS, correlation)
    analysis = Analysis(open_trace(made.write(tmp_path_factory.mktemp("h") / "t.sqlite")))
    stages = analysis.stages
    length_ns = stages.end_ns - stages.start_ns
    segments = paint(analysis)
    assert (segments.end_ns > segments.start_ns).all()
    assert int(segments.sum_by("thread").ns.sum()) == int(length_ns[np.asarray(stages.parent) < 0].sum())
    batches = analysis.stage_times.outermost_batches()
    by_batch = paint(analysis, batches).sum_by("batch")
    found = dict(zip(by_batch.keys["batch"].tolist(), by_batch.ns.astype(int).tolist(), strict=True))
    assert found == {row: ns for row, ns in zip(batches.tolist(), length_ns[batches].tolist(), strict=True) if ns}
