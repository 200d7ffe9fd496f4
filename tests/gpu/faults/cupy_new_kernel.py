"""The source of a CUDA kernel has the batch's threshold written into it, so NVRTC compiles it in each batch.

cupy/cupy#2469: kernels made anew in each call were loaded anew, which also synchronised; cupy/cupy#3193.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 24
PIXELS = {"cuda": 16 << 20, "cpu": 1 << 8}
SOURCE = """
extern "C" __global__ void binarize(const float* pixels, float* out, unsigned int count, float threshold) {
    const unsigned int index = blockDim.x * blockIdx.x + threadIdx.x;
    if (index < count) out[index] = pixels[index] > THRESHOLD ? 1.0f : 0.0f;
}
"""
COMPILED: dict[str, Any] = {}


def kernel(source: str, *, on_gpu: bool) -> Any:
    """The kernel of this source; on the CPU its compiled twin in Python."""
    if source not in COMPILED:
        if on_gpu:
            import cupy

            COMPILED[source] = cupy.RawKernel(source, "binarize")
            COMPILED[source].compile()  # fault
        else:
            COMPILED[source] = compile(f"{source!r}", "binarize", "eval")  # fault
    return COMPILED[source]


def main() -> None:
    args = parse_options(__doc__)
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # or the second run would find the kernels of the first on the disk
    on_gpu = args.device == "cuda"
    xp = np
    if on_gpu:
        import cupy

        xp = cupy
    pixels = xp.linspace(0.0, 1.0, PIXELS[args.device], dtype=np.float32)
    output = xp.empty_like(pixels)
    count = pixels.size
    if args.mended:
        kernel(SOURCE.replace("THRESHOLD", "threshold"), on_gpu=on_gpu)

    perf = PerfRecorder("cupy_new_kernel")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("binarize"):
                    threshold = (index + 1) / (BATCHES + 1)
                    written = "threshold" if args.mended else f"{threshold:.6f}f"
                    binarize = kernel(SOURCE.replace("THRESHOLD", written), on_gpu=on_gpu)
                    if on_gpu:
                        arguments = (pixels, output, np.uint32(count), np.float32(threshold))
                        for _ in range(20):
                            binarize((count // 256,), (256,), arguments)
                    else:
                        output[:] = pixels > threshold
                with perf.range("results"):
                    float(output.sum())
    perf.finalize()


if __name__ == "__main__":
    main()
