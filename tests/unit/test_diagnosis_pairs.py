"""Each verdict at its threshold: a stage of 1 ms that just gets it, and the same less one microsecond, which does not.

All figures are reckoned by hand from the microseconds that stand here; the evidence must say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import ALONE, OtherProcesses, diagnose
from perfharness.analysis.timeline import BusyLine
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import StageVerdict, Verdict
from perfharness.model.trace import CopyKind
from perfharness.testing.trace_builder import TraceBuilder
from perfharness.trace import open_trace

US = 1000
BATCH = 1000 * US
BATCHES = 12


@dataclass(frozen=True)
class Batch:
    """One batch of a trace being made; times in us from its begin."""

    builder: TraceBuilder
    begin: int

    def at(self, us: float) -> int:
        return self.begin + int(us * US)

    def kernel(self, call: float, first: float, last: float, stream: int = 7) -> None:
        self.builder.kernel((self.at(call), self.at(call + 4)), (self.at(first), self.at(last)), stream=stream)

    def call(self, name: str, first: float, last: float) -> int:
        return self.builder.call(name, self.at(first), self.at(last))

    def upload(self, call: float, first: float, last: float) -> None:
        correlation = self.call("cudaMemcpyAsync_v3020", call, call + 4)
        self.builder.operation(
            self.at(first), self.at(last), correlation, table=schema.TABLE_MEMCPY, bytes=1_000_000, stream=8,
            copyKind=CopyKind.HOST_TO_DEVICE, srcKind=1, dstKind=2,
        )  # fmt: skip

    def os_call(self, name: str, first: float, last: float) -> None:
        self.builder.row(
            "OSRT_API", start=self.at(first), end=self.at(last), globalTid=schema.global_tid(100, 100),
            nameId=self.builder.string(name),
        )  # fmt: skip


Content = Callable[[Batch], None]


def gpu(last: float) -> Content:
    return lambda batch: batch.kernel(10, 20, last)


def transfer(last: float) -> Content:
    return lambda batch: batch.upload(10, 20, last)


def transfer_beside_a_kernel(last: float) -> Content:
    def content(batch: Batch) -> None:
        batch.upload(10, 20, 420)
        batch.kernel(14, 419, last)

    return content


def launches(count: int, apart: float = 10) -> Content:
    """So many launches of 4 us, `apart` from start to start; each kernel takes 2 us."""

    def content(batch: Batch) -> None:
        for number in range(count):
            at = 10 + number * apart
            batch.kernel(at, at + 5, at + 7)

    return content


def three_waits(last: float) -> Content:
    """Three waits while the stage's own kernels run; the third ends at `last`."""

    def content(batch: Batch) -> None:
        for first, end in ((100.0, 200.0), (400.0, 500.0), (700.0, last)):
            batch.kernel(first - 10, first, end)
            batch.call("cudaStreamSynchronize_v3020", first, end)

    return content


def two_waits(batch: Batch) -> None:
    for first, last in ((100, 300), (500, 700)):
        batch.kernel(first - 10, first, last)
        batch.call("cudaStreamSynchronize_v3020", first, last)


def one_call(name: str, last: float, first: float = 0) -> Content:
    def content(batch: Batch) -> None:
        batch.call(name, first, last)

    return content


def system(name: str, last: float) -> Content:
    return lambda batch: batch.os_call(name, 100, last)


def elsewhere(last: float) -> Content:
    """The GPU works on what the range before the stage started, while the stage waits for it from 500 to `last`."""

    def content(batch: Batch) -> None:
        batch.builder.range("before", batch.at(-60), batch.at(-20))
        batch.kernel(-50, 500, last)
        batch.call("cudaDeviceSynchronize_v3020", 500, last)

    return content


