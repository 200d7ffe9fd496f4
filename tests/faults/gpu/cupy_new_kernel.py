"""A threshold in a kernel's source makes NVRTC compile it in each batch. Mended: it is an argument."""

import os

import cupy
import numpy as np

from tests.faults.frame import MENDED, run

BATCHES = 24
SOURCE = """
extern "C" __global__ void binarize(const float* pixels, float* out, unsigned int count, float threshold) {
    const unsigned int index = blockDim.x * blockIdx.x + threadIdx.x;
    if (index < count) out[index] = pixels[index] > THRESHOLD ? 1.0f : 0.0f;
}
"""
compiled = {}


def kernel(threshold):
    source = SOURCE.replace("THRESHOLD", threshold)
    if source not in compiled:
        compiled[source] = cupy.RawKernel(source, "binarize")
        compiled[source].compile()  # fault
    return compiled[source]


def binarize(index):
    threshold = (index + 1) / (BATCHES + 1)
    function = kernel("threshold" if MENDED else f"{threshold:.6f}f")
    for _ in range(20):
        function((pixels.size // 256,), (256,), (pixels, output, np.uint32(pixels.size), np.float32(threshold)))


os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # or the second run would find the kernels of the first on the disk
pixels = cupy.linspace(0.0, 1.0, 16 << 20, dtype=np.float32)
output = cupy.empty_like(pixels)
if MENDED:
    kernel("threshold")
run(BATCHES, binarize=binarize, results=lambda _: float(output.sum()))
