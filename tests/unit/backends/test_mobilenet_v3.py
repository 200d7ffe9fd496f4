"""The shared example: its structure, its weights, and that what is built from them is the same network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.errors import BackendError
from samples.mobilenet_v3 import weights
from samples.mobilenet_v3.factory import create
from samples.mobilenet_v3.structure import BLOCKS, divisible, shapes, torchvision_names


def test_as_many_parameters_as_torchvision_documents() -> None:
    """5,483,032, of mobilenet_v3_large's page in torchvision's documentation."""
    trained = {name: shape for name, shape in shapes().items() if not name.endswith(("mean", "variance"))}
    assert sum(int(np.prod(shape)) for shape in trained.values()) == 5_483_032
    assert [block.squeeze for block in BLOCKS if block.squeeze] == [24, 32, 32, 120, 168, 168, 240, 240]
    assert divisible(18) == 24  # 16 is nearer, and under 90 %
    assert len([block for block in BLOCKS if block.residual]) == 10


def test_the_same_weights_each_time() -> None:
    """The sums of some, as they came out first: another network under the same name would make old results lies."""
    made = weights.seeded()
    assert {name: array.shape for name, array in made.items()} == shapes()
    assert {array.dtype for array in made.values()} == {np.dtype(np.float32)}
    for name, total in SUMS.items():
        assert np.abs(made[name]).sum(dtype=np.float64) == pytest.approx(total, rel=1e-6)


SUMS = {
    "stem.weight": 95.15963443578221,
    "block7.depthwise.norm.gamma": 243.00611448287964,
    "block15.project.norm.variance": 33.028076171875,
    "hidden.weight": 141977.30555022348,
    "classifier.bias": 762.7141032218933,
}


def test_pruning_removes_the_smallest_numbers() -> None:
    made, pruned = weights.seeded(), weights.pruned(weights.seeded(), share=0.25)
    names = [name for name in made if name.endswith(".weight")]
    removed = np.concatenate([np.abs(made[name][pruned[name] == 0]) for name in names])
    kept = np.concatenate([np.abs(pruned[name][pruned[name] != 0]) for name in names])
    assert removed.size / (removed.size + kept.size) == pytest.approx(0.25, abs=1e-6)
    assert removed.max() < kept.min()
    assert all(np.array_equal(made[name], pruned[name]) for name in set(made) - set(names))


def test_the_users_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {name: array + np.float32(0.5) for name, array in weights.seeded().items()}
    theirs = torchvision_names()
    assert set(theirs) == set(shapes())
    assert len(set(theirs.values())) == len(theirs)
    np.savez(tmp_path / "ours.npz", **own)
    np.savez(tmp_path / "theirs.npz", **{theirs[name]: array for name, array in own.items()})
    for file in ("ours.npz", "theirs.npz"):
        monkeypatch.setenv(weights.FILE_VARIABLE, str(tmp_path / file))
        read = weights.weights()
        assert all(np.array_equal(read[name], array) for name, array in own.items())
    with pytest.raises(ValueError, match="weight"):
        weights.checked({})
    with pytest.raises(BackendError, match="caffe"):
        create("caffe", "fp32")
    with pytest.raises(ValueError, match="weight"):
        weights.checked(own | {"stem.weight": np.zeros(2)})


def test_the_onnx_file_is_checked_and_has_an_open_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    from samples.mobilenet_v3 import onnx_model

    kinds = {}
    for precision in ("fp32", "fp16"):
        path = tmp_path / f"{precision}.onnx"
        monkeypatch.setattr("sys.argv", ["onnx_model", str(path), "--precision", precision])
        onnx_model.main()
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        (image,), (logits,) = model.graph.input, model.graph.output
        assert [each.dim_param or each.dim_value for each in image.type.tensor_type.shape.dim] == ["batch", 3, 224, 224]
        assert [each.dim_param or each.dim_value for each in logits.type.tensor_type.shape.dim] == ["batch", 1000]
        kinds[precision] = {tensor.data_type for tensor in model.graph.initializer}
        assert {tensor.name for tensor in model.graph.initializer} == set(shapes())
    assert kinds == {"fp32": {onnx.TensorProto.FLOAT}, "fp16": {onnx.TensorProto.FLOAT16}}
