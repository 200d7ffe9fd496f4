"""Everything that is known of a stage stands in JSON and on the terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from perfharness.model.diagnosis import (
    Cause,
    CopyGroup,
    Diagnosis,
    FunctionTime,
    GpuDuringStage,
    GpuLimit,
    GpuLimits,
    KernelGroup,
    KernelKind,
    OccupancyLimiter,
    StageCost,
    StageDiagnosis,
    StageVerdict,
    Verdict,
    Wait,
    rounded,
)
from perfharness.model.trace import GpuDevice
from perfharness.render.terminal.diagnosis import print_diagnosis
from tests.schemas import valid
from tests.support.diagnosis_builder import gpu_work, host_work

LIMITS = GpuLimits(
    limit=GpuLimit.MEMORY, basis="bandwidth", work_ms=7.001, by_name_ms={"memory": 7.002, "matrix": 0.0},
    underfilled_ms=7.003, short_ms=7.004, tail_ms=7.005, moved_gb_per_s=4001.0, moved_peak_share=0.83, at_peak_ms=7.006,
    evidence=[], missing=[],
)  # fmt: skip
KERNEL = KernelGroup(
    name="add_kernel", gpu=1, kind=KernelKind.MEMORY, grid=(11, 12, 1), block=(128, 1, 1), registers=33,
    shared_bytes=1024, waves=1.25, occupancy=0.62, limiter=OccupancyLimiter.REGISTERS, count=3.0, time_ms=1.5,
    mean_us=500.1, share=0.71,
)  # fmt: skip
GPU = gpu_work(
    kernel_count=3.1, kernel_time_ms=2.101, kernel_share=0.77, top_kernels=[KERNEL], memset_count=4.1,
    memset_time_ms=2.102, memset_bytes=5_100_000.0, graph_launch_count=5.1, graph_time_ms=2.103, busy_ms=2.104,
    projected_ms=2.105, operation_time_ms=2.106, streams=6, stream_overlap_ms=2.107, copy_with_compute_ms=2.108,
    shared_with_processes_ms=2.109, limits=LIMITS,
    copies=[
        CopyGroup("host-to-device", 0, None, None, "pageable", 7.1, 8_200_000.0, 3.301, 26.4),
        CopyGroup("peer-to-peer", 0, 0, 1, None, 1.0, None, 3.302, None),
    ],
)  # fmt: skip
HOST = host_work(
    activity_ms={"launch": 4.101, "allocate": 4.102, "load": None, "outside": 4.103},
    calls={"launch": 9.1, "load": None},
    blocking_calls=8.1, blocking_ms=4.104, blocked_ms={"lock": 4.105, "sleep": 4.106}, launch_latency_us=11.1,
    queueing_us=12.1, longest_waits=[Wait("cudaStreamSynchronize", 4.107, 5, "add_kernel", "infer", 0.9)],
)  # fmt: skip
DURING = GpuDuringStage(1, 5.101, 5.102, 5.103, 6.1, 7.5, 5.104, {"launch": 5.105, "outside": 5.106})
STAGE = StageDiagnosis(
    ("nvtx", "batch", "stage"), 10, 40, 6.101, 1.525, 0.526, 0.775, GPU, [DURING], HOST,
    StageVerdict(Verdict.GPU_BOUND, ["the evidence"], "the next step", ["the missing"], GpuLimit.MEMORY),
    StageCost(6.201, 6.202, 0.34),
)  # fmt: skip
DIAGNOSIS = Diagnosis([STAGE], [], ["what is not known"], [], [GpuDevice(1, 0, "A GPU"), GpuDevice(1, 1, "B GPU")])

SAID = [
    "gpu-bound (memory)", "the evidence", "next: the next step", "missing: the missing", "not known: what is not known",
    "10 batches, 40 items; CPU 1.525 ms an item", "6.202 ms instead of 6.201",
    "busy 2.104 ms, from first to last 2.105", "3.1 kernels (2.101 ms, 77 % of", "4.1 memsets (2.102 ms, 5.100 MB)",
    "5.1 graph launches (2.103 ms) on 6 streams", "2.107 ms of its operations", "2.108 ms of copies during kernels",
    "2.109 ms shared with other processes", "71 %  3.0 x 500.1 us  add_kernel  grid 11x12x1 block 128x1x1",
    "memory; 1.25 waves, occupancy at most 62 %, by registers", "limited by: memory, according to bandwidth (7.001 ms",
    "memory 7.002", "underfilled 7.003", "short kernels 7.004", "last waves 7.005", "4001 GB/s, 83 %",
    "copy host-to-device, pageable: 7.1 (3.301 ms), 8.200 MB, 26.4 GB/s",
    "copy peer-to-peer GPU 0 to GPU 1, no host memory: 1.0 (3.302 ms), ? MB, ? GB/s",
    "GPU 1 while the host was in it: busy 5.101 ms, idle 5.103 ms in 6.1 gaps (the longest 5.104 ms)",
    "launch 5.105, outside 5.106", "launch 4.101 (9.1 calls), allocate 4.102, load -, outside 4.103",
    "blocking: 8.1 calls, 4.104 ms", "lock 4.105, sleep 4.106",
    "launch latency 11.1 us (median), queueing 12.1 us (mean)",
    "4.107 ms in cudaStreamSynchronize in batch 5: waited for add_kernel of 'infer'",
]  # fmt: skip


def printed(diagnosis: Diagnosis, name: str | None) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    print_diagnosis(console, "proc", diagnosis, name)
    return console.export_text()


@pytest.mark.parametrize("part", SAID)
def test_the_terminal_says_all_of_one_stage(part: str) -> None:
    assert part in printed(DIAGNOSIS, "stage")


def test_small_figures_keep_their_digits() -> None:
    """A time of an item may be less than a nanosecond."""
    assert rounded({"ms": [1.2345678e-6, 12.3456789, 0.0], "count": 3}) == {
        "ms": [1.23457e-6, 12.345679, 0.0],
        "count": 3,
    }


def test_the_table_alone_is_short() -> None:
    said = printed(DIAGNOSIS, None)
    assert "the evidence" in said
    assert "add_kernel" not in said


def test_what_is_not_known_is_printed_as_such() -> None:
    bare = replace(STAGE, gpu=None, gpu_during=[], host=None, cost=StageCost(None, None, None, "several threads"))
    said = printed(Diagnosis([bare], [], [], []), "stage")
    assert "not known (several threads)" in said
    assert "GPU:" not in said


def test_json_holds_it_all_and_fits_the_schema() -> None:
    body = json.loads(json.dumps(DIAGNOSIS.to_json()))
    valid("benchmark", body, "$defs/Diagnosis")
    assert body["stages"][0]["gpu"]["top_kernels"][0]["limiter"] == "registers"
    assert body["stages"][0]["verdict"]["limit"] == "memory"
    assert [gpu["name"] for gpu in body["gpus"]] == ["A GPU", "B GPU"]


def test_a_cause_is_printed_once_with_its_line_and_saving() -> None:
    """A cause's sentence, which is the verdict's evidence too, is not repeated."""
    line = FunctionTime("resize", "/app/pre.py", 42, is_native=False, self_ms=1.0, cumulative_ms=1.0, error_ms=0.1)
    causes = [
        Cause("gpu-bound", "the evidence", 0.61, None, "nothing was sampled", "the next step", None),
        Cause("cpu-bound", "another", 0.25, line, None, "another step", 1.5),
    ]
    lines = printed(Diagnosis([replace(STAGE, causes=causes)], [], [], []), "stage").splitlines()
    begin = next(place for place, line in enumerate(lines) if "gpu-bound, 61 % of it: the evidence" in line)
    assert [line.strip() for line in lines[begin + 1 : begin + 7]] == [
        "where: nothing was sampled", "try: the next step", "cpu-bound, 25 % of it: another",
        "where: resize (/app/pre.py:42)", "try: another step (saves up to 1.50 ms a batch)", "missing: the missing",
    ]  # fmt: skip
