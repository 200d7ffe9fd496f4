"""The order of a session's calls to CUDA, on a PyTorch whose GPU is the CPU and writes down what it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions
from perfharness.backends import torch as ours
from perfharness.backends.torch import TorchSession
from perfharness.backends.torch_program import Program
from perfharness.model.bench import TensorSpec

torch = pytest.importorskip("torch")


class FakeStream:
    def __init__(self, calls: list[str], name: str) -> None:
        self.calls, self.name = calls, name
        self.device = torch.device("cpu")

    def synchronize(self) -> None:
        self.calls.append(f"wait for {self.name}")


class Graph:
    """Runs anew what was captured, so that a replay reads the buffers of the capture."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def replay(self) -> None:
        self.calls.append("replay")

    def reset(self) -> None:
        self.calls.append("reset graph")


class FakeCuda:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.default = FakeStream(calls, "default")
        self.current, self.made = self.default, 0
        self.OutOfMemoryError = torch.cuda.OutOfMemoryError

    def Stream(self, device: Any) -> FakeStream:  # noqa: N802
        del device
        self.made += 1
        return FakeStream(self.calls, f"stream {self.made}")

    def CUDAGraph(self) -> Graph:  # noqa: N802
        return Graph(self.calls)

    @contextmanager
    def graph(self, graph: Graph, stream: FakeStream) -> Iterator[None]:
        del graph
        self.calls.append(f"capture on {stream.name}")
        yield
        self.calls.append("captured")

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> FakeStream:
        return self.current

    def default_stream(self) -> FakeStream:
        return self.default

    def set_stream(self, stream: FakeStream) -> None:
        self.current = stream
        self.calls.append(f"set {stream.name}")

    def empty_cache(self) -> None:
        self.calls.append("empty cache")

    def reset_peak_memory_stats(self, device: Any) -> None:
        del device
        self.calls.append("reset peak")


class FakeTorch:
    """PyTorch, but for `cuda`, devices and pinned memory."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.cuda = FakeCuda(self.calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: Any) -> Any:
        return torch.device("cpu")

    def empty_like(self, tensor: Any, **options: Any) -> Any:
        if options.get("pin_memory"):
            self.calls.append("pinned result")
        return torch.empty_like(tensor)


class Doubled(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not looked into
    def __init__(self, calls: list[str], fails: bool = False) -> None:
        super().__init__()
        self.calls, self.fails = calls, fails

    def forward(self, x: Any) -> Any:
        self.calls.append("model")
        if self.fails:
            raise torch.cuda.OutOfMemoryError("tried to allocate 1 TiB")
        return x * 2


@pytest.fixture(autouse=True)
def no_idle_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed session's stream is there for the next, of another test too."""
    monkeypatch.setattr(ours, "_IDLE_STREAMS", [])


def made(fake: FakeTorch, monkeypatch: pytest.MonkeyPatch, fails: bool = False, **options: Any) -> TorchSession:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    x = TensorSpec(name="x", shape=(None, 2), dtype="float32")
    y = TensorSpec(name="y", shape=(None, 2), dtype="float32")
    program = Program(Doubled(fake.calls, fails), (x,), (y,), [torch.float32], [torch.float32], "float32")
    session = TorchSession(fake, program, BackendOptions(device="cuda", **options))
    fake.calls.clear()
    return session


def a_round(session: TorchSession) -> None:
    session.copy_in()
    session.execute()
    session.copy_out()
    session.synchronize()


def test_eager_runs_nothing_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTorch()
    session = made(fake, monkeypatch)
    session.allocate({"x": (1, 2)})
    assert "model" not in fake.calls
    assert fake.calls[-2:] == ["empty cache", "reset peak"]
    session.write_inputs({"x": np.array([[1, 2]], np.float32)})
    fake.calls.clear()
    a_round(session)
    assert fake.calls == ["set stream 1", "model", "pinned result", "wait for stream 1"]
    fake.calls.clear()
    a_round(session)
    assert fake.calls == ["model", "wait for stream 1"]  # nothing is made in a round that is not the first
    assert session.read_outputs()["y"].tolist() == [[2, 4]]
    fake.calls.clear()
    session.close()
    assert "set default" in fake.calls


def test_a_graph_is_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTorch()
    session = made(fake, monkeypatch, mode="cudagraph")
    session.allocate({"x": (1, 2)})
    captured = fake.calls[fake.calls.index("set stream 1") :]
    assert captured == [
        "set stream 1", "model", "wait for stream 1", "model", "model", "wait for stream 1",
        "capture on stream 1", "model", "captured", "wait for stream 1",
    ]  # fmt: skip
    session.write_inputs({"x": np.array([[1, 2]], np.float32)})
    a_round(session)
    fake.calls.clear()
    for _ in range(2):
        a_round(session)
    assert fake.calls == ["replay", "wait for stream 1"] * 2
    fake.calls.clear()
    session.allocate({"x": (3, 2)})
    assert fake.calls.index("reset graph") < fake.calls.index("empty cache") < fake.calls.index("capture on stream 1")
    session.close()


def test_two_sessions_take_turns_on_their_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTorch()
    one, other = made(fake, monkeypatch), made(fake, monkeypatch)
    for session in (one, other):
        session.allocate({"x": (1, 2)})
        a_round(session)
    fake.calls.clear()
    for session in (one, other, other):
        a_round(session)
    assert [call for call in fake.calls if call.startswith("set")] == ["set stream 1", "set stream 2"]
    other.close()
    one.close()


def test_a_closed_sessions_stream_is_the_next_ones_and_no_open_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTorch()
    one, other = made(fake, monkeypatch), made(fake, monkeypatch)
    first, second = one._stream, other._stream
    assert first is not second
    one.close()
    third = made(fake, monkeypatch)
    assert third._stream is first
    fourth = made(fake, monkeypatch)
    assert all(fourth._stream is not stream for stream in (first, second))
    for session in (other, third, fourth):
        session.close()
