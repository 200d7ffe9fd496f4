"""Advice: a step for each cause, and the options of libraries for more threads or less work."""

from __future__ import annotations

from perfharness.analysis.diagnosis.stacks import Library
from perfharness.model.diagnosis import Place

STEPS = {
    "compilation": "Compile and load once, before the loop; pad inputs to few shapes; cache compiled code.",
    "capture": "Capture a CUDA graph once for each shape of the inputs, before the loop, and replay it.",
    "gpu compute": "Compute less or cheaper in its top kernels: smaller types (bf16, fp8), tensor cores, TF32.",
    "gpu compute, fp32": "Let its FP32 products use tensor cores: TF32 (torch.set_float32_matmul_precision), bf16.",
    "gpu memory": "Move fewer bytes: smaller types, fused kernels (torch.compile).",
    "gpu underfilled": "Give the GPU more work: larger batches, or independent stages on streams of their own.",
    "gpu latency": "Reduce the waits in its kernels: larger batches, more warps (fewer registers), fused kernels.",
    "gpu communication": "Exchange less between the GPUs: smaller types, fewer collectives, or while it computes.",
    "gpu unknown": "Look at its top kernels: smaller types, fused kernels, larger batches.",
    "small copies": "Copy once: put the parts into one pinned buffer, or make them on the GPU.",
    "pageable copies": "Pin the host's memory (pin_memory) and copy with non_blocking=True on a stream of its own.",
    "copies": "Copy less, or copy the next batch on a stream of its own while this one is computed.",
    "gc": "Create fewer objects per batch; call gc.freeze() after the set-up; raise gc.set_threshold().",
    "gil": "Move the work that holds the lock into a process of its own, or into native code that releases it.",
    "quota": "Raise the CPU quota (docker --cpus, limits.cpu), or run fewer threads.",
    "siblings": (
        "Give each process fewer threads (torch.set_num_threads; SessionOptions.intra_op_num_threads of ONNX Runtime; "
        "OMP_NUM_THREADS for libraries that read it), or launch fewer processes (-np)."
    ),
    "threads": (
        "Run fewer threads than CPUs (torch.set_num_threads, SessionOptions.intra_op_num_threads, OMP_NUM_THREADS), or "
        "undo a CPU affinity set by a library (os.sched_setaffinity)."
    ),
    "data loader": "Prepare batches faster: more workers (num_workers), prefetching (prefetch_factor).",
    "allocator": "Keep buffers between batches, or use a caching allocator (PyTorch's, CuPy's pool, cudaMallocAsync).",
    "read back": "Keep values on the GPU and read them once per batch (.item(), .cpu(), .tolist(), nonzero() wait).",
    "synchronize": "Wait once per batch, where the result is needed; order work by streams and events.",
    "launches": "Issue fewer operations: a CUDA graph, torch.compile(mode='reduce-overhead'), jax.jit, larger batches.",
    "explain": "Launch with --explain to see which functions and waits take the time.",
    "more samples": "Run more batches.",
    "inner stages": "Look at the stages inside it.",
    "smaller stages": "Annotate its parts as stages.",
}

WAIT_STEPS = {
    "lock": "Hold the lock for less time, or find what ends the wait: a time-out, a notification, a sleep.",
    "stage": "Make that work faster, give it more threads, or ask for it before it is needed.",
    "sleep": "Wait for an event instead of sleeping.",
    "file": "Read ahead or write behind in another thread, in larger pieces; avoid an fsync per batch.",
    "network": "Ask ahead, for several items at a time, over a connection that stays open.",
    "process": "Make the other process faster, ask before the result is needed, or exchange less.",
    "gpu": "Run fewer processes on this GPU (-np), or share it with MPS; compare the throughput of both.",
    "rank": "Look at the rank that comes last: give it less work, or an equal share.",
    "other": "See what this line waits for: do that in another thread, or ask for it before it is needed.",
}

THREADS = {
    "onnxruntime": "SessionOptions.intra_op_num_threads",
    "torch": "torch.set_num_threads",
    "cv2": "cv2.setNumThreads",
    "faiss": "faiss.omp_set_num_threads",
    "sklearn": "n_jobs",
    "scipy": "workers=",
}
"""Option of each library for more threads."""
LESS = {
    "json": "fewer or smaller values, or a binary form",
    "onnxruntime": "a smaller model, or a quantized one if it measures faster",
    "torch": "a smaller model, or a quantized one if it measures faster, torch.compile",
    "PIL": "Image.draft or reduce before decoding",
    "logging": "fewer messages, a higher level",
}
"""Ways to give each library less to do."""


ALL_CPUS = 0.8
"""Share of the CPUs in use from which more threads do not help."""


def cheaper(place: Place, library: Library | None, cpu_load: float | None) -> str:
    """Suggest how to compute less in this function, most of whose time is in `library`."""
    if library is None:
        what = f"line {place.line}" if place.function.startswith("<") else place.function
        return f"Make {what} cheaper, or spread its work over processes (try -np 2)."
    call, less = f"{library.function} of {library.name}", LESS.get(library.name, "smaller inputs, cheaper options")
    threads = THREADS.get(library.name)
    if threads is None or cpu_load is None:
        return f"Call {call} less, or give it less to do ({less})."
    if cpu_load >= ALL_CPUS:
        return f"Give {call} less to do ({less}), or more CPUs; more threads or larger batches do not help."
    return f"Give {call} more threads ({threads}), or less to do ({less})."
