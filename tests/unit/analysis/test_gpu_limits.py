"""What limits the GPU by shapes, bytes, names and counters; kernels and copies of a stage, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.model.diagnosis import Code, GpuLimit, GpuLimits, KernelKind, OccupancyLimiter, StageDiagnosis
from tests.support.made_batches import Batch, Content, diagnosed, near, stage_of
from tests.support.trace_builder import H200, WORDS

PEAK = H200["memoryBandwidth"]
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT"
SGEMM = "ampere_sgemm_128x64_tn"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MINE = "my_own_kernel(float*)"
NAMES = WORDS | {"add": ELEMENTWISE, "gemm": GEMM, "sgemm": SGEMM, "nccl": NCCL, "mine": MINE}

KINDS = {
    ELEMENTWISE: KernelKind.MEMORY,
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(T3)": KernelKind.MEMORY,
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>": KernelKind.MEMORY,
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10>": KernelKind.MEMORY,
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>": KernelKind.MEMORY,
    "triton_poi_fused_add_mul_0": KernelKind.MEMORY,
    "triton_red_fused_mean_1": KernelKind.MEMORY,
    "void gemv2T_kernel_val<int, int, float, float>": KernelKind.MEMORY,
    "void cublasLt::splitKreduce_kernel<32, 16, int>": KernelKind.MEMORY,
    "void cudnn::engines_precompiled::nchwToNhwcKernel<float>": KernelKind.MEMORY,
    GEMM: KernelKind.TENSOR_CORE,
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": KernelKind.TENSOR_CORE,
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nn": KernelKind.TENSOR_CORE,
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4>": KernelKind.TENSOR_CORE,
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>": KernelKind.TENSOR_CORE,
    SGEMM: KernelKind.FP32,
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5>": KernelKind.FP32,
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_execute": KernelKind.FP32,
    "triton_tem_fused_mm_3": KernelKind.MATRIX,
    NCCL: KernelKind.COMMUNICATION,
    MINE: KernelKind.UNKNOWN,
}


def test_kinds_of_well_known_kernels(tmp_path: Path) -> None:
    words = {f"k{number}": name for number, name in enumerate(KINDS)}

    def content(batch: Batch) -> None:
        for at, name in enumerate(words):
            batch.add(f"{name} 0..39; launch 1..5 -> 6..30 name={name}", words, 40 * at)

    found = diagnosed(tmp_path, content, "", batches=1, gpus=1)
    kinds = {one.path[-1]: one.kernels[0].kind for one in found.stages if one.path[-1] in KINDS}
    assert kinds == KINDS


def test_the_kernels_that_take_longest_are_named(tmp_path: Path) -> None:
    text = [f"launch {at}0..{at}4 -> {at}5..{at}5.{at} name=k{at}" for at in range(1, 8)]
    stage = stage_with(";".join(text), tmp_path)
    assert [kernel.name for kernel in stage.kernels] == ["k7", "k6", "k5", "k4", "k3"]


RESIDENCY: dict[str, tuple[OccupancyLimiter | None, float | None, float | None]] = {
    # shape of a kernel: (what limits its occupancy, waves, occupancy)
    # 8 warps a block; 64 registers x 32 lanes = 2048 a warp, 16384 / 2048 = 8 warps a partition, 32 in all: 4 blocks.
    "grid=528 block=256 registers=64": (OccupancyLimiter.REGISTERS, 1.0, 0.5),
    # 64 KiB and the system's 1 KiB: 233472 / 66560 = 3 blocks of 4 warps, of 64.
    "grid=396 shared_bytes=65536": (OccupancyLimiter.SHARED_MEMORY, 1.0, 12 / 64),
    # 1024 threads are 32 warps: 2 blocks, whatever else there is.
    "grid=528 block=1024 registers=16": (OccupancyLimiter.WARPS, 2.0, 1.0),
    # One warp a block: 32 blocks is all that a multiprocessor takes.
    "grid=4224 block=32 registers=16": (OccupancyLimiter.BLOCKS, 1.0, 0.5),
    # 66 blocks of 4 warps, of 132 x 64: the grid is what keeps it small.
    "grid=66": (OccupancyLimiter.GRID, 66 / (16 * 132), 66 * 4 / (64 * 132)),
    "grid=66 registers=-1": (None, None, None),
}


@pytest.mark.parametrize("shape", RESIDENCY)
def test_occupancy_and_waves_by_hand(shape: str, tmp_path: Path) -> None:
    (kernel,) = stage_with(f"launch 1..5 -> 6..30 {shape}", tmp_path, batches=2).kernels
    found = kernel.limiter, kernel.waves, kernel.occupancy
    assert found == (RESIDENCY[shape][0], *map(near, RESIDENCY[shape][1:]))
    assert kernel.grid is not None
    assert (f"grid={kernel.grid[0]}", kernel.count) == (shape.split()[0], 1.0)
    assert (kernel.time_ms, kernel.mean_us, kernel.share) == pytest.approx((0.024, 24.0, 1.0))


def stage_with(content: Content, path: Path, **more: Any) -> StageDiagnosis:
    facts: dict[str, Any] = {"batches": 3, "gpus": 1, "words": NAMES} | more
    return stage_of(diagnosed(path, content, **facts))


def limits_with(content: Content, path: Path, **more: Any) -> GpuLimits:
    stage = stage_with(content, path, **more)
    assert stage.limits is not None
    limit = "unknown" if stage.limits.limit is GpuLimit.CANNOT_TELL else stage.limits.limit.value
    assert (stage.verdict.code, stage.verdict.detail) == (Code.GPU_BOUND, limit)
    return stage.limits


def mixed(elementwise_us: int) -> str:
    """800 us of kernels: so many of an elementwise one, the rest of a product."""
    middle = 10 + elementwise_us
    product = f"launch {middle}..{middle + 4} -> {middle + 10}..820 name=gemm grid=132"
    return f"launch 5..9 -> 10..{middle} name=add grid=100000; {product}"


def moves(share: float, what: str) -> str:
    """800 us at this share of the memory's bandwidth; a memset only writes."""
    size = int(share * PEAK * 800e-6 / (1 if "memset" in what else 2))
    return f"{what} 5..6 -> 10..810 bytes={size}"


