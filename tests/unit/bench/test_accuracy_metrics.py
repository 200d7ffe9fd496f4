"""Metrics by hand, and what must hold for any data; against other libraries in `test_accuracy_references`."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as made

from perfharness.bench.accuracy.data import SampleError
from perfharness.bench.accuracy.depth import (
    DEPTH_METRICS,
    DepthSettings,
    depth_errors,
    depth_means,
    map_difference,
    normalised,
)
from perfharness.bench.accuracy.metrics import ClassAccumulator, Figures, regression_figures, wilson
from perfharness.bench.accuracy.outputs import BLOCK, DifferenceAccumulator, Tolerance, compare_outputs


def compared(values: Any, baseline: Any) -> Figures:
    seen = DifferenceAccumulator()
    seen.update(np.asarray(values, dtype=np.float32), np.asarray(baseline, dtype=np.float32), "one")
    return seen.figures()


# ---- differences ----


@pytest.mark.parametrize(
    ("values", "baseline", "name", "expected"),
    [
        ([3, 4, 0], [4, 3, 2], "cosine", 24 / (5 * sqrt(29))),
        ([3, 4, 0], [4, 3, 2], "mse", (1 + 1 + 4) / 3),
        ([3, 4, 0], [4, 3, 2], "max_absolute", 2),
        ([3, 4, 0], [4, 3, 2], "max_relative", 1),
        ([3, 4, 0], [4, 3, 2], "zero_baseline_count", 0),
        ([0.5, 3.0, 0.0], [0.0, 2.0, 0.0], "max_relative", 0.5),
        ([0.5, 3.0, 0.0], [0.0, 2.0, 0.0], "zero_baseline_count", 1),
        ([1, np.nan, np.inf, 2], [1, 1, np.inf, 2], "nan_count", 1),
        ([1, np.nan, np.inf, 2], [1, 1, np.inf, 2], "inf_count", 1),
        ([1, np.nan, np.inf, 2], [1, 1, np.inf, 2], "baseline_nan_count", 0),
        ([1, np.nan, np.inf, 2], [1, 1, np.inf, 2], "baseline_inf_count", 1),
        ([1, np.nan, np.inf, 2], [1, 1, np.inf, 2], "cosine", None),
        ([np.inf, 2], [-np.inf, 2], "mse", None),
        ([np.nan, np.inf, 2], [np.nan, np.inf, 2], "mse", 0),
        ([np.nan, np.nan], [np.nan, np.nan], "mse", None),
        ([0, 0], [1, 2], "cosine", None),
        ([1, 2], [0, 0], "cosine", None),
        ([1, 2], [0, 0], "max_relative", None),
        ([0, 0], [0, 0], "cosine", None),
        ([], [], "cosine", None),
    ],
)
def test_a_difference_by_hand_or_none_with_a_reason(
    values: list[float], baseline: list[float], name: str, expected: float | None
) -> None:
    found = compared(values, baseline)[name]
    assert found.value == (None if expected is None else pytest.approx(expected))
    assert (found.value is None) == bool(found.reason)


def test_cosine_of_all_values_and_of_the_worst_sample() -> None:
    seen = DifferenceAccumulator()
    seen.update(np.array([1.0, 0.0]), np.array([1.0, 0.0]), "good")
    seen.update(np.array([0.0, 1.0]), np.array([1.0, 0.0]), "bad")
    found = seen.figures()
    assert [found[name].value for name in ("cosine", "cosine_min")] == pytest.approx([0.5, 0.0])
    assert seen.worst_sample == "bad"


@pytest.mark.parametrize("bad", [np.zeros(4), np.full(4, np.nan), np.zeros(0)])
def test_a_sample_without_a_cosine_is_not_left_out_of_the_smallest(bad: npt.NDArray[np.float64]) -> None:
    """Nine of ten are equal; one is all zeros, NaN on both sides, or empty."""
    seen, values = DifferenceAccumulator(), np.asarray([1.0, 2.0, 3.0, 4.0])
    for number in range(10):
        own = bad if number == 3 else values
        seen.update(own, values if own.size and np.isfinite(own).all() else own, f"sample {number}")
    found = seen.figures()["cosine_min"]
    assert found.value is None
    assert "sample 3" in (found.reason or "")


def test_sums_beyond_float64_are_no_number() -> None:
    seen = DifferenceAccumulator()
    seen.update(np.array([1e200]), np.array([1e200]))
    assert (seen.figures()["cosine"].value, bool(seen.figures()["cosine"].reason)) == (None, True)
    assert seen.figures()["max_absolute"].value == 0


def test_other_shapes_and_kinds_are_refused() -> None:
    seen = DifferenceAccumulator()
    for values in (np.zeros(3), np.zeros(2, complex)):
        with pytest.raises(SampleError):
            seen.update(values, np.zeros(2))
    assert seen.samples == 0


def test_blocks_do_not_change_figures() -> None:
    x, b = np.random.default_rng(1).normal(size=(2, BLOCK + 7)).astype(np.float32)
    found = compared(x, b)
    assert found["mse"].value == pytest.approx(float(((x.astype(float) - b) ** 2).mean()))
    assert found["max_absolute"].value == float(np.abs(x.astype(float) - b).max())


# ---- classes ----


def test_top_k_by_hand() -> None:
    """Five samples of three classes: right, second, right, third, NaN."""
    seen = ClassAccumulator(top_k=2, names=("cat", "dog", "fox"))
    seen.update(np.array([[3, 2, 1], [3, 2, 1], [1, 2, 3], [3, 2, 1], [1, np.nan, 1]]), [0, 1, 2, 2, 2])
    found = {name: one.value for name, one in seen.figures().items()}
    low, high = wilson(2, 5)
    # predicted: cat, cat, fox, cat, none; of cat 1 of 3 are right, of fox 1 of 1
    assert found == pytest.approx(
        {"top1": 0.4, "top1_low": low, "top1_high": high, "mean_class_accuracy": (1 + 0 + 1 / 3) / 3, "top2": 0.6,
         "unordered_count": 1, "precision_macro": (1 / 3 + 0 + 1) / 3, "recall_macro": (1 + 0 + 1 / 3) / 3,
         "f1_macro": (2 / 4 + 0 + 2 / 4) / 3, "precision_micro": 2 / 4, "recall_micro": 2 / 5, "f1_micro": 4 / 9}
    )  # fmt: skip
    assert {one.name: (one.precision, one.f1, one.difference) for one in seen.classes()} == {
        "cat": (pytest.approx(1 / 3), 0.5, None),
        "dog": (None, 0, None),
        "fox": (1, 0.5, None),
    }
    assert dict(seen.confusion) == {(0, 0): 1, (1, 0): 1, (2, 2): 1, (2, 0): 1}


def test_which_classes_lost_by_hand() -> None:
    """Of eight cats the baseline has all, the case two; of two dogs the case has one that the baseline has not."""
    cat, dog = [1.0, 0.0], [0.0, 1.0]
    seen = ClassAccumulator(names=("cat", "dog"))
    seen.update(np.array([cat] * 2 + [dog] * 6), [0] * 8, np.array([cat] * 8))
    seen.update(np.array([dog, cat]), [1, 1], np.array([cat, cat]))
    lost, gained = seen.classes()
    assert (lost.name, lost.difference, lost.accuracy, lost.baseline_accuracy) == ("cat", -0.75, 0.25, 1.0)
    assert (lost.accuracy_low, lost.accuracy_high) == wilson(2, 8)
    assert (gained.name, gained.difference) == ("dog", 0.5)
    assert seen.lost() == {"cat": 0.75}
    found = seen.figures()
    assert found["top1_difference"].value == pytest.approx((1 - 6) / 10)
    assert (found["top5"].value, bool(found["top5"].reason)) == (None, True)


def test_labels_that_do_not_fit() -> None:
    seen = ClassAccumulator()
    for shape, labels in (((1, 3), [3]), ((2, 3), [1])):
        with pytest.raises(SampleError):
            seen.update(np.zeros(shape), labels)
    assert (seen.figures()["top1"].value, bool(seen.figures()["top1"].reason)) == (None, True)
    seen.update(np.zeros((1, 3)), [1])
    with pytest.raises(SampleError):
        seen.update(np.zeros((1, 4)), [1])


# ---- regression ----


def test_regression_by_hand() -> None:
    """Errors 1, 0, 2; the truth 1, 2, 6 is 2, 1, 3 from its mean."""
    assert (regression_figures([])["r2"].value, bool(regression_figures([])["r2"].reason)) == (None, True)
    found = {name: one.value for name, one in regression_figures([(2, 1), (2, 2), (4, 6)]).items()}
    assert found == pytest.approx({"mae": 1, "rmse": sqrt(5 / 3), "r2": 1 - 5 / 14})


# ---- depth ----

UNSCALED = DepthSettings(scaling="none")


@pytest.mark.parametrize(
    ("prediction", "truth", "settings", "expected"),
    [
        # errors 0, 1, 0; ratios 1, 1.5, 1; the last pixel is not valid
        ([1, 3, 4, 9], [1, 2, 4, 0], UNSCALED,
         {"abs_rel": 1 / 2 / 3, "sq_rel": 1 / 2 / 3, "rmse": sqrt(1 / 3), "rmse_log": sqrt(log(1.5) ** 2 / 3),
          "delta1": 2 / 3, "delta2": 1, "delta3": 1, "scale": 1}),
        # medians 2 and 4: errors are those of (1, 2, 8) against (1, 2, 4)
        ([2, 4, 16], [1, 2, 4], DepthSettings(),
         {"scale": 0.5, "abs_rel": 1 / 3, "sq_rel": 16 / 4 / 3, "rmse": 4 / sqrt(3), "delta1": 2 / 3, "delta3": 2 / 3}),
        ([1.25, 1], [1, 1], UNSCALED, {"delta1": 0.5}),  # a threshold itself is not inside
        # of these 2 and 5 are valid, their predictions brought to 1 and 10
        ([1, 0.1, 50, 3, 3], [0.5, 2, 5, 10, np.nan], DepthSettings(min_depth=1, max_depth=10, scaling="none"),
         {"abs_rel": (1 / 2 + 5 / 5) / 2}),
        ([1, 0.5, 0.25], [1, 2, 4], DepthSettings(scaling="none", prediction="disparity"), {"abs_rel": 0}),
    ],
)  # fmt: skip
def test_depth_by_hand(
    prediction: list[float], truth: list[float], settings: DepthSettings, expected: dict[str, float]
) -> None:
    found = depth_errors(np.array(prediction), np.array(truth, dtype=float), settings)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


DEPTHS = st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.5, 50)), min_size=1, max_size=20)


@given(DEPTHS, st.integers(-6, 6))
def test_median_scaling_does_not_see_the_scale_nor_thresholds_which_is_the_truth(
    pairs: list[tuple[float, float]], power: int
) -> None:
    prediction, truth = np.array(pairs).T
    one, two = depth_errors(prediction, truth), depth_errors(prediction * 2.0**power, truth)
    assert [one[name] for name in DEPTH_METRICS[:-1]] == [two[name] for name in DEPTH_METRICS[:-1]]
    one, two = depth_errors(prediction, truth, UNSCALED), depth_errors(truth, prediction, UNSCALED)
    assert [one[f"delta{n}"] for n in (1, 2, 3)] == [two[f"delta{n}"] for n in (1, 2, 3)]
    assert one["rmse"] == pytest.approx(two["rmse"])


def test_depth_of_several_images_is_their_mean() -> None:
    assert (depth_means([])["rmse"].value, bool(depth_means([])["rmse"].reason)) == (None, True)
    found = depth_means([dict.fromkeys(DEPTH_METRICS, value) for value in (1.0, 2.0)])
    assert {one.value for one in found.values()} == {1.5}


# ---- normalised maps ----


def test_map_difference_by_hand() -> None:
    """(0, 1, 2) and (10, 40, 30) are (0, 1/2, 1) and (0, 1, 2/3)."""
    found = map_difference(np.array([0, 1, 2]), np.array([10, 40, 30]))
    assert found == pytest.approx({"mae": (1 / 2 + 1 / 3) / 3, "rmse": sqrt((1 / 4 + 1 / 9) / 3), "max": 1 / 2})


@pytest.mark.parametrize(
    ("function", "maps"),
    [
        *(
            (depth_errors, maps)
            for maps in ([[1, 1], [0, 100]], [[np.nan, 1], [1, 1]], [[0, 0], [1, 1]], [[1], [1, 1]])
        ),
        *((normalised, [values]) for values in ([1, 1], [1, np.nan], [], [-1.7e308, 1.7e308])),
    ],
)
def test_maps_that_cannot_be_compared(function: Any, maps: list[list[float]]) -> None:
    with pytest.raises(SampleError):
        function(*(np.array(one, dtype=float) for one in maps))


# ---- equal outputs ----

TIGHT = Tolerance(absolute=0.1, relative=0.0)


def test_equality_by_hand() -> None:
    found = compare_outputs("ref", {"y": np.array([3.0, 4.0])}, {"y": np.array([3.05, 3.0])}, TIGHT)
    assert (found.equal, found.reference) == (False, "ref")
    assert [found.max_absolute, found.max_relative] == pytest.approx([1.0, 0.25])
    assert found.cosine == pytest.approx((3 * 3.05 + 4 * 3) / (5 * np.hypot(3.05, 3)))
    assert "10 times" in (found.reason or "")


NONE = Tolerance(absolute=0, relative=0)


@pytest.mark.parametrize(
    ("expected", "found", "tolerance", "equal", "worst"),
    [
        ({"y": [1.0]}, {"y": [1.05]}, TIGHT, True, "y"),
        ({"a": [1.0], "b": [1.0]}, {"x": [1.0], "z": [5.0]}, TIGHT, False, "z"),  # by position; the worst of several
        ({"y": [0.0, 0.0]}, {"y": [[0.0, 0.0]]}, TIGHT, False, None),
        ({"y": [0.0, 0.0]}, {}, TIGHT, False, None),
        ({"y": [np.nan]}, {"y": [np.nan]}, TIGHT, True, None),
        ({"y": [1.0]}, {"y": [1.0]}, NONE, True, None),
        ({"y": [1.0]}, {"y": [1 + 1e-9]}, NONE, False, "y"),
        ({"y": []}, {"y": []}, NONE, True, None),
    ],
)
def test_outputs_are_matched(
    expected: dict[str, Any], found: dict[str, Any], tolerance: Tolerance, equal: bool, worst: str | None
) -> None:
    one, other = ({name: np.asarray(value) for name, value in each.items()} for each in (expected, found))
    compared = compare_outputs("ref", one, other, tolerance)
    assert (compared.equal, compared.worst_output, bool(compared.reason)) == (equal, worst, not equal)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_is_different_and_json_can_hold_it(bad: float) -> None:
    found = compare_outputs("ref", {"y": np.array([1.0, 2.0])}, {"y": np.array([1.0, bad])}, TIGHT)
    assert (found.equal, found.max_absolute, found.cosine) == (False, None, None)
    assert "Infinity" not in found.model_dump_json()


@pytest.mark.parametrize("bad", [np.zeros(2), np.zeros(0), np.array([1.0, np.nan])])
def test_the_cosine_is_not_that_of_the_other_outputs(bad: np.ndarray) -> None:
    expected = {"a": np.array([1.0, 2.0]), "b": np.full(len(bad), 0.05)}
    assert compare_outputs("ref", expected, {"a": np.array([1.0, 2.0]), "b": bad}, TIGHT).cosine is None


VALUES = made.arrays(np.float64, 5, elements=st.floats(-1e6, 1e6, allow_nan=False) | st.sampled_from([np.nan, np.inf]))


@given(VALUES, VALUES, st.sampled_from([0.0, 1e-3, 1.0]), st.sampled_from([0.0, 1e-3, 1.0]))
def test_as_numpy_allclose(expected: np.ndarray, got: np.ndarray, absolute: float, relative: float) -> None:
    found = compare_outputs("r", {"y": expected}, {"y": got}, Tolerance(absolute=absolute, relative=relative))
    finite = np.isfinite(expected)
    same = np.allclose(got[finite], expected[finite], atol=absolute, rtol=relative, equal_nan=True)
    same = same and np.array_equal(got[~finite], expected[~finite], equal_nan=True)
    if found.max_absolute is None or abs(found.max_absolute - absolute) > 1e-9:  # a rounding at the very border apart
        assert found.equal == same