PAIRS: dict[str, tuple[Verdict, Content, str, Content]] = {
    # 600 us of 1000 on the GPU
    "gpu": (Verdict.GPU_BOUND, gpu(620), "at work on it 60 % of the time (", gpu(619)),
    "copy": (
        Verdict.COPY_BOUND,
        transfer(420),
        "Copies without a concurrent kernel take 40 % of its time",
        transfer(419),
    ),
    # 400 us of copy, of which the last has a kernel beside it
    "copy beside a kernel": (
        Verdict.COPY_BOUND,
        transfer_beside_a_kernel(419),
        "take 40 % of its time",
        transfer_beside_a_kernel(420),
    ),
    # 50 distances of 10 us and one call of 4: 504; 49 of them: 494
    "launch": (
        Verdict.LAUNCH_BOUND,
        launches(51),
        "Launching takes 50 % of its host time; the GPU is idle for 90 %",
        launches(50),
    ),
    # 21 launches 25 us apart are one path of 504 us; 26 us apart they are not, and take 84
    "launch apart": (
        Verdict.LAUNCH_BOUND,
        launches(21, 25),
        "an operation takes it 2.0 us on average",
        launches(21, 26),
    ),
    "three waits": (
        Verdict.SYNCHRONIZATION_BOUND,
        three_waits(800),
        "take 30 % of its host time; the GPU is idle for 70 %",
        three_waits(799),
    ),
    # two waits of 200 us hand something over; three make host and GPU take turns
    "two waits": (Verdict.SYNCHRONIZATION_BOUND, three_waits(900), "take 40 % of its host time", two_waits),
    "idle wait": (
        Verdict.SYNCHRONIZATION_BOUND,
        one_call("cudaDeviceSynchronize_v3020", 300),
        "the GPU is idle for 100 %",
        one_call("cudaDeviceSynchronize_v3020", 299),
    ),
    "allocating": (
        Verdict.SYNCHRONIZATION_BOUND,
        one_call("cudaMalloc_v3020", 300),
        "Allocating and freeing, which synchronise, take 30 %",
        one_call("cudaMalloc_v3020", 299),
    ),
    "cpu": (
        Verdict.CPU_BOUND,
        one_call("cudaEventRecord_v3020", 500),
        "50 % of its host time is outside of CUDA calls",
        one_call("cudaEventRecord_v3020", 501),
    ),
    "cannot tell": (
        Verdict.CANNOT_TELL,
        one_call("cudaEventRecord_v3020", 501),
        "outside of CUDA 50 %.",
        one_call("cudaEventRecord_v3020", 500),
    ),
    "stage": (
        Verdict.WAITING_ON_STAGE,
        elsewhere(900),
        "40 % of its time passes while the GPU works on what 'before' started",
        elsewhere(899),
    ),
    "loading": (
        Verdict.FIRST_USE,
        one_call("cuLibraryLoadData", 100),
        "Loading modules and kernels takes 10 % of its host time",
        one_call("cuLibraryLoadData", 99),
    ),
    "sleep": (
        Verdict.WAITING_ON_SYSTEM,
        system("clock_nanosleep", 600),
        "50 % of its host time: sleeping 50 %.",
        system("clock_nanosleep", 599),
    ),
    "child": (
        Verdict.WAITING_ON_PROCESS,
        system("waitpid", 600),
        "other processes' ends 50 %.",
        system("waitpid", 599),
    ),
}


def judged(content: Content, path: Path, others: OtherProcesses = ALONE) -> StageVerdict:
    builder = TraceBuilder()
    for index in range(BATCHES):
        begin = 2 * (index + 1) * BATCH
        builder.range(f"batch_{index}", begin - 100 * US, begin + BATCH)
        builder.range("stage", begin, begin + BATCH)
        content(Batch(builder, begin))
    trace = open_trace(builder.write(path / "t.sqlite"))
    found = diagnose(Analysis(trace), others).stages
    return next(stage.verdict for stage in found if stage.path[-1] == "stage")


@pytest.mark.parametrize("name", PAIRS)
def test_a_microsecond_makes_the_verdict_and_takes_it_away(name: str, tmp_path: Path) -> None:
    verdict, provokes, evidence, does_not = PAIRS[name]
    found = judged(provokes, tmp_path)
    assert (found.verdict, evidence in " ".join(found.evidence)) == (verdict, True), found
    assert found.next_step
    assert judged(does_not, tmp_path).verdict is not verdict


@pytest.mark.parametrize(("last", "verdict"), [(320, Verdict.WAITING_ON_PROCESS), (319, Verdict.CPU_BOUND)])
def test_another_process_beside_the_stages_own_work(last: int, verdict: Verdict, tmp_path: Path) -> None:
    begins = 2 * np.arange(1, BATCHES + 1) * BATCH
    others = OtherProcesses(BusyLine(begins - 500 * US, begins + last * US), 1)
    found = judged(gpu(500), tmp_path, others)  # own work from 20 on
    assert found.verdict is verdict
    if verdict is Verdict.WAITING_ON_PROCESS:
        assert "During 30 % of its time another process was at work" in found.evidence[0]


def test_every_verdict_has_a_pair() -> None:
    assert {verdict for verdict, *_ in PAIRS.values()} == set(Verdict)
