"""Groups of equal kernels and their occupancy limits, from grid, block, registers and shared memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.gpus import Gpus
from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.columns import Float64, Int64, Integers
from perfharness.model.diagnosis import KernelKind, OccupancyLimiter
from perfharness.model.trace import GpuDevice, GpuOperationKind, OperationDetails, Trace
from perfharness.trace.names import by_name

WARP = 32
REGISTER_UNIT = 256
"""Registers are allocated per warp in units of this (cuda_occupancy.h of the CUDA toolkit, compute capability 3+)."""
SUB_PARTITIONS = 4
"""Schedulers that share a multiprocessor's registers and warps (same file, 5.0+; 6.0 has two)."""
SHARED_UNIT_BYTES = 128
"""Shared memory is allocated per block in units of this (same file, compute capability 8+; 256 before)."""
SHARED_RESERVED_BYTES = 1024
"""Shared memory per block reserved by the system (CUDA C++ Programming Guide, compute capability 8+)."""


@dataclass(frozen=True)
class KernelGroups:
    """Kernels of equal name, device, grid, block, registers and shared memory, one row per group.

    `of`: group of each operation (-1 if not a kernel). `example`: an operation of each group. `kind`: index in
    `KINDS_OF_KERNELS`. `limiter`: index in `LIMITERS` of the limit on blocks per multiprocessor, -1 if unknown. NaN if
    the trace lacks the data: `waves`, how often the grid fills the GPU; `fill`, share of multiprocessors with a block;
    `occupancy`, share of the GPU's warps that can be resident.
    """

    of: Integers
    example: Int64
    kind: Integers
    limiter: Int64
    waves: Float64
    fill: Float64
    occupancy: Float64

    def __len__(self) -> int:
        return len(self.example)


KINDS_OF_KERNELS = tuple(KernelKind)
LIMITERS = (
    OccupancyLimiter.WARPS, OccupancyLimiter.BLOCKS, OccupancyLimiter.REGISTERS, OccupancyLimiter.SHARED_MEMORY,
    OccupancyLimiter.GRID,
)  # fmt: skip


KIND_PATTERNS = (
    (KernelKind.COMMUNICATION, r"nccl|nvshmem"),
    # Kernels around matrix products, and products of a matrix and a vector, which read each weight once.
    (KernelKind.MEMORY, r"gemv|split_?k_?reduce|im2col|col2im|nchw_?to_?nhwc|nhwc_?to_?nchw|nchwToFoldedNhwc"),
    (KernelKind.FP32, r"ffma|sgemm"),
    # nvjet: cuBLAS 12.8+; xmma: cuDNN and TensorRT; s16816 and the like: shapes of tensor core instructions.
    (KernelKind.TENSOR_CORE, r"nvjet|xmma|wgmma|[hi]mma|tensor_?op|[shi](8816|1688|16816|16832|884)(?!\d)|tcgen05"),
    (KernelKind.TENSOR_CORE, r"(bf16bf16|f16f16|f8f8|e4m3|e5m2|tf32).*(gemm|fprop)|flash_(fwd|bwd)|flash_attn|fmha"),
    (KernelKind.MATRIX, r"gemm|cutlass|winograd|fprop|dgrad|wgrad|implicit_conv|conv(olve|olution)?[1-3_]?d|convolve"),
    (KernelKind.MATRIX, r"conv2d|conv_|_conv|triton_tem_|matmul"),
    # Names of PyTorch (ATen/native/cuda), of TorchInductor's Triton kernels (poi, red, per), and of cuDNN.
    (KernelKind.MEMORY, r"elementwise|pointwise|triton_(poi|red|per)_|reduce|reduction|softmax|norm|soft_?max"),
    (KernelKind.MEMORY, r"copy|memcpy|memset|fill|CatArray|transpose|permute|index|gather|scatter|embedding|dropout"),
    (KernelKind.MEMORY, r"pool|upsample|interpolate|resize|roll|flip|cumsum|scan_|DeviceScan|arange|bias|activation"),
)
"""Kind and pattern of its kernel names; the first match counts.

Memory: few operations per value read and written, far below the ratio at which a GPU is limited by arithmetic (roofline
model: Williams, Waterman, Patterson, CACM 52(4), 2009; an H200 does 14 FP32 operations in the time of one byte). Matrix
products reuse what they read: large ones are limited by arithmetic, small or narrow ones are not.
"""


