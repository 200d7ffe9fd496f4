"""A case's samples through its session: files of a user, a baseline's stored outputs, labels, maps, own metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions, ModelSource
from perfharness.bench.accuracy.data import (
    Preprocessor,
    PreprocessSettings,
    Sample,
    SampleError,
    find_samples,
    read_map,
    resized_map,
    user_function,
)
from perfharness.bench.accuracy.depth import DepthSettings
from perfharness.bench.accuracy.run import Comparison, measure_accuracy, read_outputs
from perfharness.bench.accuracy.settings import AccuracySettings
from perfharness.errors import UsageError
from perfharness.model.bench import AccuracyRecord, Precision, TensorSpec
from tests.support.fake_backend import FakeBackend, FakeClock, FakeScript

MODEL = ModelSource("fake", factory="fake:model")


def run(
    settings: AccuracySettings, batch: int = 2, precision: Precision = "fp32", features: int = 4, **how: Any
) -> AccuracyRecord:
    backend = FakeBackend(FakeScript(features=features, scale=how.pop("scale", 1.0)), FakeClock())
    session = backend.load(MODEL, BackendOptions(precision=precision))
    shapes = {"x": (batch, features)}
    session.allocate(shapes)
    return measure_accuracy(session, shapes, settings, **how)


def write_rows(folder: Path, rows: dict[str, Any]) -> Path:
    for name, row in rows.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.asarray(row, dtype=np.float32))
    return folder


def test_a_case_against_the_stored_outputs_of_the_baseline(tmp_path: Path) -> None:
    """fp16 of 2049 is 2048: by hand a difference of 1 in one of twelve values, in a batch that is not full."""
    rows = {"a": [1, 2, 3, 4], "b": [2049, 1, 1, 1], "sub/c": [5, 6, 7, 8]}
    settings = AccuracySettings(inputs=write_rows(tmp_path / "in", rows))
    store = tmp_path / "baseline"
    own = run(settings, store=store)
    assert (own.against, own.samples) == ("ground truth", 0)
    assert read_outputs(store, "sub/c")["y"].tolist() == [5, 6, 7, 8]
    record = run(settings, precision="fp16", against="fake/plain/fp32", baseline=store, details=tmp_path / "details")
    assert (record.against, record.samples) == ("fake/plain/fp32", 3)
    assert record.metrics["max_absolute"] == 1
    assert record.metrics["mse"] == pytest.approx(1 / 12)
    assert record.metrics["max_relative"] == pytest.approx(1 / 2049)
    assert "top1_agreement" not in record.metrics, "nothing says that these are scores of classes"
    assert record.reasons == {}
    details = json.loads((tmp_path / "details" / "accuracy.json").read_text())
    assert details["worst_samples"] == {"y": "b"}


def test_agreement_is_given_of_what_is_declared_a_classification(tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "in", {"a": [1, 2, 3, 4], "b": [9, 1, 1, 1]})
    (tmp_path / "names.txt").write_text("cat\ndog\nfox\nowl\n")
    settings = AccuracySettings(inputs=folder, class_names=tmp_path / "names.txt")
    run(settings, store=tmp_path / "store")
    assert run(settings, baseline=tmp_path / "store").metrics["top1_agreement"] == 1
    assert run(settings, scale=-1.0, baseline=tmp_path / "store").metrics["top1_agreement"] == 0
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    wrong = run(settings, baseline=tmp_path / "store")
    assert wrong.metrics["top1_agreement"] is None
    assert wrong.reasons["top1_agreement"]


def test_one_output_that_is_nan_has_no_depth_errors(tmp_path: Path) -> None:
    """Of the other image they would be 0."""
    rows = {"a": np.full((2, 2), 2.0), "b": np.full((2, 2), 4.0)}
    truth = write_rows(tmp_path / "truth", rows)
    comparison = Comparison(AccuracySettings(inputs=truth, truth=truth))
    for name, row in rows.items():
        sample = Sample(name, truth / f"{name}.npy", truth / f"{name}.npy")
        comparison.update(sample, {"y": row * np.nan if name == "b" else row}, None)
    record = comparison.record("ground truth")
    assert (record.samples, record.metrics["abs_rel"], record.metrics["delta1"]) == (1, None, None)
    assert record.reasons["abs_rel"]


def test_a_damaged_file_is_one_line_and_the_others_are_compared(tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "in", {"a": [1, 2, 3, 4], "b": [1, 1, 1, 1], "wrong": [1, 2]})
    (folder / "bad.npy").write_bytes(b"no array")
    (folder / "bad.npz").write_bytes(b"")
    (folder / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    settings = AccuracySettings(inputs=folder)
    run(settings, store=tmp_path / "store")
    (tmp_path / "store" / "b.npz").unlink()
    record = run(settings, baseline=tmp_path / "store")
    assert record.samples == 1
    assert record.reasons["failed_samples"].startswith("3 of 4 ")
    assert all(text in record.reasons["failed_samples"] for text in ("(2,)", "(4,)", "torn.npz"))
    assert "bad" in record.reasons["unmatched_files"]


def test_classes_from_folders_and_which_lost(tmp_path: Path) -> None:
    """A model that doubles everything ranks equally; one that flips signs loses every class."""
    folder = write_rows(
        tmp_path / "in", {f"{label}/{n}": np.eye(4)[place] for place, label in enumerate("wxyz") for n in range(3)}
    )
    settings = AccuracySettings(inputs=folder, labels=folder, top_k=2)
    own = run(settings, store=tmp_path / "store")
    assert (own.samples, own.metrics["top1"], own.metrics["mean_class_accuracy"]) == (12, 1, 1)
    turned = run(settings, scale=-1.0, baseline=tmp_path / "store")
    assert turned.metrics["top1"] == 0
    assert turned.metrics["cosine"] == -1
    assert turned.metrics["top1_difference"] == -1
    assert turned.lost_classes == {"w": 1, "x": 1, "y": 1, "z": 1}


def test_labels_of_a_csv_and_numbers_of_the_models_classes(tmp_path: Path) -> None:
    folder = write_rows(tmp_path / "in", {"a": [0, 0, 1, 0], "b": [0, 1, 0, 0], "c": [1, 0, 0, 0]})
    (tmp_path / "labels.csv").write_text("file,label\na.npy,fox\nb,dog\n")
    (tmp_path / "names.txt").write_text("cat\ndog\nfox\nowl\n")
    settings = AccuracySettings(inputs=folder, labels=tmp_path / "labels.csv", class_names=tmp_path / "names.txt")
    record = run(settings)
    assert (record.samples, record.metrics["top1"]) == (2, 1)
    assert "(c)" in record.reasons["unmatched_files"]


def test_numbers_of_a_csv_are_the_truth_of_a_regression(tmp_path: Path) -> None:
    """A model of one value that doubles it: 2, 4 and 10 of 2, 5 and 6; `d` has no number."""
    folder = write_rows(tmp_path / "in", {"a": [1], "b": [2], "c": [5], "d": [7]})
    (tmp_path / "values.csv").write_text("file,value\na,2\nb,5\nc,6\n")
    settings = AccuracySettings(inputs=folder, values=tmp_path / "values.csv")
    record = run(settings, features=1, scale=2.0)
    assert record.samples == 3
    assert record.metrics["mae"] == pytest.approx(5 / 3)
    assert record.metrics["r2"] == pytest.approx(1 - 17 / (26 / 3))
    assert "(d)" in record.reasons["unmatched_files"]
    infinite = run(settings, features=1, scale=float("inf"))
    write_rows(folder, {name: [1, 2] for name in "abc"})
    for wrong in (infinite, run(settings, features=2)):
        assert (wrong.samples, wrong.metrics["mae"], bool(wrong.reasons["mae"])) == (0, None, True)


def test_depth_of_a_folder_matched_by_name(tmp_path: Path) -> None:
    """Unmatched files are reported; an output of one dimension is no map."""
    inputs = write_rows(tmp_path / "in", {"a": [1, 2, 4, 8], "b": [1, 2, 4, 8], "lone": [1, 1, 1, 1]})
    truth = write_rows(tmp_path / "gt", {"a": [[2, 4, 8, 16]], "other": [[1, 1, 1, 1]]})
    np.savez(truth / "b.npz", depth=np.zeros((1, 4)), rgb=np.zeros((1, 4, 3)))
    settings = AccuracySettings(inputs=inputs, truth=truth, depth=DepthSettings(max_depth=100))
    record = run(settings, batch=1)
    assert (record.samples, record.metrics["abs_rel"]) == (0, None)
    assert record.reasons["failed_samples"]
    assert all(name in record.reasons["unmatched_files"] for name in ("lone", "other"))


# ---- files ----


def test_maps_of_all_kinds(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    depth = np.array([[256, 512], [0, 65535]], dtype=np.uint16)
    image.fromarray(depth).save(tmp_path / "a.png")
    assert read_map(tmp_path / "a.png", 256).tolist() == [[1, 2], [0, 65535 / 256]]
    np.savez(tmp_path / "b.npz", depth[np.newaxis, ..., np.newaxis])
    assert read_map(tmp_path / "b.npz", 256).tolist() == depth.tolist()  # arrays have their unit already
    image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "c.png")
    (tmp_path / "d.png").write_bytes(b"no image")
    np.savez(tmp_path / "e.npz", a=depth, b=depth)
    for name in ("c.png", "d.png", "e.npz"):
        with pytest.raises(SampleError):
            read_map(tmp_path / name)


def test_resized_map_by_hand() -> None:
    """Two pixels to four: centres at -1/4 (kept at the border), 1/4, 3/4, 5/4 of the way."""
    assert resized_map(np.array([[0.0, 4.0]]), (1, 4)).tolist() == [[0, 1, 3, 4]]
    assert resized_map(np.array([[0.0, 4.0], [8.0, 12.0]]), (1, 1)).tolist() == [[6]]


@pytest.mark.slow
def test_resized_map_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(size=(7, 5))
    theirs = torch.nn.functional.interpolate(torch.from_numpy(values)[None, None], size=(11, 3), mode="bilinear")
    np.testing.assert_allclose(resized_map(values, (11, 3)), theirs[0, 0].numpy(), atol=1e-12)


def test_an_image_becomes_an_input(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.full((6, 4, 3), (255, 0, 51), np.uint8)).save(tmp_path / "a.png")
    specs = [TensorSpec(name="x", shape=(None, 3, 2, 2), dtype="float32")]
    settings = PreprocessSettings(mean=(0.5, 0.5, 0), std=(0.5, 0.25, 1))
    made = Preprocessor(settings, specs, {"x": (1, 3, 2, 2)})(tmp_path / "a.png")["x"]
    np.testing.assert_allclose(made[:, 0, 0], [1, -2, 0.2], rtol=1e-6)
    pixels = Preprocessor(
        settings, [TensorSpec(name="x", shape=(1, 2, 2, 3), dtype="uint8")], {"x": (1, 2, 2, 3)}
    )(tmp_path / "a.png")["x"]  # fmt: skip
    assert pixels[0, 0].tolist() == [255, 0, 51]


def test_a_function_of_the_users_makes_the_input(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import numpy as np\n\n\ndef load(path):\n"
        "    if 'bad' in path.name:\n        raise OSError('torn')\n"
        "    return {'x': np.full(4, len(path.read_text()))}\n"
    )
    (tmp_path / "in").mkdir()
    for name in ("a", "bad"):
        (tmp_path / "in" / f"{name}.npy").write_text("123")
    preprocess = PreprocessSettings(function=f"{tmp_path / 'own.py'}:load")
    settings = AccuracySettings(inputs=tmp_path / "in", preprocess=preprocess)
    store = tmp_path / "store"
    record = run(settings, store=store)
    assert read_outputs(store, "a")["y"].tolist() == [3, 3, 3, 3]
    assert "OSError: torn" in record.reasons["failed_samples"]


@pytest.mark.parametrize(
    ("inputs", "truth", "labels"),
    [
        ("none", None, None),
        ("empty", None, None),
        ("in", "gt", None),
        ("in/a.npy", "gt", None),
        *(("in", None, labels) for labels in ("in", "none.csv", "twice.csv", "short.csv", "fox.csv")),
    ],
)
def test_where_nothing_can_be_compared(tmp_path: Path, inputs: str, truth: str | None, labels: str | None) -> None:
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path / "in", {"a": [1]})
    write_rows(tmp_path / "gt", {"b": [[1]]})
    for name, text in {"twice": "a,1\na,2\n", "short": "a\n", "fox": "a,fox\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    maps, given = (None if name is None else tmp_path / name for name in (truth, labels))
    with pytest.raises(UsageError):
        find_samples(tmp_path / inputs, maps, given, class_names=tmp_path / "names.txt")


# ---- own metrics ----


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "metric.py").write_text(
        "import numpy as np\n\n\n"
        "def bias(outputs, reference, sample):\n    return float((outputs['y'] - reference['y']).mean())\n\n\n"
        "def parts(outputs, reference, sample):\n    return {'first': outputs['y'][0], 'none': None}\n\n\n"
        "def share(outputs, reference, sample):\n    return float('nan') if sample == 'b' else 0.5\n\n\n"
        "def broken(outputs, reference, sample):\n    return outputs['z']\n\n\n"
        "def text(outputs, reference, sample):\n    return 'high'\n\n\n"
    )
    return str(tmp_path / "metric.py")


def test_own_metrics_of_a_case(tmp_path: Path, own: str) -> None:
    rows = {"a": [1, 2, 3, 4], "b": [3, 1, 1, 1]}
    metrics = tuple(f"{own}:{name}" for name in ("bias", "parts", "share", "broken", "text"))
    folder = write_rows(tmp_path / "in", rows)
    run(AccuracySettings(inputs=folder), store=tmp_path / "store")
    record = run(AccuracySettings(inputs=folder, metrics=metrics), scale=2.0, baseline=tmp_path / "store")
    assert record.metrics["bias"] == pytest.approx((2.5 + 1.5) / 2)
    assert record.metrics["first"] == 4
    assert [record.metrics[name] for name in ("none", "share")] == [None, None]
    said = {"none": "2 of 2", "share": "0.5", "broken": "KeyError: 'z'", "text": "high"}
    assert all(part in record.reasons[name] for name, part in said.items())


def test_an_own_metric_that_is_not_there(own: str) -> None:
    for text in (f"{own}:nothing", "word"):
        with pytest.raises(UsageError):
            user_function(text)
