"""Ranges and annotated functions in what torch.compile compiles: with `fullgraph` a split would raise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from perfharness import PerfRecorder, compiled_code
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.watch import apply_to_module
from perfharness.model.annotations import Annotations, FunctionAnnotation
from tests.unit.recorder_events import events, recording

torch: Any = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def nothing_traced_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiled_code, "ranges", set())
    monkeypatch.setattr(compiled_code, "functions", set())
    yield
    torch.compiler.reset()


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="eager", fullgraph=True)


def messages(log: Any) -> list[str | None]:
    return [event.message for event in events(log) if event.op == "push"]


def test_ranges_in_compiled_code_are_left_out_and_named() -> None:
    with recording() as log:
        perf = PerfRecorder("compiled")

        @perf.annotate("decorated")
        def double(x: Any) -> Any:
            return x * 2

        def forward(x: Any) -> Any:
            with perf.range("block"):
                x = x + 1
            perf.push_range("pushed")
            x = double(x)
            perf.pop_range()
            for _, one in perf.batches([x], items=len, start=3, message="looped"):
                x = one + 1
            with perf.batch(0) as inner:
                inner.total_items = 3
                return x - 2

        run = compiled(forward)
        for index in range(3):
            with perf.batch(index, total_items=4):
                assert run(torch.ones(4)).tolist() == [3.0] * 4
        assert messages(log) == ["batch"] * 3
        assert compiled_code.ranges == {"block", "pushed", "decorated", "looped", "batch"}
        assert forward(torch.ones(4)).tolist() == [3.0] * 4
        assert messages(log)[3:] == ["block", "pushed", "decorated", "looped", "batch"]
        perf.finalize()


def test_annotated_functions_in_compiled_code_are_left_out_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("annotated_module")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = "def inner(x):\n    return x + 1\ndef outer(x):\n    return inner(x) * 2\n"
    exec(compile(source, "<annotated>", "exec"), module.__dict__)
    annotations = [FunctionAnnotation(module.__name__, name, name) for name in ("inner", "outer")]
    with recording() as log:
        runtime = Runtime(Annotations(tuple(annotations)), "/nowhere")
        for target in runtime.targets:
            apply_to_module(module, target, runtime)
        assert compiled(lambda x: module.outer(x))(torch.ones(2)).tolist() == [4.0, 4.0]
        assert compiled_code.functions == {"annotated_module:inner", "annotated_module:outer"}
        assert messages(log) == []
        assert module.outer(torch.ones(2)).tolist() == [4.0, 4.0]
        assert messages(log) == ["outer", "inner"]