C, M, U, X, N = (
    GpuLimit.COMPUTE, GpuLimit.MEMORY, GpuLimit.UNDERFILLED, GpuLimit.COMMUNICATION, GpuLimit.CANNOT_TELL,
)  # fmt: skip
PRODUCT = "launch 5..9 -> 10..{} name={} grid={}"
LIMITS: dict[str, tuple[str, GpuLimit, str | None, int, dict[str, Any]]] = {
    # name: (trace, limit, its basis, how much is missing, figures in ms per batch)
    "elementwise": (mixed(600), M, "names", 1, {"work_ms": 0.8, "memory": 0.6, "tensor-core": 0.2}),
    "products": (mixed(200), C, "names", 1, {"work_ms": 0.8, "memory": 0.2, "tensor-core": 0.6}),
    "products of any kind": (
        """
        launch 5..9 -> 10..310 name=gemm grid=132; launch 311..315 -> 320..620 name=sgemm grid=132
        launch 621..625 -> 630..930 name=mine grid=132
        """,
        C, "names", 1, {"tensor-core": 0.3, "fp32-matrix": 0.3},
    ),
    "both": (mixed(400), N, None, 1, {"memory": 0.4, "tensor-core": 0.4}),
    "half of the GPU": (PRODUCT.format(900, "gemm", 66), U, "shape", 0, {"underfilled_ms": 0.89}),
    "more than half": (PRODUCT.format(900, "gemm", 67), C, "names", 1, {"underfilled_ms": 0.0}),
    # alone for 100 us before the second, and 100 us after the first
    "beside each other": (
        f"{PRODUCT.format(810, 'gemm', 40)}; launch 105..109 -> 110..910 name=gemm grid=40 stream=8",
        C, "names", 1, {"underfilled_ms": 0.2, "tensor-core": 1.4},
    ),
    # NCCL's all-reduce has 24 blocks on an H100, whatever it moves, and waits in them for the other ranks
    "exchange": (
        f"{PRODUCT.format(610, 'nccl', 24)}; launch 615..619 -> 620..820 name=gemm grid=132",
        X, "names", 0, {"underfilled_ms": 0.0, "communication": 0.6},
    ),
    # 16 blocks on each of 132 multiprocessors; 1.25 waves take two, and lose 3/8
    "last wave": (PRODUCT.format(810, "mine", 2640), N, None, 1, {"tail_ms": 0.3}),
    "whole waves": (PRODUCT.format(810, "mine", 4224), N, None, 1, {"tail_ms": 0.0}),
    "copies inside": (moves(0.75, "copy kind=D2D"), M, "bandwidth", 0, {"at_peak_ms": 0.8, "moved_peak_share": 0.75}),
    "slow copies": (
        moves(0.375, "copy kind=D2D"), N, None, 1, {"at_peak_ms": 0.0, "moved_gb_per_s": 0.375 * PEAK / 1e9},
    ),
    "memset": (moves(0.9, "memset memKind=2"), M, "bandwidth", 0, {"at_peak_ms": 0.8, "moved_peak_share": 0.9}),
    "copy from the host": (
        f"{PRODUCT.format(810, 'gemm', 132)}; copy 15..16 -> 20..300",
        C, "names", 1, {"work_ms": 0.8, "moved_gb_per_s": None},
    ),
    "short": ("launch 5..9 -> 10..14.5 name=add grid=1000 x196+5", N, None, 1, {"short_ms": 196 * 0.0045}),
    "graph as a whole": ("graph 5..6 -> 10..810 graphExecId=1", N, None, 2, {"work_ms": 0.8}),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_the_limit_by_shapes_bytes_and_names(name: str, tmp_path: Path) -> None:
    text, limit, basis, missing, figures = LIMITS[name]
    found = limits_with(text, tmp_path)
    assert (found.limit, found.basis, len(found.missing)) == (limit, basis, missing)
    values = {one: found.by_name_ms[one] if one in found.by_name_ms else getattr(found, one) for one in figures}
    assert values == {one: near(value) for one, value in figures.items()}


@pytest.mark.parametrize(("text", "word"), [(mixed(200), "multiply"), (mixed(600), "move data")])
def test_the_evidence_says_what_the_names_tell(text: str, word: str, tmp_path: Path) -> None:
    """What takes a quarter of the work is said, with its share."""
    (sentence,) = (one for one in limits_with(text, tmp_path).evidence if word in one)
    assert sentence.startswith("75 %")


def test_a_trace_that_does_not_describe_the_gpu_says_so(tmp_path: Path) -> None:
    limits = limits_with(PRODUCT.format(810, "gemm", 1), tmp_path, gpus=0)
    assert (limits.underfilled_ms, limits.tail_ms, limits.limit) == (None, None, GpuLimit.COMPUTE)
    assert len(limits.missing) == 2


COPIES: dict[str, dict[str, Any]] = {
    "": {"direction": "host-to-device", "host_memory": "pageable", "gb_per_s": 1.25},
    "pageable=0": {"host_memory": "pinned", "bytes": 1e6, "count": 1.0},
    "kind=D2H": {"direction": "device-to-host", "host_memory": "pageable"},
    "kind=P2P size=80000000 srcDeviceId=1 dstDeviceId=0": {
        "direction": "peer-to-peer", "source_gpu": 1, "target_gpu": 0, "gb_per_s": 100.0, "host_memory": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_stage(how: str, tmp_path: Path) -> None:
    text = f"launch 5..9 -> 20..30; launch 5..9 -> 20..30 device=1; copy 50..55 -> 60..860 {how}"
    stage = stage_with(text, tmp_path, gpus=2)
    (copy,) = stage.copies
    assert copy.time_ms == pytest.approx(0.8)
    assert {key: getattr(copy, key) for key in COPIES[how]} == {
        key: value if isinstance(value, str) else near(value) for key, value in COPIES[how].items()
    }
    assert stage.verdict.code is Code.COPY_BOUND
    assert (stage.verdict.detail == "pageable") is (not how)


# ---- by nsys's counters ----

COUNTERS = [
    "SMs Active [Throughput %]", "Tensor Active [Throughput %]", "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]", "GPC Clock Frequency [MHz]",
]  # fmt: skip


def counted(kernel: str, *values: int, mhz: int = 1980) -> Content:
    """A kernel that fills the stage; one reading every 10 us, in per cent."""

    def content(batch: Batch) -> None:
        batch.add(f"launch 2..6 -> 5..995 name={kernel} grid=100000", NAMES)
        idle, busy = (0, 0, 0, 0, mhz * 1_000_000), (*values, mhz * 1_000_000)
        batch.read(COUNTERS, 10, {end: busy if end > 10 else idle for end in range(10, 1010, 10)})

    return content


@pytest.mark.parametrize(
    ("values", "kernel", "limit", "basis", "saves"),
    [
        ((100, 91, 10, 13), "add", GpuLimit.COMPUTE, "counters", 0.09),
        ((100, 5, 50, 35), "sgemm", GpuLimit.MEMORY, "counters", 0.15),
        ((100, 70, 50, 35), "sgemm", GpuLimit.MEMORY, "counters", None),
        ((30, 25, 3, 2), "sgemm", GpuLimit.UNDERFILLED, "counters", 0.75),
        ((100, 0, 3, 1), "sgemm", GpuLimit.COMPUTE, "names", None),
        ((100, 45, 35, 20), "mine", GpuLimit.CANNOT_TELL, None, None),
    ],
)
def test_the_limit_by_counters(
    values: tuple[int, ...], kernel: str, limit: GpuLimit, basis: str | None, saves: float | None, tmp_path: Path
) -> None:
    """Names say the opposite. nsys does not count fp32: where nothing that it counts is near a peak, names are left."""
    stage = stage_with(counted(kernel, *values), tmp_path)
    found, (group,) = stage.limits, stage.kernels
    assert found is not None
    assert (found.limit, found.basis) == (limit, basis)
    assert any("tensor cores, but no other" in reason for reason in found.missing) == (basis != "counters")
    assert group.counters is not None
    assert group.counters.tensor == pytest.approx(values[1] / 100, abs=0.02)
    assert [group.roofline] == found.roofline
    if saves is not None:  # what its bytes and operations do not need at the peak
        assert stage.verdict.saves_ms == pytest.approx(0.99 * saves, abs=0.03)


def test_the_roofline_by_hand(tmp_path: Path) -> None:
    """132 multiprocessors at 1980 MHz: 1070.5 TFLOP/s on tensor cores; memory 4.814 TB/s."""
    [product] = limits_with(counted("add", 100, 91, 10, 13), tmp_path).roofline
    assert product.peak_flop_per_s == pytest.approx(1070.53e12, rel=1e-3)
    assert product.flop_per_s == pytest.approx(974.2e12, rel=0.02)
    assert product.bytes_per_s == pytest.approx(0.23 * PEAK, rel=0.03)
    assert product.flop_per_byte == pytest.approx(879.8, rel=0.04)
    assert product.ceiling_flop_per_s == product.peak_flop_per_s
    [add] = limits_with(counted("sgemm", 100, 5, 50, 37), tmp_path).roofline
    assert add.flop_per_byte is not None
    assert add.ceiling_flop_per_s == pytest.approx(add.flop_per_byte * PEAK)
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
    sms: int | None, mhz: int, capability: tuple[int, int], tflops: float | None, tmp_path: Path
) -> None:
    gpu = H200 | {"smCount": sms, "computeMajor": capability[0], "computeMinor": capability[1]}
    points = limits_with(counted("add", 100, 91, 10, 13, mhz=mhz), tmp_path, gpu=gpu).roofline
    peaks = [point.peak_flop_per_s for point in points]
    assert peaks == ([] if tflops is None else [pytest.approx(tflops * 1e12, rel=0.015)])