def kind_of_name(name: str) -> KernelKind:
    """Guess the kind of work from a kernel's name, short or demangled."""
    return next((kind for kind, part in KIND_PATTERNS if re.search(part, name, re.IGNORECASE)), KernelKind.UNKNOWN)


def group_kernels(trace: Trace, gpus: Gpus) -> KernelGroups:
    """Group the kernels of a trace and compute what follows from name and shape once per group."""
    details = trace.details
    at = np.flatnonzero(trace.operations.kind == GpuOperationKind.KERNEL)
    shapes = [shape[at, axis] for shape in (details.grid, details.block) for axis in range(3)]
    columns = [details.name[at], details.full_name[at], gpus.of[at], details.registers[at], details.shared_bytes[at]]
    groups = group_rows(*columns, *shapes)
    of = np.full(len(trace.operations), -1, dtype=np.int32)
    of[at] = groups.code
    example = at[groups.first]
    name = np.where(details.full_name[example] >= 0, details.full_name[example], details.name[example])
    kinds = by_name(trace.names, name, lambda text: KINDS_OF_KERNELS.index(kind_of_name(text)))
    return KernelGroups(of, example, kinds, *_residency(trace.details, gpus, example))


def _residency(details: OperationDetails, gpus: Gpus, at: Int64) -> tuple[Int64, Float64, Float64, Float64]:
    """Limiter, waves, fill and occupancy of kernels.

    Computed like NVIDIA's occupancy calculator (cuda_occupancy.h) for compute capability 5+, with the largest share of
    the L1 cache as shared memory; the driver may choose less.
    """
    # Blocks per grid, threads per block; NaN if any of the three numbers is unknown.
    blocks, threads = (
        np.where((shape > 0).all(axis=1), shape.astype(np.int64).prod(axis=1), np.nan)
        for shape in (details.grid[at], details.block[at])
    )
    registers, shared_bytes = details.registers[at], details.shared_bytes[at]

    def fact(read: Callable[[GpuDevice], float | None]) -> Float64:
        values = [read(each) for each in gpus.facts]
        return np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)[gpus.of[at]]

    sm_count, max_warps = fact(lambda each: each.sm_count), fact(lambda each: each.max_warps_per_sm)
    warps = np.ceil(threads / WARP)
    of_warp = _round_up(np.where(registers >= 0, registers, np.nan) * WARP, REGISTER_UNIT)
    reserved = fact(lambda each: SHARED_RESERVED_BYTES if (each.compute_capability or (0, 0)) >= (8, 0) else 0)
    of_block = _round_up(np.where(shared_bytes >= 0, shared_bytes, np.nan) + reserved, SHARED_UNIT_BYTES)
    shared = fact(lambda each: each.max_shared_bytes_per_sm)
    of_partition = np.floor(fact(lambda each: each.max_registers_per_sm) / SUB_PARTITIONS / np.maximum(of_warp, 1))
    limits = np.stack(
        [
            np.floor(max_warps / warps),
            fact(lambda each: each.max_blocks_per_sm),
            np.where(of_warp == 0, np.inf, np.floor(of_partition * SUB_PARTITIONS / warps)),
            np.where(of_block == 0, np.inf, np.floor(shared / np.maximum(of_block, 1))),
        ]
    )
    per_sm = np.where(limits.min(axis=0) >= 1, limits.min(axis=0), np.nan)
    at_once = per_sm * sm_count
    known = ~np.isnan(at_once) & ~np.isnan(blocks)
    limiter = np.where(blocks < at_once, LIMITERS.index(OccupancyLimiter.GRID), np.argmin(limits, axis=0))
    occupancy = np.minimum(blocks, at_once) * warps / (max_warps * sm_count)
    return np.where(known, limiter, -1), blocks / at_once, np.minimum(blocks / sm_count, 1.0), occupancy


def _round_up(values: Float64, unit: int) -> Float64:
    return np.ceil(values / unit) * unit
