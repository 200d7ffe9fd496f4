"""Shapes and values of a case's inputs; outcomes of processes that did not end normally."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.bench.inputs import input_arrays, input_shapes
from perfharness.bench.process import CaseEnd, result_of
from perfharness.bench.spec import RESULT_NAME, CaseSpec
from perfharness.errors import UsageError
from perfharness.model.bench import CaseProcess, CaseResult, TensorSpec
from perfharness_launcher.process import STDERR_LOG
from tests.unit.bench_results import known, made_up

IMAGE = TensorSpec(name="image", shape=(None, 3, 8, 8), dtype="float32")
IDS = TensorSpec(name="ids", shape=(None, None), dtype="int64")
SCALE = TensorSpec(name="scale", shape=(), dtype="float32")
CASE = made_up("fake", 5, device="cpu").case


def spec(**fields: Any) -> CaseSpec:
    return CaseSpec.model_validate({"case": CASE, "model": "m", **fields})


def test_the_first_open_dimension_is_the_batch() -> None:
    assert input_shapes([IMAGE, SCALE], spec()) == {"image": (5, 3, 8, 8), "scale": ()}


def test_named_dimensions() -> None:
    told = spec(inputs={"ids": ("batch", "sequence")}, dimensions={"sequence": 128}, tokens_dimension="sequence")
    assert input_shapes([IDS], told) == {"ids": (5, 128)}
    assert told.tokens == 128
    assert spec(tokens_per_item=7.5).tokens == 7.5
    assert spec().tokens is None


@pytest.mark.parametrize(
    ("specs", "fields"),
    [
        ([IDS], {}),
        ([IDS], {"inputs": {"ids": ("batch", "sequence")}}),
        ([IMAGE], {"inputs": {"image": ("batch", 1, 8, 8)}}),
        ([IMAGE], {"inputs": {"image": ("batch", 3)}}),
        ([IMAGE], {"inputs": {"other": ("batch",)}}),
        ([TensorSpec(name="x", shape=(1, 3), dtype="float32")], {}),
    ],
)
def test_what_cannot_be_is_refused(specs: list[TensorSpec], fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        input_shapes(specs, spec(**fields))


def test_values_are_seeded_and_of_the_right_kind() -> None:
    mask = TensorSpec(name="mask", shape=(None,), dtype="bool")
    shapes = {"image": (5, 3, 8, 8), "ids": (5, 9), "mask": (5,)}
    first, second, other = (input_arrays([IMAGE, IDS, mask], shapes, spec(seed=seed)) for seed in (1, 1, 2))
    assert (first["image"] == second["image"]).all()
    assert (first["image"] != other["image"]).any()
    assert {name: str(array.dtype) for name, array in first.items()} == {
        "image": "float32", "ids": "int64", "mask": "bool",
    }  # fmt: skip
    assert set(np.unique(first["ids"])) <= {0, 1}


def test_values_of_a_file_are_repeated_over_the_batch(tmp_path: Path) -> None:
    item = np.arange(3 * 8 * 8, dtype=np.float32).reshape(3, 8, 8)

    def read(one: TensorSpec, shape: tuple[int, ...], **arrays: Any) -> Any:
        np.savez(tmp_path / "in.npz", **arrays)
        return input_arrays([one], {one.name: shape}, spec(input_file=tmp_path / "in.npz"))[one.name]

    images = (5, 3, 8, 8)
    assert (read(IMAGE, images, image=item) == item).all()
    found = read(IMAGE, images, image=np.stack([item, item + 1]))
    assert [float((array - item).mean()) for array in found] == [0, 1, 0, 1, 0]
    scalar = read(SCALE, (), scale=np.float64(0.5))
    assert (scalar.ndim, str(scalar.dtype), float(scalar)) == (0, "float32", 0.5)
    for one, shape, wrong in ((SCALE, (), np.zeros(3)), (IMAGE, images, np.zeros((2, 2)))):
        with pytest.raises(UsageError):
            read(one, shape, **{one.name: wrong})
    with pytest.raises(UsageError):
        input_arrays([IMAGE], {"image": images}, spec(input_file=tmp_path / "none.npz"))


def leave(folder: Path, status: Any = None) -> None:
    """What a case has written: that it measures latency, or its own status."""
    process = CaseProcess(phase="latency", reported=status is not None)
    result = CaseResult(case=CASE, status=status or "failed", reason="why", versions={"a": "1"}, process=process)
    (folder / RESULT_NAME).write_text(result.model_dump_json())


@pytest.mark.parametrize(
    ("code", "stderr", "status", "says"),
    [
        (-9, "", "failed", "SIGKILL in the phase latency"),
        (-6, "terminate called\nwhat(): std::bad_alloc", "out-of-memory", "SIGABRT"),
        (3, "boom", "failed", "boom"),
        (-64, "", "failed", "SIGRTMAX"),
    ],
)
def test_a_process_that_did_not_come_to_its_end(tmp_path: Path, code: int, stderr: str, status: str, says: str) -> None:
    leave(tmp_path)
    (tmp_path / STDERR_LOG).write_text(stderr)
    found = result_of(CaseEnd(code), CASE, tmp_path)
    assert found.status == status
    assert says in known(found.reason)
    assert found.versions == {"a": "1"}, "what was known is kept"


def test_other_ends(tmp_path: Path) -> None:
    assert result_of(CaseEnd(None), CASE, tmp_path).status == "not-run"
    leave(tmp_path)
    late = result_of(CaseEnd(-9, timed_out=True), CASE, tmp_path, 5)
    assert late.status == "timeout"
    assert "5 s" in (late.reason or "")
    leave(tmp_path, "memory-limit")
    assert result_of(CaseEnd(-9), CASE, tmp_path).status == "memory-limit", (
        "its own word counts more than its exit code"
    )
    (tmp_path / RESULT_NAME).write_text("{")
    assert result_of(CaseEnd(1), CASE, tmp_path).status == "failed"
