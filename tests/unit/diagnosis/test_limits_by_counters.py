"""What nsys's counters decide of the limit, and the roofline by hand; kernels' names say the opposite throughout."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.diagnosis.gpu.counters import roofline_point
from perfharness.model.diagnosis import GpuCounters, GpuLimit, GpuLimits
from perfharness.model.trace import GpuDevice
from tests.support.made_batches import Batch, diagnosed, gpu_of, stage_of
from tests.support.trace_builder import H200

COUNTERS = [
    "SMs Active [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
]
PRODUCT, ELEMENTWISE = "ampere_sgemm_128x64_tn", "at::native::vectorized_elementwise_kernel"


def limits_of(path: Path, values: tuple[int, ...], kernel: str) -> GpuLimits:
    """Of a stage whose one kernel fills it; one reading every 10 us, in per cent."""

    def content(batch: Batch) -> None:
        batch.kernel(2, 5, 995, name=kernel, grid=100_000)
        names = batch.builder.gpu_metric_names(COUNTERS)
        for end in range(10, 1010, 10):
            batch.builder.gpu_metric_reading(batch.at(end - 10), values if end > 10 else (0,) * 4, type_id=names)

    work = gpu_of(stage_of(diagnosed(path, content, gpus=1)))
    [kernels] = work.top_kernels
    assert kernels.counters is not None
    assert kernels.counters.tensor == pytest.approx(values[1] / 100, abs=0.02)
    assert [kernels.roofline] == work.limits.roofline
    return work.limits


@pytest.mark.parametrize(
    ("values", "kernel", "limit", "basis"),
    [
        ((100, 91, 10, 13), ELEMENTWISE, GpuLimit.COMPUTE, "counters"),
        ((100, 5, 50, 35), PRODUCT, GpuLimit.MEMORY, "counters"),
        ((100, 70, 50, 35), PRODUCT, GpuLimit.MEMORY, "counters"),
        ((30, 25, 3, 2), PRODUCT, GpuLimit.UNDERFILLED, "counters"),
        ((100, 0, 3, 1), PRODUCT, GpuLimit.COMPUTE, "names"),
        ((100, 45, 35, 20), "unknown", GpuLimit.CANNOT_TELL, None),
    ],
)
def test_the_limit(values: tuple[int, ...], kernel: str, limit: GpuLimit, basis: str | None, tmp_path: Path) -> None:
    """nsys does not count fp32: where nothing that it counts is near a peak, names are left, and that is said."""
    found = limits_of(tmp_path, values, kernel)
    assert (found.limit, found.basis) == (limit, basis)
    assert any("tensor cores and no other" in reason for reason in found.missing) == (basis != "counters")


def test_the_roofline_by_hand(tmp_path: Path) -> None:
    """132 multiprocessors at 1980 MHz: 1070.5 TFLOP/s on tensor cores; memory 4.814 TB/s."""
    [product] = limits_of(tmp_path, (100, 91, 10, 13), ELEMENTWISE).roofline
    bandwidth = H200["memoryBandwidth"]
    assert product.peak_flop_per_s == pytest.approx(1070.53e12, rel=1e-3)
    assert product.flop_per_s == pytest.approx(974.2e12, rel=0.02)
    assert product.bytes_per_s == pytest.approx(0.23 * bandwidth, rel=0.03)
    assert product.flop_per_byte == pytest.approx(879.8, rel=0.04)
    assert product.ceiling_flop_per_s == product.peak_flop_per_s
    [add] = limits_of(tmp_path, (100, 5, 50, 37), PRODUCT).roofline
    assert add.flop_per_byte is not None
    assert add.ceiling_flop_per_s == pytest.approx(add.flop_per_byte * bandwidth)
    assert add.flop_per_s / add.ceiling_flop_per_s == pytest.approx(0.87, abs=0.01)


@pytest.mark.parametrize(
    ("sms", "mhz", "capability", "tflops"),
    [
        (132, 1830, (9, 0), 989.4),
        (114, 1620, (9, 0), 756.4),
        (108, 1410, (8, 0), 312.0),
        (142, 2520, (8, 9), 366.0),
        (40, 1590, (7, 5), 65.0),
        (80, 1530, (7, 0), 125.0),
        (132, 1830, (1, 0), None),
        (None, 1830, (9, 0), None),
    ],
)
def test_peaks_are_those_of_the_data_sheets(
    sms: int | None, mhz: int, capability: tuple[int, int], tflops: float | None
) -> None:
    device = GpuDevice(None, 0, compute_capability=capability, sm_count=sms, memory_bytes_per_s=10**12)
    point = roofline_point(GpuCounters(0, [], tensor=1.0, dram=0.5, sm_clock_mhz=float(mhz)), device)
    assert (None if point is None else point.flop_per_s) == (
        None if tflops is None else pytest.approx(tflops * 1e12, rel=0.015)
    )
