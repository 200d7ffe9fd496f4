"""Compute, memory, or a GPU that is not filled: what shapes, bytes and names say, reckoned by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.diagnosis.gpu.kernels import LIMITERS, find_residency, kind_of_name
from perfharness.analysis.diagnosis.gpu.limits import MISSING_COUNTERS
from perfharness.analysis.diagnosis.rules.gpu import GPU_STEPS
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import GpuLimit, GpuLimits, KernelKind, OccupancyLimiter, StageDiagnosis, Verdict
from perfharness.model.trace import CopyKind, GpuDevice
from tests.support.made_batches import Batch, Content, diagnosed, gpu_of, stage_of

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


def stage_with(content: Content, path: Path, *, facts: bool = True) -> StageDiagnosis:
    return stage_of(diagnosed(path, content, batches=3, gpus=int(facts)))


def limits_with(content: Content, path: Path, *, facts: bool = True) -> GpuLimits:
    stage = stage_with(content, path, facts=facts)
    assert stage.verdict.verdict is Verdict.GPU_BOUND
    assert stage.verdict.limit is gpu_of(stage).limits.limit
    return gpu_of(stage).limits


def kernels(*each: tuple[float, float, str, int]) -> Content:
    """Kernels from and to, by name and grid, one of each on a stream of its own."""

    def content(batch: Batch) -> None:
        for number, (first, last, name, grid) in enumerate(each):
            batch.kernel(first - 5, first, last, name=name, grid=grid, stream=7 + number)

    return content


def moves(size: int, kind: int | None = CopyKind.DEVICE_TO_DEVICE) -> Content:
    """A copy of this direction, or a memset (None), from 10 to 810."""

    def content(batch: Batch) -> None:
        if kind is None:
            run = ((5, 6), (10, 810))
            batch.operation(schema.TABLE_MEMSET, "cudaMemsetAsync_v3020", *run, bytes=size, memKind=2)
        else:
            batch.copy((5, 6), (10, 810), kind=kind, size=size, srcKind=2, dstKind=2)

    return content


@pytest.mark.parametrize(
    ("elementwise_us", "limit", "basis"),
    [
        (600, GpuLimit.MEMORY, "names"),
        (200, GpuLimit.COMPUTE, "names"),
        (400, GpuLimit.CANNOT_TELL, None),
    ],
)
def test_large_kernels_are_judged_by_name(
    elementwise_us: int, limit: GpuLimit, basis: str | None, tmp_path: Path
) -> None:
    middle = 10 + elementwise_us
    content = kernels((10, middle, ELEMENTWISE, 100_000), (middle + 10, 820, GEMM, 132))
    stage = stage_with(content, tmp_path)
    limits = gpu_of(stage).limits
    assert (limits.limit, limits.basis) == (limit, basis)
    assert limits.work_ms == pytest.approx(0.8)
    assert limits.by_name_ms["memory"] == pytest.approx(elementwise_us / 1e3)
    assert limits.by_name_ms["tensor-core"] == pytest.approx(0.8 - elementwise_us / 1e3)
    assert limits.missing == [MISSING_COUNTERS]


@pytest.mark.parametrize(("grid", "limit"), [(66, GpuLimit.UNDERFILLED), (67, GpuLimit.COMPUTE)])
def test_grids_for_half_of_the_gpu_leave_it_underfilled(grid: int, limit: GpuLimit, tmp_path: Path) -> None:
    limits = limits_with(kernels((10, 900, GEMM, grid)), tmp_path)
    assert limits.limit is limit
    assert limits.underfilled_ms == pytest.approx(0.89 if limit is GpuLimit.UNDERFILLED else 0.0)


def test_small_kernels_beside_each_other_are_not_underfilled(tmp_path: Path) -> None:
    limits = limits_with(kernels((10, 810, GEMM, 40), (110, 910, GEMM, 40)), tmp_path)
    assert limits.underfilled_ms == pytest.approx(0.2)  # 100 us before the second, and 100 us after the first
    assert limits.by_name_ms["tensor-core"] == pytest.approx(1.4)
    assert limits.limit is GpuLimit.COMPUTE


def test_an_exchange_of_few_blocks_leaves_no_gpu_underfilled(tmp_path: Path) -> None:
    """NCCL's all-reduce has 24 blocks on an H100, whatever it moves, and waits in them for the other ranks."""
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    stage = stage_with(kernels((10, 610, nccl, 24), (620, 820, GEMM, 132)), tmp_path)
    limits = gpu_of(stage).limits
    assert (limits.limit, limits.basis) == (GpuLimit.COMMUNICATION, "names")
    assert (limits.underfilled_ms, limits.by_name_ms["communication"]) == pytest.approx((0.0, 0.6))
    assert limits.missing == []
    assert stage.verdict.next_step == GPU_STEPS[GpuLimit.COMMUNICATION]


