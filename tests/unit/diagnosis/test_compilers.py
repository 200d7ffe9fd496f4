"""Compilers in the steady state, by Python stacks and by native samples, worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.diagnosis.host.compilers import COMPILERS, compilers_of_functions, compilers_of_stacks
from perfharness.model.diagnosis import StageDiagnosis
from perfharness.model.host_samples import Frame, HostState
from tests.support.made_batches import BATCH, US, diagnosed, nothing, stage_of
from tests.support.probe_builder import ProbeBuilder

SITE = "/x/lib/python3.11/site-packages"
TRACING = f"{SITE}/tensorflow/python/eager/polymorphic_function/tracing_compilation.py"
BATCHES = 12
FORWARD = f"_conv_forward@{SITE}/torch/nn/modules/conv.py:548"


def name_of(number: int) -> str | None:
    return None if number < 0 else COMPILERS[number].name


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        ([("parse", "/usr/lib/python3.11/re/_parser.py")], "re"),
        ([("_parse", "/usr/lib/python3.10/sre_parse.py")], "re"),
        ([("parse", "/home/me/core/_parser.py")], None),  # ends like `re/_parser.py`, and is none
        ([("run", f"{SITE}/torch/_inductor/compile_fx.py")], None),  # what was compiled
        ([("compile_fx_inner", f"{SITE}/torch/_inductor/compile_fx.py")], "torch.compile"),
        ([("Core.compile_model", f"{SITE}/openvino/_ov_api.py")], "OpenVINO's compile_model"),
        ([("Core.read_model", f"{SITE}/openvino/_ov_api.py")], None),
        ([("_maybe_define_function", TRACING), ("trace_function", TRACING)], None),  # looks up what was traced
        ([("_create_concrete_function", TRACING), ("_maybe_define_function", TRACING)], "tf.function"),
        (
            [("parse", "/usr/lib/python3.11/re/_parser.py"), ("_compile", f"{SITE}/torch/_dynamo/convert_frame.py")],
            "torch.compile",  # which has called the other
        ),
        ([], None),
    ],
)
def test_the_outermost_compiler_of_a_stack(stack: list[tuple[str, str]], name: str | None) -> None:
    frames = [Frame(function, file, 1) for function, file in [*stack, ("main", "user.py")]]
    found = compilers_of_stacks(frames, [tuple(range(len(frames)))]).tolist()
    assert [name_of(number) for number in found] == [name, None]


@pytest.mark.parametrize(
    ("library", "function", "name"),
    [
        ("/x/nvidia/cuda_nvrtc/lib/libnvrtc.so.13", "", "NVRTC"),
        ("/x/nvidia/nvjitlink/lib/libnvJitLink.so.12", "", "NVRTC"),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.580.1", "", "the driver's compiler of PTX"),
        ("/x/triton/_C/libtriton.so", "llvm::PassManager::run", "Triton"),
        ("/x/jaxlib/libjax_common.so", "llvm::SelectionDAG::Legalize", "JAX's XLA"),
        ("/x/jaxlib/libjax_common.so", "xla::HloComputation::Accept(xla::DfsHloVisitor*)", "JAX's XLA"),
        ("/x/llvmless/libother.so", "llvm::SelectionDAG::Legalize", "LLVM"),
        (
            "/x/tensorflow/libtensorflow_framework.so.2",
            "bool llvm::function_ref<bool (mlir::RegisteredOperationName)>::callback_fn<mlir::Frozen>(long)",
            "tf.function",
        ),
        (
            "/x/tensorflow/libtensorflow_framework.so.2",
            "void std::_Construct<tensorflow::grappler::utils::OpTypePattern>(int)",
            "tf.function",
        ),
        ("/x/tensorflow/libtensorflow_cc.so.2", "tensorflow::MklMatMulOp<float>::Compute(void*)", None),
        ("/x/tensorflow/libtensorflow_cc.so.2", "tfrt::Execute(llvm::ArrayRef<int>, llvm::SmallVector<int>)", None),
        ("/x/jaxlib/libjax_common.so", "xla::cpu::ThunkExecutor::Execute", None),
        ("/usr/lib/libcuda.so.1", "", None),
        ("", "", None),
    ],
)
def test_the_compiler_of_a_native_function(library: str, function: str, name: str | None) -> None:
    (found,) = compilers_of_functions([Frame(function, library, 0, is_native=True)]).tolist()
    assert name_of(found) == name


def compiled(folder: Path, native_us: int, batches: int = BATCHES, stack: tuple[str, ...] = ()) -> StageDiagnosis:
    """A stage of 1 ms whose first 400 us have another stack, and so many microseconds from 200 on are NVRTC's."""
    probe = ProbeBuilder(100 * US)
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        probe.samples(begin, begin + 400 * US, [*(stack or ("load@user.py:5",))])
        probe.samples(begin + 400 * US, begin + 1000 * US, [FORWARD, "model@user.py:9"])
        if index < batches:
            probe.native(
                begin + 200 * US, begin + (200 + native_us) * US, "", "/x/libnvrtc.so.13", every_ns=20 * US
            )  # fmt: skip
    return stage_of(diagnosed(folder, nothing, probe=probe))


