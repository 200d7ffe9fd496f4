"""Everything that is known of a stage stands in JSON and on the terminal."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from perfharness.model.diagnosis import (
    CopyGroup,
    Diagnosis,
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

SAID = (
    "6.202 6.201 1.525 2.104 2.105 3.1 2.101 4.1 2.102 5.100 5.1 2.103 2.107 2.108 2.109 500.1 11x12x1 128x1x1 1.25 62 "
    "7.001 7.002 7.003 7.004 7.005 4001 83 7.1 3.301 8.200 26.4 3.302 5.101 5.103 6.1 5.104 5.105 5.106 4.101 9.1 "
    "4.102 4.103 8.1 4.104 4.105 4.106 11.1 12.1 4.107 add_kernel registers peer-to-peer cudaStreamSynchronize"
)


def printed(diagnosis: Diagnosis, name: str | None) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    print_diagnosis(console, diagnosis, name)
    return console.export_text()


@pytest.mark.parametrize("figure", SAID.split())
def test_the_terminal_has_every_figure_of_a_stage(figure: str) -> None:
    assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", printed(DIAGNOSIS, "stage"))


def test_small_figures_keep_their_digits() -> None:
    """A time of an item may be less than a nanosecond."""
    assert rounded({"ms": [1.2345678e-6, 12.3456789, 0.0], "count": 3}) == {
        "ms": [1.23457e-6, 12.345679, 0.0],
        "count": 3,
    }


def test_json_holds_it_all_and_fits_the_schema() -> None:
    body = json.loads(json.dumps(DIAGNOSIS.to_json()))
    valid("benchmark", body, "$defs/Diagnosis")
    assert body["stages"][0]["gpu"]["top_kernels"][0]["limiter"] == "registers"
    assert body["stages"][0]["verdict"]["limit"] == "memory"
    assert [gpu["name"] for gpu in body["gpus"]] == ["A GPU", "B GPU"]