def test_last_waves_by_hand(tmp_path: Path) -> None:
    # 128 threads, 32 registers: 16 blocks on each of 132 multiprocessors; 1.25 waves take two, and lose 3/8.
    limits = limits_with(kernels((10, 810, "mine", 16 * 132 * 5 // 4)), tmp_path)
    assert limits.tail_ms == pytest.approx(0.8 * 0.375)
    assert "38 %" in limits.evidence[0]
    assert limits_with(kernels((10, 810, "mine", 16 * 132 * 2)), tmp_path).tail_ms == 0.0


@pytest.mark.parametrize(
    ("kind", "share", "limit", "basis"),
    [
        (CopyKind.DEVICE_TO_DEVICE, 0.75, GpuLimit.MEMORY, "bandwidth"),  # work of the GPU's memory, and no transfer
        (CopyKind.DEVICE_TO_DEVICE, 0.375, GpuLimit.CANNOT_TELL, None),
        (None, 0.9, GpuLimit.MEMORY, "bandwidth"),  # a memset only writes
    ],
)
def test_copies_inside_the_gpu_and_memsets_near_its_bandwidth_are_measured(
    kind: CopyKind | None, share: float, limit: GpuLimit, basis: str | None, tmp_path: Path
) -> None:
    size = int(share * PEAK * 800e-6 / (1 if kind is None else 2))
    found = limits_with(moves(size, kind), tmp_path)
    assert (found.limit, found.basis) == (limit, basis)
    assert found.moved_gb_per_s == pytest.approx(share * PEAK / 1e9)
    assert found.moved_peak_share == pytest.approx(share)
    assert found.at_peak_ms == pytest.approx(0.8 if basis else 0.0)
    assert bool(found.missing) == (basis is None)


def test_copies_from_the_host_are_no_work_of_the_gpu(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        kernels((10, 810, GEMM, 132))(batch)
        batch.copy((15, 16), (20, 300))

    assert limits_with(content, tmp_path).work_ms == pytest.approx(0.8)


def test_short_kernels_are_not_judged_by_name(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        for at in range(10, 990, 5):
            batch.kernel(at - 5, at, at + 4.5, name=ELEMENTWISE, grid=1000)

    limits = limits_with(content, tmp_path)
    assert limits.limit is GpuLimit.CANNOT_TELL
    assert limits.short_ms == pytest.approx(196 * 0.0045)


def test_a_graph_that_is_traced_as_a_whole_tells_nothing(tmp_path: Path) -> None:
    def content(batch: Batch) -> None:
        batch.operation(schema.TABLE_GRAPH, "cudaGraphLaunch_v10000", (5, 6), (10, 810), graphExecId=1)

    limits = limits_with(content, tmp_path)
    assert limits.limit is GpuLimit.CANNOT_TELL
    assert limits.missing


def test_a_trace_that_does_not_describe_the_gpu_says_so(tmp_path: Path) -> None:
    limits = limits_with(kernels((10, 810, GEMM, 1)), tmp_path, facts=False)
    assert (limits.underfilled_ms, limits.tail_ms, limits.limit) == (None, None, GpuLimit.COMPUTE)
    assert len(limits.missing) == 2


def test_the_top_kernel_says_what_keeps_it_small(tmp_path: Path) -> None:
    (group,) = gpu_of(stage_with(kernels((10, 810, GEMM, 66)), tmp_path)).top_kernels
    assert (group.kind, group.limiter, group.registers) == (KernelKind.TENSOR_CORE, OccupancyLimiter.GRID, 32)
    assert (group.waves, group.occupancy) == pytest.approx((66 / (16 * 132), 66 * 4 / (64 * 132)))
