"""The kind of work that a kernel's name suggests. Evidence, not measurement: results name it as such."""

from __future__ import annotations

import re

from perfharness.model.diagnosis import KernelKind

PATTERNS = (
    (KernelKind.COMMUNICATION, r"nccl|nvshmem"),
    # Next to or after matrix products, and no products themselves; a matrix times a vector reads each weight once.
    (KernelKind.MEMORY, r"gemv|split_?k_?reduce|im2col|col2im|nchw_?to_?nhwc|nhwc_?to_?nchw|nchwToFoldedNhwc"),
    # nvjet: cuBLAS 12.8 and newer; xmma: cuDNN and TensorRT; s16816 and the like: shapes of tensor core instructions.
    (KernelKind.TENSOR_CORE, r"nvjet|xmma|wgmma|[hi]mma|tensor_?op|[shi](8816|1688|16816|16832|884)(?!\d)|tcgen05"),
    (KernelKind.TENSOR_CORE, r"(bf16bf16|f16f16|f8f8|e4m3|e5m2|tf32).*(gemm|fprop)|flash_(fwd|bwd)|flash_attn|fmha"),
    (KernelKind.MATRIX, r"gemm|cutlass|winograd|fprop|dgrad|wgrad|implicit_conv|conv(olve|olution)?[1-3_]?d|convolve"),
    (KernelKind.MATRIX, r"conv2d|conv_|_conv|triton_tem_|matmul"),
    # Names of PyTorch (ATen/native/cuda), of TorchInductor's Triton kernels (poi, red, per), and of cuDNN.
    (KernelKind.MEMORY, r"elementwise|pointwise|triton_(poi|red|per)_|reduce|reduction|softmax|norm|soft_?max"),
    (KernelKind.MEMORY, r"copy|memcpy|memset|fill|CatArray|transpose|permute|index|gather|scatter|embedding|dropout"),
    (KernelKind.MEMORY, r"pool|upsample|interpolate|resize|roll|flip|cumsum|scan_|DeviceScan|arange|bias|activation"),
)
"""Kind and what its names contain, the first that matches.

Memory: a few operations for each value read and written, far below what a GPU of today needs to be kept from waiting
for its memory (the roofline model: Williams, Waterman, Patterson, CACM 52(4), 2009; an H200 does 14 FP32 operations in
the time of one byte). Matrix products reuse what they read, so that large ones are limited by arithmetic and small or
narrow ones are not.
"""

_COMPILED = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in PATTERNS]


def kind_of_name(name: str) -> KernelKind:
    """What kind of work the kernel of this name (short or demangled) does."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), KernelKind.UNKNOWN)
