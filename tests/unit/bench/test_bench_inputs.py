"""Shapes and values of a case's inputs; what is known of a process that ended without a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.bench.inputs import input_arrays, input_shapes
from perfharness.bench.process import CaseEnd, result_of
from perfharness.bench.spec import CaseSpec
from perfharness.errors import UsageError
from perfharness.model.bench import TensorSpec
from perfharness_launcher.process import STDERR_LOG
from tests.unit.bench_results import made_up

IMAGE = TensorSpec(name="image", shape=(None, 3, 8, 8), dtype="float32")
IDS = TensorSpec(name="ids", shape=(None, None), dtype="int64")
SCALE = TensorSpec(name="scale", shape=(), dtype="float32")
FIXED = TensorSpec(name="x", shape=(1, 3), dtype="float32")
MASK = TensorSpec(name="mask", shape=(None,), dtype="bool")
CASE = made_up("fake", 5, device="cpu").case
NAMED = {"inputs": {"ids": ("batch", "sequence")}}


def spec(**fields: Any) -> CaseSpec:
    return CaseSpec.model_validate({"case": CASE, "model": "m", **fields})


@pytest.mark.parametrize(
    ("specs", "fields", "shapes"),
    [
        ([IMAGE, SCALE], {}, {"image": (5, 3, 8, 8), "scale": ()}),
        ([IDS], {**NAMED, "dimensions": {"sequence": 128}}, {"ids": (5, 128)}),
        ([IDS], {}, None),
        ([IDS], NAMED, None),
        ([IMAGE], {"inputs": {"image": ("batch", 1, 8, 8)}}, None),
        ([IMAGE], {"inputs": {"image": ("batch", 3)}}, None),
        ([IMAGE], {"inputs": {"other": ("batch",)}}, None),
        ([FIXED], {}, None),
    ],
)
def test_shapes_of_a_batch_of_five(
    specs: list[TensorSpec], fields: dict[str, Any], shapes: dict[str, tuple[int, ...]] | None
) -> None:
    if shapes is not None:
        assert input_shapes(specs, spec(**fields)) == shapes
        return
    with pytest.raises(UsageError):
        input_shapes(specs, spec(**fields))


def test_values_are_seeded_and_of_the_right_kind() -> None:
    shapes = {"image": (5, 3, 8, 8), "ids": (5, 9), "mask": (5,)}
    first, second, other = (input_arrays([IMAGE, IDS, MASK], shapes, spec(seed=seed)) for seed in (1, 1, 2))
    assert (first["image"] == second["image"]).all()
    assert (first["image"] != other["image"]).any()
    kinds = {name: str(array.dtype) for name, array in first.items()}
    assert kinds == {"image": "float32", "ids": "int64", "mask": "bool"}
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
    with pytest.raises(UsageError, match=r"in\.npz"):
        read(SCALE, (), scale=np.array(None))  # a pickled object
    with pytest.raises(UsageError):
        input_arrays([IMAGE], {"image": images}, spec(input_file=tmp_path / "none.npz"))


@pytest.mark.parametrize(
    ("end", "stderr", "status"),
    [
        (CaseEnd(signal="SIGABRT"), "terminate called\nwhat(): std::bad_alloc", "out-of-memory"),
        (CaseEnd(exit_code=3), "boom", "failed"),
        (CaseEnd(signal="SIGKILL", timed_out=True), "", "timeout"),
        (CaseEnd(not_started="its supervisor ended"), "", "not-run"),
    ],
)
def test_a_process_that_reported_nothing(tmp_path: Path, end: CaseEnd, stderr: str, status: str) -> None:
    (tmp_path / STDERR_LOG).write_text(stderr)
    found = result_of(end, CASE, tmp_path, 5)
    assert (found.status, bool(found.reason)) == (status, True)
    assert stderr in (found.reason or stderr) or status == "out-of-memory"
