"""Targets: what a callable is called with, and rounds of a backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.load.callables import CallableTarget, Inputs
from perfharness.load.models import BackendTarget, ModelSpec, check_model
from perfharness.load.profile import MixEntry, checked_profile
from perfharness.load.request import Answer, LoadRequest, error_of
from perfharness.recorder import PerfRecorder

RECORDER = PerfRecorder("load")
REQUEST = LoadRequest(3, 2, "text", "load", 0)


def target(function: Callable[..., Any], *mix: MixEntry) -> CallableTarget:
    made = CallableTarget(function, RECORDER, Inputs(mix))
    made.open()
    return made


def test_a_function_gets_what_it_has_parameters_for(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\n\nc\nd\ne\n")
    entry = MixEntry(name="text", items=2, input=tmp_path / "lines.txt")
    seen: list[Any] = []
    target(lambda: seen.append("nothing")).call(REQUEST)
    target(lambda request: seen.append(request)).call(REQUEST)
    target(lambda lines: seen.append(lines), entry).call(REQUEST)
    target(lambda lines, request, more=1: seen.append((lines, request)), entry).call(REQUEST)
    assert seen == ["nothing", REQUEST, ["b", "c"], (["b", "c"], REQUEST)]  # lines 6 and 7 of 5


def test_inputs_of_every_kind(tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", image=array)
    (tmp_path / "a.json").write_text('{"text": ["x"]}')
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n[2]\n')

    def read(name: str) -> Any:
        return Inputs((MixEntry(name="text", items=2, input=tmp_path / name),)).of(REQUEST)

    np.testing.assert_array_equal(read("a.npy"), array)
    np.testing.assert_array_equal(read("a.npz")["image"], array)
    assert read("a.json") == {"text": ["x"]}
    assert read("a.jsonl") == [{"a": 1}, [2]]


def test_classes_coroutines_and_answers() -> None:
    closed: list[object] = []

    class Model:
        def __call__(self) -> Answer:
            return Answer(error="wrong-answer")

        def close(self) -> None:
            closed.append(self)

    class AsyncModel:
        async def __call__(self, request: LoadRequest) -> None:
            await asyncio.sleep(0)
            raise TimeoutError("planted")

    made, other = target(Model), target(Model)
    assert made.call(REQUEST).error == "wrong-answer"
    assert made.call(REQUEST).begun_ns is not None
    made.close()
    other.close()
    assert len({id(one) for one in closed}) == 2
    later = target(AsyncModel)
    assert later.is_async
    with pytest.raises(TimeoutError):
        asyncio.run(later.call_async(REQUEST))


def test_what_has_not_run_is_no_answer() -> None:
    """A generator or a coroutine that a function returns would count as answered in no time."""

    async def later() -> None:
        """Never awaited."""

    async def parts() -> AsyncIterator[int]:
        yield 1

    def generator(request: LoadRequest) -> Iterator[int]:
        yield request.id

    for function in (generator, lambda: later(), parts):
        with pytest.raises(TypeError):
            target(function).call(REQUEST)


@pytest.mark.parametrize(
    "wrong",
    [
        {"error": ValueError("x")}, {"message": 3}, {"items": "many"}, {"items": -1}, {"items": True}, {"tokens": 1.5},
        {"begun_ns": 1}, {"begun_ns": 1 << 62}, {"done_ns": -1}, {"first_token_ns": 0}, {"token_gaps_ns": [1, None]},
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_counted_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        target(lambda: Answer(**wrong)).call(REQUEST)


def test_an_answer_may_have_numbers_of_numpy() -> None:
    gaps = np.array([1, 2])
    found = target(lambda: Answer(items=np.int64(3), tokens=np.int32(4), token_gaps_ns=gaps)).call(REQUEST)  # type: ignore[arg-type]
    assert json.dumps([found.items, found.tokens]) == "[3, 4]"


def test_an_object_is_closed_on_the_event_loop_where_its_close_is_a_coroutine_function() -> None:
    closed: list[object] = []

    class Model:
        async def __call__(self) -> None:
            """Nothing."""

        async def close(self) -> None:
            closed.append(asyncio.get_running_loop())

    made = target(Model)
    asyncio.run(made.close_async())
    made.close()
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), "timeout"),
        (asyncio.TimeoutError(), "timeout"),
        (ConnectionRefusedError(), "refused"),
        (BrokenPipeError(), "reset"),
        (MemoryError(), "out-of-memory"),
        (RuntimeError("CUDA error: out of memory"), "out-of-memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("x"), "out-of-memory"),
        (KeyError("x"), "exception:KeyError"),
    ],
)
def test_kinds_of_errors(error: Exception, kind: str) -> None:
    assert error_of(error).error == kind


def test_a_model_is_run_with_each_batch_size_and_its_input(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    features = np.arange(6, dtype=np.float32)
    np.savez(tmp_path / "in.npz", features=features)
    mix = [{"name": "text", "items": 2, "input": str(tmp_path / "in.npz")}, {"name": "big", "items": 5}]
    profile = checked_profile({"phases": [{"duration": 1}], "mix": mix})
    model, spec = "tests.contract.tiny_models:create", ModelSpec(backend="onnxruntime")
    check_model(model, spec, profile)
    made = BackendTarget(model, spec, profile, RECORDER)
    made.open()
    try:
        assert made.call(REQUEST).error is None
        assert made.call(LoadRequest(4, 5, "big", "load", 0)).begun_ns is not None
        sessions = made._sessions
        assert {name: len(one.read_outputs()["logits"]) for name, one in sessions.items()} == {"text": 2, "big": 5}
        np.testing.assert_array_equal(sessions["text"]._host["features"], np.tile(features, (2, 1)))
    finally:
        made.close()
