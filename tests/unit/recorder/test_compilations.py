"""Compilations by PyTorch while a batch is open. A file of its own: PyTorch is slow to import."""

from __future__ import annotations

from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.model import conventions
from perfharness.tracer.range_log import RangeLog
from tests.unit.recorder_events import busy, readings


def test_compilations_are_marked(perf: PerfRecorder, log: RangeLog) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("torch._dynamo.callback")

    def compiler(graph: Any, _: Any) -> Any:
        busy(0.02)
        return graph.forward

    with perf.batch(0):
        busy(0.006)
    with perf.batch(1):
        torch.compile(lambda x: x + 1, backend=compiler, dynamic=False)(torch.ones(2))
    torch.compiler.reset()
    assert readings(log, conventions.MARK_COMPILING)[-1] >= 20_000_000
