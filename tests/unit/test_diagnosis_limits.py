"""Compute, memory, or a GPU that is not filled: what shapes, bytes and names say, reckoned by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.analysis.diagnosis.kernel_names import kind_of_name
from perfharness.analysis.diagnosis.kernels import LIMITERS, find_residency
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import GpuLimit, GpuLimits, KernelKind, OccupancyLimiter, StageDiagnosis, Verdict
from perfharness.model.trace import CopyKind, GpuDevice
from perfharness.testing.trace_builder import H200, TraceBuilder
from perfharness.trace import open_trace

US = 1000
BATCH = 1000 * US
BATCHES = 3
SMS = 132
PEAK = 4_814_304_000_000
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT"

DEVICE = GpuDevice(
    pid=None, number=0, compute_capability=(9, 0), sm_count=SMS, max_warps_per_sm=64, max_blocks_per_sm=32,
    max_registers_per_sm=65_536, max_shared_bytes_per_sm=233_472,
)  # fmt: skip

NAMES = {
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
    "ampere_sgemm_128x64_tn": KernelKind.MATRIX,
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5>": KernelKind.MATRIX,
    "triton_tem_fused_mm_3": KernelKind.MATRIX,
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL": KernelKind.COMMUNICATION,
    "my_own_kernel(float*)": KernelKind.UNKNOWN,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_well_known_kernels(name: str) -> None:
    assert kind_of_name(name) is NAMES[name]


# grid, threads, registers, shared bytes -> blocks on one multiprocessor, limiter, waves, occupancy
RESIDENCY = {
    # 8 warps a block; 64 registers x 32 lanes = 2048 a warp, 16384 / 2048 = 8 warps a partition, 32 in all: 4 blocks.
    "registers": ((528, 256, 64, 0), (4, OccupancyLimiter.REGISTERS, 1.0, 0.5)),
    # 64 KiB and the system's 1 KiB: 233472 / 66560 = 3 blocks of 4 warps, of 64.
    "shared memory": ((396, 128, 32, 65_536), (3, OccupancyLimiter.SHARED_MEMORY, 1.0, 12 / 64)),
    # 1024 threads are 32 warps: 2 blocks, whatever else there is.
    "warps": ((528, 1024, 16, 0), (2, OccupancyLimiter.WARPS, 2.0, 1.0)),
    # One warp a block: 32 blocks is all that a multiprocessor takes.
    "blocks": ((132 * 32, 32, 16, 0), (32, OccupancyLimiter.BLOCKS, 1.0, 0.5)),
    # 66 blocks of 4 warps, of 132 x 64: the grid is what keeps it small.
    "grid": ((66, 128, 32, 0), (16, OccupancyLimiter.GRID, 66 / (16 * 132), 66 * 4 / (64 * 132))),
}


@pytest.mark.parametrize("case", RESIDENCY)
def test_residency_by_hand(case: str) -> None:
    (blocks, threads, registers, shared), (per_sm, limiter, waves, occupancy) = RESIDENCY[case]
    found = find_residency(
        [DEVICE], np.zeros(1, dtype=np.int64), blocks=np.asarray([float(blocks)]), threads=np.asarray([float(threads)]),
        registers=np.asarray([registers]), shared_bytes=np.asarray([shared]),
    )  # fmt: skip
    assert found.blocks_per_sm[0] == per_sm
    assert LIMITERS[found.limiter[0]] is limiter
    assert found.waves[0] == pytest.approx(waves)
    assert found.occupancy[0] == pytest.approx(occupancy)
    assert found.fill[0] == min(1.0, blocks / SMS)


def test_residency_is_not_guessed() -> None:
    bare = GpuDevice(pid=None, number=0)
    found = find_residency(
        [bare, DEVICE], np.asarray([0, 1, 1]), blocks=np.asarray([66.0, np.nan, 66.0]),
        threads=np.full(3, 128.0), registers=np.asarray([32, 32, -1]), shared_bytes=np.zeros(3, np.int64),
    )  # fmt: skip
    assert np.isnan(found.waves).all()
    assert found.limiter.tolist() == [-1, -1, -1]
    assert np.isnan(found.fill[:2]).all()
    assert found.fill[2] == 0.5  # the number of multiprocessors and the grid are enough for that


Content = Callable[[TraceBuilder, int], None]


def stage_with(content: Content, path: Path, *, facts: bool = True) -> StageDiagnosis:
    builder = TraceBuilder(gpu=False)
    builder.row("TARGET_INFO_GPU", **({"id": 0} | (H200 if facts else {"name": "a GPU"})))
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        builder.range("stage", begin, begin + BATCH)
        content(builder, begin)
    trace = open_trace(builder.write(path / "t.sqlite"))
    found = diagnose(Analysis(trace)).stages
    return next(stage for stage in found if stage.path[-1] == "stage")


def limits_of(stage: StageDiagnosis) -> GpuLimits:
    assert stage.gpu is not None
    assert stage.verdict.verdict is Verdict.GPU_BOUND
    assert stage.verdict.limit is stage.gpu.limits.limit
    return stage.gpu.limits


def kernel(builder: TraceBuilder, begin: int, first: float, last: float, name: str, grid: int, stream: int = 7) -> None:
    call = begin + int((first - 5) * US)
    builder.kernel(
        (call, call + US), (begin + int(first * US), begin + int(last * US)), name=name, grid=grid, stream=stream
    )


def move(builder: TraceBuilder, begin: int, first: int, last: int, size: int, copy_kind: int | None) -> None:
    """A copy of this direction, or a memset (None)."""
    name = "cudaMemsetAsync_v3020" if copy_kind is None else "cudaMemcpyAsync_v3020"
    correlation = builder.call(name, begin + (first - 5) * US, begin + (first - 4) * US)
    table = schema.TABLE_MEMSET if copy_kind is None else schema.TABLE_MEMCPY
    more = {"memKind": 2} if copy_kind is None else {"copyKind": copy_kind, "srcKind": 2, "dstKind": 2}
    builder.operation(begin + first * US, begin + last * US, correlation, table=table, bytes=size, **more)


def test_large_elementwise_kernels_are_memory_bound_by_name(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, 610, ELEMENTWISE, 100_000)
        kernel(builder, begin, 620, 820, GEMM, 132)

    limits = limits_of(stage_with(content, tmp_path))
    assert (limits.limit, limits.basis) == (GpuLimit.MEMORY, "names")
    assert limits.work_ms == pytest.approx(0.8)
    assert limits.by_name_ms["memory"] == pytest.approx(0.6)
    assert limits.by_name_ms["tensor-core"] == pytest.approx(0.2)
    assert "75 % of its GPU time are kernels that, by their names, move data" in limits.evidence[0]
    assert "no hardware counters" in limits.missing[0]


def test_large_products_are_compute_bound_by_name(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, 210, ELEMENTWISE, 100_000)
        kernel(builder, begin, 220, 820, GEMM, 132)

    stage = stage_with(content, tmp_path)
    limits = limits_of(stage)
    assert (limits.limit, limits.basis) == (GpuLimit.COMPUTE, "names")
    assert "75 % of its GPU time are kernels that, by their names, use tensor cores." in stage.verdict.evidence
    assert "tensor cores" in stage.verdict.next_step


def test_an_even_mixture_is_not_told(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, 410, ELEMENTWISE, 100_000)
        kernel(builder, begin, 420, 820, GEMM, 132)

    limits = limits_of(stage_with(content, tmp_path))
    assert (limits.limit, limits.basis) == (GpuLimit.CANNOT_TELL, None)
    assert "no hardware counters" in limits.missing[0]


@pytest.mark.parametrize(("grid", "limit"), [(66, GpuLimit.UNDERFILLED), (67, GpuLimit.COMPUTE)])
def test_grids_for_half_of_the_gpu_leave_it_underfilled(grid: int, limit: GpuLimit, tmp_path: Path) -> None:
    limits = limits_of(stage_with(lambda builder, begin: kernel(builder, begin, 10, 900, GEMM, grid), tmp_path))
    assert limits.limit is limit
    assert limits.underfilled_ms == pytest.approx(0.89 if limit is GpuLimit.UNDERFILLED else 0.0)


def test_small_kernels_beside_each_other_are_not_underfilled(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, 810, GEMM, 40, stream=7)
        kernel(builder, begin, 110, 910, GEMM, 40, stream=8)

    limits = limits_of(stage_with(content, tmp_path))
    assert limits.underfilled_ms == pytest.approx(0.2)  # 100 us before the second, and 100 us after the first
    assert limits.by_name_ms["tensor-core"] == pytest.approx(1.4)
    assert limits.limit is GpuLimit.COMPUTE


def test_last_waves_by_hand(tmp_path: Path) -> None:
    # 128 threads, 32 registers: 16 blocks on each of 132 multiprocessors; 1.25 waves take two, and lose 3/8.
    grid = 16 * 132 * 5 // 4
    limits = limits_of(stage_with(lambda builder, begin: kernel(builder, begin, 10, 810, "mine", grid), tmp_path))
    assert limits.tail_ms == pytest.approx(0.8 * 0.375)
    assert "38 % of its GPU time (about) passes in last waves" in limits.evidence[0]
    full = limits_of(stage_with(lambda builder, begin: kernel(builder, begin, 10, 810, "mine", 16 * 132 * 2), tmp_path))
    assert full.tail_ms == 0.0


def test_copies_inside_the_gpu_near_its_bandwidth_are_measured(tmp_path: Path) -> None:
    # 800 us at 3.6 TB/s, read and written: 75 % of 4.8 TB/s.
    size = int(0.75 * PEAK * 800e-6 / 2)

    def content(size: int) -> Content:
        return lambda builder, begin: move(builder, begin, 10, 810, size, CopyKind.DEVICE_TO_DEVICE)

    near = limits_of(stage_with(content(size), tmp_path))  # work of the GPU's memory, and no transfer
    assert (near.limit, near.basis, near.missing) == (GpuLimit.MEMORY, "bandwidth", [])
    assert near.moved_gb_per_s == pytest.approx(0.75 * PEAK / 1e9)
    assert near.moved_peak_share == pytest.approx(0.75)
    assert near.at_peak_ms == pytest.approx(0.8)
    slow = limits_of(stage_with(content(size // 2), tmp_path))
    assert (slow.limit, slow.at_peak_ms) == (GpuLimit.CANNOT_TELL, 0.0)
    assert slow.moved_peak_share == pytest.approx(0.375)


def test_memsets_count_what_they_write(tmp_path: Path) -> None:
    size = int(0.9 * PEAK * 800e-6)
    limits = limits_of(stage_with(lambda builder, begin: move(builder, begin, 10, 810, size, None), tmp_path))
    assert (limits.limit, limits.basis) == (GpuLimit.MEMORY, "bandwidth")
    assert limits.moved_peak_share == pytest.approx(0.9)


def test_copies_from_the_host_are_no_work_of_the_gpu(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        kernel(builder, begin, 10, 810, GEMM, 132)
        move(builder, begin, 20, 300, 10_000_000, CopyKind.HOST_TO_DEVICE)

    assert limits_of(stage_with(content, tmp_path)).work_ms == pytest.approx(0.8)


def test_short_kernels_are_not_judged_by_name(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        for at in range(10, 990, 5):
            kernel(builder, begin, at, at + 4.5, ELEMENTWISE, 1000)

    limits = limits_of(stage_with(content, tmp_path))
    assert limits.limit is GpuLimit.CANNOT_TELL
    assert limits.short_ms == pytest.approx(196 * 0.0045)
    assert "less than 5 us" in limits.evidence[0]


def test_a_graph_that_is_traced_as_a_whole_tells_nothing(tmp_path: Path) -> None:
    def content(builder: TraceBuilder, begin: int) -> None:
        correlation = builder.call("cudaGraphLaunch_v10000", begin + 5 * US, begin + 6 * US)
        builder.operation(begin + 10 * US, begin + 810 * US, correlation, table=schema.TABLE_GRAPH, graphExecId=1)

    limits = limits_of(stage_with(content, tmp_path))
    assert limits.limit is GpuLimit.CANNOT_TELL
    assert "CUDA graphs" in limits.missing[0]


def test_a_trace_that_does_not_describe_the_gpu_says_so(tmp_path: Path) -> None:
    stage = stage_with(lambda builder, begin: kernel(builder, begin, 10, 810, GEMM, 1), tmp_path, facts=False)
    limits = limits_of(stage)
    assert (limits.underfilled_ms, limits.tail_ms) == (None, None)
    assert limits.limit is GpuLimit.COMPUTE
    assert "whether its kernels fill the GPU" in limits.missing[1]


def test_the_top_kernel_says_what_keeps_it_small(tmp_path: Path) -> None:
    stage = stage_with(lambda builder, begin: kernel(builder, begin, 10, 810, GEMM, 66), tmp_path)
    assert stage.gpu is not None
    (group,) = stage.gpu.top_kernels
    assert (group.kind, group.limiter, group.registers) == (KernelKind.TENSOR_CORE, OccupancyLimiter.GRID, 32)
    assert group.waves == pytest.approx(66 / (16 * 132))
    assert group.occupancy == pytest.approx(66 * 4 / (64 * 132))
