"""Rounds, graphs and streams of a session, on a PyTorch whose GPU is the CPU and writes down what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions
from perfharness.backends import torch as ours
from perfharness.backends.torch import TorchSession
from perfharness.backends.torch_program import Program
from perfharness.errors import OutOfMemoryError
from perfharness.model.bench import TensorSpec

torch = pytest.importorskip("torch")


class FakeTorch:
    """PyTorch, but for `cuda`, devices and pinned memory."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.made, self.current, self.cuda = 0, self.stream("default"), self
        self.default = self.current
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: Any) -> Any:
        return torch.device("cpu")

    def empty_like(self, tensor: Any, **options: Any) -> Any:
        if options.get("pin_memory"):
            self.calls.append("pinned result")
        return torch.empty_like(tensor)

    def stream(self, name: str) -> Any:
        wait = f"wait for {name}"
        return SimpleNamespace(name=name, device=self.device(), synchronize=lambda: self.calls.append(wait))

    def Stream(self, _: Any) -> Any:  # noqa: N802
        self.made += 1
        return self.stream(f"stream {self.made}")

    def CUDAGraph(self) -> Any:  # noqa: N802
        """Its replay reads the buffers of the capture."""
        return SimpleNamespace(
            replay=lambda: self.calls.append("replay"), reset=lambda: self.calls.append("reset graph")
        )

    @contextmanager
    def graph(self, _: Any, stream: Any) -> Iterator[None]:
        self.calls.append(f"capture on {stream.name}")
        yield
        self.calls.append("captured")

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> Any:
        return self.current

    def default_stream(self) -> Any:
        return self.default

    def set_stream(self, stream: Any) -> None:
        self.current = stream
        self.calls.append(f"set {stream.name}")

    def empty_cache(self) -> None:
        self.calls.append("empty cache")

    def reset_peak_memory_stats(self, _: Any) -> None:
        self.calls.append("reset peak")


class Doubled(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not looked into
    def __init__(self, fake: FakeTorch) -> None:
        super().__init__()
        self.fake = fake

    def forward(self, x: Any) -> Any:
        self.fake.calls.append("model")
        if self.fake.fails:
            raise torch.cuda.OutOfMemoryError("tried to allocate 1 TiB")
        return x * 2


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    monkeypatch.setattr(ours, "_IDLE_STREAMS", [])  # a closed session's stream is there for the next test, too
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return FakeTorch()


def opened(fake: FakeTorch, mode: str = "") -> TorchSession:
    x, y = (TensorSpec(name=name, shape=(None, 2), dtype="float32") for name in "xy")
    program = Program(Doubled(fake), (x,), (y,), [torch.float32], [torch.float32], "float32")
    return TorchSession(fake, program, BackendOptions(device="cuda", mode=mode))


def calls_of(fake: FakeTorch, *works: Any) -> list[str]:
    fake.calls.clear()
    for work in works:
        work()
    return list(fake.calls)


def test_a_round_runs_the_model_once_and_waits_once(fake: FakeTorch) -> None:
    session = opened(fake)
    session.allocate({"x": (1, 2)})
    session.write_inputs({"x": np.array([[1, 2]], np.float32)})
    session.run_round()
    assert sorted(calls_of(fake, session.run_round)) == ["model", "wait for stream 1"]
    assert session.read_outputs()["y"].tolist() == [[2, 4]]
    fake.fails = True
    with pytest.raises(OutOfMemoryError):
        session.execute()
    session.close()
    assert fake.current is fake.default


def test_a_graph_is_captured_once_and_replayed(fake: FakeTorch) -> None:
    session = opened(fake, "cudagraph")
    assert calls_of(fake, lambda: session.allocate({"x": (1, 2)})).count("capture on stream 1") == 1
    session.write_inputs({"x": np.array([[1, 2]], np.float32)})
    session.run_round()
    assert sorted(calls_of(fake, session.run_round)) == ["replay", "wait for stream 1"]
    again = calls_of(fake, lambda: session.allocate({"x": (3, 2)}))
    assert again.index("reset graph") < again.index("capture on stream 1")
    session.close()


def test_sessions_have_streams_of_their_own_and_leave_them_to_later_ones(fake: FakeTorch) -> None:
    one, other = opened(fake), opened(fake)
    for session in (one, other):
        session.allocate({"x": (1, 2)})
        session.run_round()
    calls = calls_of(fake, *(session.run_round for session in (one, other, other)))
    assert [call for call in calls if call.startswith("set")] == ["set stream 1", "set stream 2"]
    first = one._stream
    one.close()
    third, fourth = opened(fake), opened(fake)
    assert third._stream is first
    assert fourth._stream not in (first, other._stream)
    for session in (other, third, fourth):
        session.close()