def test_native_code_of_a_compiler_is_the_cause_with_the_line_that_led_to_it(tmp_path: Path) -> None:
    first, *others = compiled(tmp_path, 700).causes
    assert first.code == "recompilation"
    assert (first.share, first.saves_ms) == pytest.approx((0.7, 0.7))
    assert "NVRTC" in first.what
    assert first.where is not None
    assert (first.where.function, first.where.line) == ("model", 9)  # 500 of the 700 us
    assert {cause.code: cause.share for cause in others} == pytest.approx({"cpu-bound": 0.3})


@pytest.mark.parametrize(
    ("compiles", "share"),
    [
        ((0, 2), 0.6),  # memory is asked for between two stretches of the compiler: it is the compiler's
        ((0,), 0.2),  # after it, by whom is not known
    ],
)
def test_a_library_that_helps_a_compiler_is_part_of_it(tmp_path: Path, compiles: tuple[int, ...], share: float) -> None:
    probe = ProbeBuilder(100 * US)
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        probe.samples(begin, begin + 1000 * US, [FORWARD, "model@user.py:9"])
        for part in range(3):
            what = ("", "/x/libnvrtc.so.13") if part in compiles else ("malloc", "/usr/lib/libc.so.6")
            probe.native(begin + 200 * part * US, begin + 200 * (part + 1) * US, *what, every_ns=20 * US)
        probe.native(begin + 600 * US, begin + 1000 * US, "run", "/x/libtorch_cpu.so", every_ns=20 * US)
    causes = {cause.code: cause.share for cause in stage_of(diagnosed(tmp_path, nothing, probe=probe)).causes}
    assert causes["recompilation"] == pytest.approx(share)


def test_time_that_stacks_and_native_samples_show_counts_once(tmp_path: Path) -> None:
    """Dynamo is on the stack for 400 us, and natively NVRTC from 200 to 700 us: 700 us in all."""
    stack = ("transform@/x/torch/_dynamo/convert_frame.py:7", "model@user.py:9")
    first = compiled(tmp_path, 500, stack=stack).causes[0]
    assert {first.code: first.share} == pytest.approx({"recompilation": 0.7})
    assert "torch.compile" in first.what  # 400 of them


def test_waiting_inside_of_a_compiler_is_no_computing_twice(tmp_path: Path) -> None:
    """Of 1 ms, the stage waits 600 us below `async_compile`, whose workers compile, and computes the rest itself."""
    probe = ProbeBuilder(100 * US)
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        stack = ["wait@/x/torch/_inductor/async_compile.py:809", "model@user.py:9"]
        probe.samples(begin, begin + 600 * US, stack, state=HostState.LOCK)
        probe.samples(begin + 600 * US, begin + 1000 * US, ["post@user.py:12"])
    causes = {cause.code: cause.share for cause in stage_of(diagnosed(tmp_path, nothing, probe=probe)).causes}
    assert causes["recompilation"] == pytest.approx(0.6)
    assert causes["cpu-bound"] == pytest.approx(0.4)


@pytest.mark.parametrize(("name", "code"), [("ptxas", "recompilation"), ("ffmpeg", "waiting-on-process")])
def test_a_program_that_compiles_and_is_waited_for(tmp_path: Path, name: str, code: str) -> None:
    probe = ProbeBuilder(100 * US)
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        probe.samples(begin, begin + 600 * US, ["run@user.py:9"], state=HostState.PROCESS)
        for time_ns in range(begin + 50 * US, begin + 600 * US, 100 * US):
            probe.waits_for(name, time_ns - 100 * US, time_ns)
        probe.samples(begin + 600 * US, begin + 1000 * US, ["post@user.py:12"])
    first = stage_of(diagnosed(tmp_path, nothing, probe=probe)).causes[0]
    assert first.code == code
    assert first.share == pytest.approx(0.6)
    assert first.where is not None
    assert first.where.line == 9
    assert (name in first.what) is (name == "ffmpeg")
