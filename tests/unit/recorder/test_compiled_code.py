"""Ranges in what torch.compile compiles: with `fullgraph` a split would raise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perfharness import PerfRecorder, compiled_code
from tests.unit.recorder_events import events, recording

torch: Any = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def nothing_traced_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiled_code, "ranges", set())
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
