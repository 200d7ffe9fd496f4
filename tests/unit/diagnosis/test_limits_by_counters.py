"""What counters decide of the limit, and the roofline by hand; kernels' names say the opposite throughout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from perfharness.analysis.diagnosis.gpu.limits import MISSING_PIPES
from perfharness.analysis.diagnosis.gpu.roofline import FLOPS_PER_CLOCK, joined, roofline_point
from perfharness.model.diagnosis import GpuCounters, GpuLimit, Verdict
from perfharness.model.trace import GpuDevice
from tests.support.made_batches import Batch, diagnosed, gpu_of, stage_of
from tests.support.trace_builder import H200
from tests.unit.made_counters import ELEMENTWISE, GEMM, Made

CASES: Mapping[str, tuple[Mapping[str, float], GpuLimit]] = {
    "bf16 product": (GEMM, GpuLimit.COMPUTE),
    "elementwise": (ELEMENTWISE, GpuLimit.MEMORY),
    "fp32 product": ({"fp32": 0.75, "dram": 0.04, "sm_active": 1.0}, GpuLimit.COMPUTE),
    "fp64 product": ({"fp64": 0.80, "dram": 0.10, "sm_active": 1.0}, GpuLimit.COMPUTE),
    "product with few rows": ({"tensor": 0.12, "dram": 0.85, "sm_active": 1.0}, GpuLimit.MEMORY),
    "few blocks": ({"tensor": 0.25, "dram": 0.05, "sm_active": 0.30}, GpuLimit.UNDERFILLED),
    "waits": ({"tensor": 0.10, "fp32": 0.05, "dram": 0.20, "sm_active": 0.95}, GpuLimit.LATENCY),
    "half of both": ({"tensor": 0.45, "dram": 0.55, "sm_active": 1.0}, GpuLimit.CANNOT_TELL),
}


@pytest.mark.parametrize("case", CASES)
def test_the_limit_by_counters(case: str, tmp_path: Path) -> None:
    counters, limit = CASES[case]
    name = "ampere_sgemm_128x64_tn" if limit is GpuLimit.MEMORY else "at::native::vectorized_elementwise_kernel"
    made = Made(tmp_path, kernel=name).batches(40, {"stage": (50.0, [counters])}, gap_ms=0.5)
    stage = stage_of(made.diagnosed())
    limits = gpu_of(stage).limits
    assert (limits.limit, limits.basis) == (limit, "counters")
    assert (stage.verdict.verdict, stage.verdict.limit) == (Verdict.GPU_BOUND, limit)
    assert not any("by their names" in sentence for sentence in stage.verdict.evidence)
    assert len(limits.roofline) == 1


def test_roofline_points_of_a_product_and_an_elementwise_kernel_by_hand(tmp_path: Path) -> None:
    """132 multiprocessors at 1755 MHz: 948.9 TFLOP/s on tensor cores, 59.31 of fp32; memory 4.814 TB/s."""
    made = Made(tmp_path).batches(100, {"product": (30.0, [GEMM]), "add": (20.0, [ELEMENTWISE])})
    found = made.diagnosed()
    [product] = gpu_of(stage_of(found, "product")).limits.roofline
    assert (product.gpu, product.pipe) == (0, "tensor")
    assert product.peak_flop_per_s == pytest.approx(948.87e12, rel=1e-3)
    assert product.flop_per_s == pytest.approx(863.5e12, rel=0.02)
    assert product.bytes_per_s == pytest.approx(0.23 * 4.814304e12, rel=0.03)
    assert product.flop_per_byte == pytest.approx(779.8, rel=0.04)
    assert product.ceiling_flop_per_s == product.peak_flop_per_s  # right of the ridge
    [add] = gpu_of(stage_of(found, "add")).limits.roofline
    assert add.flop_per_byte is not None
    assert add.ceiling_flop_per_s == pytest.approx(add.flop_per_byte * 4.814304e12)  # left of it
    assert add.flop_per_s / add.ceiling_flop_per_s == pytest.approx(0.87, abs=0.01)
    [both] = gpu_of(stage_of(found, "batch")).limits.roofline
    assert both.pipe_share == pytest.approx(0.6 * 0.91, abs=0.01)
    highest = max(both.pipe_share, both.bytes_per_s / both.peak_bytes_per_s)
    assert both.flop_per_s / both.ceiling_flop_per_s == pytest.approx(highest)  # of a mix too, never above 1


def counted(**shares: float) -> GpuCounters:
    return replace(GpuCounters.without(0, "gpm"), seconds=1.0, **shares)  # type: ignore[arg-type]


CARDS = {  # multiprocessors, MHz, compute capability, pipe, TFLOP/s of the data sheet
    "H100 SXM, bf16": (132, 1830, (9, 0), "tensor", 989.4),
    "H100 PCIe, bf16": (114, 1620, (9, 0), "tensor", 756.4),
    "H100 SXM, fp32": (132, 1980, (9, 0), "fp32", 66.9),
    "H100 SXM, fp64": (132, 1980, (9, 0), "fp64", 33.5),
    "A100, bf16": (108, 1410, (8, 0), "tensor", 312.0),
    "A100, fp32": (108, 1410, (8, 0), "fp32", 19.5),
    "L40S, bf16": (142, 2520, (8, 9), "tensor", 366.0),
    "T4, fp16": (40, 1590, (7, 5), "tensor", 65.0),
    "V100 SXM, fp16": (80, 1530, (7, 0), "tensor", 125.0),
}


@pytest.mark.parametrize("card", CARDS)
def test_peaks_are_those_of_the_data_sheets(card: str) -> None:
    sms, mhz, capability, pipe, tflops = CARDS[card]
    device = GpuDevice(None, 0, compute_capability=capability, sm_count=sms, memory_bytes_per_s=10**12)
    point = roofline_point(0, joined([replace(counted(**{pipe: 1.0, "dram": 0.5}), sm_clock_mhz=float(mhz))]), device)
    assert point is not None
    assert point.flop_per_s == pytest.approx(tflops * 1e12, rel=0.015)


def test_double_precision_on_tensor_cores_has_a_peak_of_its_own() -> None:
    """H100 SXM: 66.9 TFLOP/s."""
    double = replace(counted(tensor=1.0, dram=0.1), tensor_types={"hmma": 0.0, "dmma": 1.0}, sm_clock_mhz=1980.0)
    device = GpuDevice(None, 0, compute_capability=(9, 0), sm_count=132, memory_bytes_per_s=10**12)
    point = roofline_point(0, joined([double]), device)
    assert point is not None
    assert point.peak_flop_per_s == pytest.approx(66.9e12, rel=0.01)
    assert "dmma" in FLOPS_PER_CLOCK[9, 0]


def test_no_point_without_peaks_or_bytes() -> None:
    device = GpuDevice(None, 0, compute_capability=(9, 0), sm_count=132, clock_hz=10**9, memory_bytes_per_s=10**12)
    assert roofline_point(0, joined([counted(tensor=0.9)]), device) is None
    assert roofline_point(0, joined([counted(tensor=0.9, dram=0.1)]), replace(device, memory_bytes_per_s=None)) is None
    assert roofline_point(0, joined([counted(tensor=0.9, dram=0.1)]), GpuDevice(None, 0)) is None
    assert joined([replace(counted(), seconds=0.0)]) is None


def test_finer_counters_come_first_and_the_others_fill_what_they_lack() -> None:
    fine = replace(counted(tensor=0.5, dram=0.4), source="nsys")
    both = joined([counted(tensor=0.1, fp32=0.7, dram=0.1), fine])
    assert both is not None
    assert (both.tensor, both.fp32, both.dram, both.sources) == (0.5, 0.7, 0.4, ("nsys", "gpm"))
    assert both.busiest == ("fp32", 0.7)


NSYS = ["SMs Active [Throughput %]", "Tensor Active [Throughput %]", "DRAM Read Bandwidth [Throughput %]",
        "DRAM Write Bandwidth [Throughput %]"]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "limit", "basis"),
    [((100, 90, 10, 10), GpuLimit.COMPUTE, "counters"), ((100, 5, 50, 35), GpuLimit.MEMORY, "counters"),
     ((100, 0, 3, 1), GpuLimit.COMPUTE, "names")],
)  # fmt: skip
def test_counters_of_the_trace_alone(values: tuple[int, ...], limit: GpuLimit, basis: str, tmp_path: Path) -> None:
    """nsys does not count fp32: where nothing that it counts is near a peak, names are left, and that is said."""

    def content(batch: Batch) -> None:
        batch.kernel(2, 5, 995, name="ampere_sgemm_128x64_tn", grid=100_000)
        names = batch.builder.gpu_metric_names(NSYS)
        for end in range(10, 1010, 10):
            batch.builder.gpu_metric_reading(batch.at(end - 10), values if end > 10 else (0,) * 4, type_id=names)

    limits = gpu_of(stage_of(diagnosed(tmp_path, content, gpus=1))).limits
    assert (limits.limit, limits.basis) == (limit, basis)
    assert (MISSING_PIPES in limits.missing) == (basis == "names")
    [kernel] = gpu_of(stage_of(diagnosed(tmp_path, content, gpus=1))).top_kernels
    assert kernel.counters is not None
    assert kernel.counters.tensor == pytest.approx(values[1] / 100, abs=0.02)
    assert kernel.roofline is not None
    assert kernel.roofline.pipe == "tensor"
    assert kernel.roofline.bytes_per_s == pytest.approx(
        (values[2] + values[3]) / 100 * H200["memoryBandwidth"], rel=0.02
    )
