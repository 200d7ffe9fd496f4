"""Compilers in the steady state, by Python stacks, worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.host_samples.compilers import COMPILERS, compilers_of_stacks
from perfharness.model.diagnosis import Code
from perfharness.model.host_samples import Frame, HostState
from tests.support.made_batches import Batch, diagnosed, stage_of

SITE = "/x/lib/python3.11/site-packages"
TRACING = f"{SITE}/tensorflow/python/eager/polymorphic_function/tracing_compilation.py"


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


def test_waiting_inside_of_a_compiler_is_compiling(tmp_path: Path) -> None:
    """Of 1 ms, the stage waits 600 us below `async_compile`, whose workers compile, and computes the rest itself."""

    def content(batch: Batch) -> None:
        stack = ("wait@/x/torch/_inductor/async_compile.py:809", "model@user.py:9")
        batch.sampled(0, 600, *stack, state=HostState.LOCK)
        batch.sampled(600, 1000, "post@user.py:12")

    causes = {cause.code: cause.share for cause in stage_of(diagnosed(tmp_path, content)).causes}
    assert causes == {Code.COMPILATION: pytest.approx(0.6), Code.CPU_BOUND: pytest.approx(0.4)}
