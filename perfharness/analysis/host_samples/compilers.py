"""Known compilers, recognised by functions that are on a stack only while something is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfharness.model.columns import Int64
from perfharness.model.host_samples import Frame

Names = Mapping[str, frozenset[str] | None]
"""Functions by end of file name; None for all functions of a file."""

FEW_SHAPES = "pad to few shapes"


@dataclass(frozen=True)
class Compiler:
    """A compiler, advice if it runs in the steady state, and `files`: functions that run only while it compiles."""

    name: str
    step: str
    files: Names = field(default_factory=dict)


def _all_of(*files: str) -> dict[str, frozenset[str] | None]:
    return dict.fromkeys(files)


COMPILERS = (
    Compiler(
        "torch.compile",
        f"Compile once: {FEW_SHAPES}, or mark them dynamic (torch.compile(dynamic=True)); TORCH_LOGS=recompiles prints "
        "what differed.",
        _all_of("torch/_dynamo/convert_frame.py", "torch/_inductor/async_compile.py")
        | {
            "torch/_inductor/compile_fx.py": frozenset({"compile_fx", "compile_fx_inner", "codegen_and_compile"}),
            "torch/_inductor/runtime/triton_heuristics.py": frozenset(
                {"precompile", "autotune_to_one_config", "benchmark_all_configs", "coordinate_descent_tuning"}
            ),
        },
    ),
    Compiler(
        "capture of a CUDA graph",
        "Capture the graph once, before the loop, and replay it.",
        {"torch/cuda/graphs.py": frozenset({"__enter__", "__exit__", "capture_begin", "capture_end"})},
    ),
    Compiler(
        "torch.jit",
        "Script or trace the module once, before the loop, and keep it.",
        {
            "torch/jit/_script.py": frozenset({"script", "_script_impl"}),
            "torch/jit/_trace.py": frozenset({"trace", "trace_module", "_trace_impl"}),
            "torch/fx/_symbolic_trace.py": frozenset({"symbolic_trace"}),
        },
    ),
    Compiler(
        "torch.utils.cpp_extension",
        "Build the extension once, before the loop, and keep what load() returns.",
        _all_of("torch/utils/cpp_extension.py"),
    ),
    Compiler(
        "Triton",
        f"Compile each kernel once: {FEW_SHAPES}, so that tl.constexpr arguments and keys of triton.autotune take few "
        "values.",
        _all_of("triton/compiler/code_generator.py", "triton/backends/nvidia/compiler.py")
        | {
            "triton/compiler/compiler.py": frozenset({"compile"}),
            "triton/runtime/autotuner.py": frozenset({"_bench"}),
        },
    ),
    Compiler(
        "JAX's XLA",
        f"Compile once: make the function for jax.jit once, outside of the loop, and {FEW_SHAPES}; "
        "JAX_LOG_COMPILES=1 prints what is compiled.",
        _all_of("jax/_src/interpreters/partial_eval.py", "jax/_src/interpreters/mlir.py", "jax/_src/compiler.py"),
    ),
    Compiler(
        "tf.function",
        f"Trace once: {FEW_SHAPES}, or give tf.function an input_signature; make the function outside of the loop.",
        {
            # not `_maybe_define_function`, because every call uses it to look up its graph
            "tensorflow/python/eager/polymorphic_function/tracing_compilation.py": frozenset(
                {"_create_concrete_function"}
            )
        },
    ),
    Compiler(
        "TVM",
        "Build the module once, export it (export_library), and load it.",
        _all_of("tvm/driver/build_module.py", "tvm/relax/vm_build.py", "tvm/tir/build.py"),
    ),
    Compiler(
        "TensorRT's builder",
        "Build the engine once, with a profile of all shapes, and keep its file.",
        _all_of("torch_tensorrt/dynamo/_compiler.py") | {"polygraphy/backend/trt/loader.py": frozenset({"call_impl"})},
    ),
    Compiler(
        "ONNX Runtime, making a session",
        "Create the InferenceSession once, before the loop, and keep it.",
        {"onnxruntime/capi/onnxruntime_inference_collection.py": frozenset({"_create_inference_session"})},
    ),
    Compiler(
        "OpenVINO's compile_model",
        "Compile the model once, before the loop, with dynamic shapes where they change.",
        {"openvino/_ov_api.py": frozenset({"compile_model"})},
    ),
    Compiler(
        "Numba",
        "Call compiled functions with the same types each time, or give them signatures; cache=True keeps them.",
        _all_of("numba/core/compiler.py")
        | {"numba/cuda/compiler.py": frozenset({"compile_cuda", "compile", "compile_ptx", "compile_all"})},
    ),
    Compiler(
        "CuPy's compiler",
        "Make kernels (RawKernel, ElementwiseKernel, RawModule) once, before the loop; give their numbers as arguments "
        "rather than in the source.",
        _all_of("cupy/cuda/compiler.py"),
    ),
    Compiler(
        "import",
        "Import at the top of the module, before the first batch.",
        {"<frozen importlib._bootstrap_external>": frozenset({"exec_module"})},
    ),
    Compiler(
        "re",
        "Compile patterns once, with re.compile outside of the loop; the cache of re holds few of them.",
        _all_of("re/_compiler.py", "re/_parser.py", "sre_compile.py", "sre_parse.py", "regex/_regex_core.py"),
    ),
    Compiler(
        "Jinja",
        "Create the template once, before the loop, and keep it.",
        _all_of("jinja2/compiler.py", "jinja2/parser.py", "jinja2/lexer.py"),
    ),
)  # fmt: skip
"""If a stack has frames of several, the outermost is the one at work, because it called the others."""


def is_named(frame: Frame, functions: frozenset[str] | None) -> bool:
    """Whether the frame is one of these functions (None for any), with or without its class."""
    return functions is None or frame.function in functions or frame.function.rpartition(".")[2] in functions


def frames_named(frames: Sequence[Frame], names: Names) -> list[int]:
    """Indices of the frames that match the names."""
    by_file: dict[str, list[int]] = {}
    for number, frame in enumerate(frames):
        by_file.setdefault(f"/{frame.file}", []).append(number)
    return [
        number
        for file, numbers in by_file.items()
        for end, functions in names.items()
        if file.endswith(f"/{end}")
        for number in numbers
        if is_named(frames[number], functions)
    ]


def compilers_of_stacks(frames: Sequence[Frame], stacks: Sequence[tuple[int, ...]]) -> Int64:
    """The compiler at work on each stack (innermost frame first) as an index of `COMPILERS`, -1 for none. The last
    entry, -1, is for samples without a stack.
    """
    of_frame: dict[int, int] = {}
    for number, compiler in enumerate(COMPILERS):
        of_frame |= dict.fromkeys(frames_named(frames, compiler.files), number)
    found = np.full(len(stacks) + 1, -1, dtype=np.int64)
    if of_frame:
        known = of_frame.keys()
        for at, stack in enumerate(stacks):
            if not known.isdisjoint(stack):
                found[at] = next(of_frame[number] for number in reversed(stack) if number in of_frame)
    return found
