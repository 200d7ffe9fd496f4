"""Metrics by hand, a second way where there is one, and what must hold for any data."""

from __future__ import annotations

from fractions import Fraction
from math import comb, isclose, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from perfharness.bench.accuracy.classes import ClassAccumulator, holm, label_ranks, mcnemar, paired_difference, wilson
from perfharness.bench.accuracy.depth import (
    DepthAccumulator,
    DepthSettings,
    MapAccumulator,
    depth_errors,
    map_difference,
    normalised,
)
from perfharness.bench.accuracy.difference import BLOCK, DifferenceAccumulator
from perfharness.bench.accuracy.figure import Figures, SampleError

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

FINITE = st.floats(-1e6, 1e6, allow_nan=False, width=32)
ANY = st.floats(width=32)


def compared(values: Any, baseline: Any) -> Figures:
    seen = DifferenceAccumulator()
    seen.update(np.asarray(values, dtype=np.float32), np.asarray(baseline, dtype=np.float32), "one")
    return seen.figures()


# ---- differences ----


def test_differences_by_hand() -> None:
    """x = (3, 4, 0), b = (4, 3, 2): dot 24, norms 5 and sqrt(29); errors 1, 1, 2; relative 1/4, 1/3, 1."""
    found = compared([3, 4, 0], [4, 3, 2])
    assert found["cosine"].value == pytest.approx(24 / (5 * sqrt(29)))
    assert found["mse"].value == pytest.approx((1 + 1 + 4) / 3)
    assert found["max_absolute"].value == 2
    assert found["max_relative"].value == 1
    assert [found[name].value for name in ("nan_count", "inf_count", "zero_baseline_count")] == [0, 0, 0]


def test_a_value_without_size_has_no_relative_difference() -> None:
    found = compared([0.5, 3.0, 0.0], [0.0, 2.0, 0.0])
    assert found["max_relative"].value == pytest.approx(0.5)
    assert found["zero_baseline_count"].value == 1


def test_cosine_of_all_values_and_of_the_worst_sample() -> None:
    seen = DifferenceAccumulator()
    seen.update(np.array([1.0, 0.0]), np.array([1.0, 0.0]), "good")
    seen.update(np.array([0.0, 1.0]), np.array([1.0, 0.0]), "bad")
    found = seen.figures()
    assert found["cosine"].value == pytest.approx(0.5)
    assert found["cosine_min"].value == 0.0
    assert seen.worst_sample == "bad"


@pytest.mark.parametrize("bad", [np.zeros(4), np.full(4, np.nan), np.zeros(0)])
def test_a_sample_without_a_cosine_is_not_left_out_of_the_smallest(bad: npt.NDArray[np.float64]) -> None:
    """Nine of ten are equal; one is all zeros, NaN on both sides, or empty."""
    whole, second = DifferenceAccumulator(), DifferenceAccumulator()
    for number in range(10):
        values = np.asarray([1.0, 2.0, 3.0, 4.0])
        own = bad if number == 3 else values
        baseline = values if own.size and np.isfinite(own).all() else own
        (whole if number < 5 else second).update(own, baseline, f"sample {number}")
    whole.merge(second)
    found = whole.figures()["cosine_min"]
    assert found.value is None
    assert found.reason
    assert "sample 3" in found.reason


def test_nan_on_one_side_is_no_number() -> None:
    found = compared([1, np.nan, np.inf, 2], [1, 1, np.inf, 2])
    assert found["cosine"].value is None
    assert found["cosine"].reason == "1 of 4 values are NaN or infinite on one side only; of the others it is 1"
    assert (found["nan_count"].value, found["inf_count"].value) == (1, 1)
    assert (found["baseline_nan_count"].value, found["baseline_inf_count"].value) == (0, 1)


def test_nan_and_infinity_on_both_sides_are_alike_and_other_signs_are_not() -> None:
    assert compared([np.nan, np.inf, 2], [np.nan, np.inf, 2])["mse"].value == 0
    assert compared([np.inf, 2], [-np.inf, 2])["mse"].value is None


@pytest.mark.parametrize(
    ("values", "baseline", "name", "says"),
    [
        ([np.nan, np.nan], [np.nan, np.nan], "mse", "none of 2 values is finite on both sides"),
        ([0, 0], [1, 2], "cosine", "all values of the output are 0, and a vector of zeros has no direction"),
        ([1, 2], [0, 0], "cosine", "all values of the baseline are 0, and a vector of zeros has no direction"),
        ([1, 2], [0, 0], "max_relative", "all values of the baseline are 0"),
        ([0, 0], [0, 0], "cosine", "all values are 0 on both sides, and a vector of zeros has no direction"),
        ([], [], "cosine", "there are no values"),
    ],
)
def test_what_cannot_be_computed_says_why(values: list[float], baseline: list[float], name: str, says: str) -> None:
    found = compared(values, baseline)[name]
    assert (found.value, found.reason) == (None, says)


def test_sums_beyond_float64_are_no_number() -> None:
    seen = DifferenceAccumulator()
    seen.update(np.array([1e200]), np.array([1e200]))
    assert seen.figures()["cosine"].reason == "the sums are beyond the range of float64"
    assert seen.figures()["max_absolute"].value == 0


def test_other_shapes_and_kinds_are_refused() -> None:
    seen = DifferenceAccumulator()
    with pytest.raises(SampleError, match=r"the output is \(2,\), the baseline's \(3,\)"):
        seen.update(np.zeros(2), np.zeros(3))
    with pytest.raises(SampleError, match="no real numbers"):
        seen.update(np.zeros(2, complex), np.zeros(2))
    assert seen.samples == 0


def test_blocks_do_not_change_figures() -> None:
    random = np.random.default_rng(1)
    x, b = random.normal(size=(2, BLOCK + 7)).astype(np.float32)
    found = compared(x, b)
    assert found["mse"].value == pytest.approx(float(((x.astype(float) - b) ** 2).mean()))
    assert found["max_absolute"].value == float(np.abs(x.astype(float) - b).max())


def same(first: Figures, second: Figures) -> bool:
    return first.keys() == second.keys() and all(
        (one.value is None) == (two.value is None)
        and (one.value is None or isclose(one.value, two.value or 0.0, rel_tol=1e-9, abs_tol=1e-12))
        for one, two in zip(first.values(), second.values(), strict=True)
    )


@given(st.lists(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=6), min_size=1, max_size=6), st.integers(0, 6))
def test_streamed_and_merged_is_at_once(samples: list[list[tuple[float, float]]], cut: int) -> None:
    whole, first, second = DifferenceAccumulator(), DifferenceAccumulator(), DifferenceAccumulator()
    for place, sample in enumerate(samples):
        x, b = np.array(sample, dtype=np.float32).T
        for seen in (whole, first if place < cut else second):
            seen.update(x, b, str(place))
    first.merge(second)
    assert same(whole.figures(), first.figures())
    assert (whole.worst_sample, whole.samples) == (first.worst_sample, first.samples)
    at_once = np.array([pair for sample in samples for pair in sample], dtype=np.float32).T
    all_in_one = compared(*at_once)
    streamed = whole.figures()
    for figures in (all_in_one, streamed):
        figures.pop("cosine_min")
    assert same(all_in_one, streamed)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=20))
def test_differences_are_symmetric_but_for_the_relative(pairs: list[tuple[float, float]]) -> None:
    x, b = np.array(pairs, dtype=np.float32).T
    one, two = compared(x, b), compared(b, x)
    for name in ("cosine", "mse", "max_absolute"):
        assert one[name].value == two[name].value
    cosine = one["cosine"].value
    assert cosine is None or -1 <= cosine <= 1


@given(st.lists(FINITE, min_size=1, max_size=20))
def test_equal_outputs_do_not_differ(values: list[float]) -> None:
    found = compared(values, values)
    assert found["mse"].value == found["max_absolute"].value == 0
    assert found["cosine"].value is None or found["cosine"].value == pytest.approx(1)


# ---- classes ----


def test_ranks_and_ties_by_hand() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.1], [0.5, 0.5, 0.1], [np.nan, 1, 0]])
    assert label_ranks(scores, np.array([2, 0, 1, 1])).tolist() == [1, 0, 1, 3]


def test_top_k_by_hand() -> None:
    """Four samples of three classes: right, second, right, third."""
    seen = ClassAccumulator(top_k=2, names=("cat", "dog", "fox"))
    seen.update(np.array([[3, 2, 1], [3, 2, 1], [1, 2, 3], [3, 2, 1]]), [0, 1, 2, 2])
    found = seen.figures()
    assert (found["top1"].value, found["top2"].value) == (0.5, 0.75)
    assert found["mean_class_accuracy"].value == pytest.approx((1 + 0 + 1 / 2) / 3)
    assert (found["top1_low"].value, found["top1_high"].value) == pytest.approx(wilson(2, 4))
    assert seen.lost() == {}


def test_which_classes_lost_by_hand() -> None:
    """Of eight cats the baseline has all, the case two; of two dogs the case has one that the baseline has not."""
    cat, dog = [1.0, 0.0], [0.0, 1.0]
    seen = ClassAccumulator(names=("cat", "dog"))
    seen.update(np.array([cat] * 2 + [dog] * 6), [0] * 8, np.array([cat] * 8))
    seen.update(np.array([dog, cat]), [1, 1], np.array([cat, cat]))
    assert seen.lost() == {"cat": 0.75}
    lost, gained = seen.changes()
    assert (lost.name, lost.lost, lost.gained, lost.accuracy, lost.baseline_accuracy) == ("cat", 6, 0, 0.25, 1.0)
    assert lost.p == pytest.approx(2 / 2**6)
    assert lost.p_holm == pytest.approx(4 / 2**6)
    assert lost.by_chance
    assert (gained.name, gained.difference, gained.p) == ("dog", 0.5, 1.0)
    found = seen.figures()
    assert found["top1_difference"].value == pytest.approx((1 - 6) / 10)
    assert found["mcnemar_p"].value == pytest.approx(2 * (1 + 7) / 2**7)
    assert found["top5"].reason == "there are only 2 classes"


def test_labels_that_do_not_fit() -> None:
    seen = ClassAccumulator()
    with pytest.raises(SampleError, match="label 3 is none of the 3 classes"):
        seen.update(np.zeros((1, 3)), [3])
    with pytest.raises(SampleError, match="not one row of classes"):
        seen.update(np.zeros((2, 3)), [1])
    assert seen.figures()["top1"].reason == "there are no labelled samples"
    seen.update(np.zeros((1, 3)), [1])
    with pytest.raises(SampleError, match="4 classes, and had 3 before"):
        seen.update(np.zeros((1, 4)), [1])


def test_scores_with_nan_are_wrong_and_told() -> None:
    seen = ClassAccumulator()
    seen.update(np.array([[np.nan, 1.0]]), [1])
    assert (seen.figures()["top1"].value, seen.figures()["unordered_count"].value) == (0, 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_classes_merged_are_at_once(samples: list[tuple[int, int, int]]) -> None:
    eye = np.eye(4)
    whole, parts = ClassAccumulator(), ClassAccumulator()
    labels, case, baseline = np.array(samples).T
    whole.update(eye[case], labels, eye[baseline])
    for label, one, other in samples:
        seen = ClassAccumulator()
        seen.update(eye[one], [label], eye[other])
        parts.merge(seen)
    assert parts.figures() == whole.figures()
    assert parts.changes() == whole.changes()
    assert whole.figures()["top1"].value == pytest.approx(float((labels == case).mean()))


# ---- intervals ----


def test_wilson_against_its_equation() -> None:
    """The ends are where the share is 1.96 standard errors of the end away (Wilson 1927), 15 of 148 by hand."""
    low, high = wilson(15, 148)
    assert (low, high) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    for end in (low, high):
        assert abs(15 / 148 - end) == pytest.approx(1.959963985 * sqrt(end * (1 - end) / 148))
    assert wilson(0, 20)[0] == 0
    assert wilson(20, 20)[1] == 1


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_against_whole_numbers(lost: int, gained: int) -> None:
    count = lost + gained
    tail = Fraction(sum(comb(count, k) for k in range(min(lost, gained) + 1)), 2**count)
    assert mcnemar(lost, gained) == pytest.approx(float(min(Fraction(1), 2 * tail)))


def test_mcnemar_of_many() -> None:
    assert mcnemar(50_000, 50_000) == 1
    assert 0.5 < mcnemar(50_100, 50_000) < 1
    assert mcnemar(60_000, 40_000) == 0


def test_paired_difference_by_hand() -> None:
    """Of 8 pairs 6 lost: n = 10, (0.5 - 6.5) / 10 = -0.6; variance (7 - 3.6) / 100."""
    low, high = paired_difference(6, 0, 8)
    half = 1.959963985 * sqrt(7 - 3.6) / 10
    assert (low, high) == pytest.approx((-0.6 - half, -0.6 + half))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]


# ---- depth ----

NO_SCALING = DepthSettings(scaling="none")


def test_depth_by_hand() -> None:
    """Truth (1, 2, 4, 0), prediction (1, 3, 4, 9): the last is not valid; errors 0, 1, 0; ratios 1, 1.5, 1."""
    found = depth_errors(np.array([[1, 3, 4, 9.0]]), np.array([[1, 2, 4, 0.0]]), NO_SCALING)
    assert found.pixels == 3
    assert found.abs_rel == pytest.approx((1 / 2) / 3)
    assert found.sq_rel == pytest.approx((1 / 2) / 3)
    assert found.rmse == pytest.approx(sqrt(1 / 3))
    assert found.rmse_log == pytest.approx(sqrt(log(1.5) ** 2 / 3))
    assert (found.delta1, found.delta2, found.delta3) == pytest.approx((2 / 3, 1, 1))


def test_median_scaling_by_hand() -> None:
    """Medians 2 and 4: the scale is 1/2, the errors those of (1, 2, 8) against (1, 2, 4)."""
    found = depth_errors(np.array([2, 4, 16.0]), np.array([1, 2, 4.0]))
    assert found.scale == 0.5
    assert (found.abs_rel, found.sq_rel, found.rmse) == pytest.approx((1 / 3, 16 / 4 / 3, 4 / sqrt(3)))
    assert (found.delta1, found.delta3) == pytest.approx((2 / 3, 2 / 3))


def test_a_threshold_itself_is_not_inside() -> None:
    assert depth_errors(np.array([1.25, 1.0]), np.array([1.0, 1.0]), NO_SCALING).delta1 == 0.5


def test_caps_and_mask() -> None:
    settings = DepthSettings(min_depth=1, max_depth=10, scaling="none")
    truth, prediction = np.array([0.5, 2, 5, 10, np.nan]), np.array([1, 0.1, 50, 3, 3.0])
    found = depth_errors(prediction, truth, settings)
    assert found.pixels == 2  # 2 and 5; predictions brought to 1 and 10
    assert found.abs_rel == pytest.approx((1 / 2 + 5 / 5) / 2)
    assert depth_errors(prediction, truth, settings, np.array([1, 0, 1, 1, 1], bool)).pixels == 1


def test_disparity_is_inverted() -> None:
    settings = DepthSettings(scaling="none", prediction="disparity")
    assert depth_errors(np.array([1, 0.5, 0.25]), np.array([1, 2, 4.0]), settings).abs_rel == 0


@pytest.mark.parametrize(
    ("prediction", "truth", "says"),
    [
        ([1.0, 1], [0, 100], "no pixel of the ground truth is between 0.001 and 80"),
        ([np.nan, 1], [1, 1], "1 of 2 valid pixels have a prediction that is NaN or infinite"),
        ([0.0, 0], [1, 1], "the median of the prediction is 0, and median scaling takes a positive one"),
        ([1.0, 1, 1], [1, 1], r"the map is \(3,\), the ground truth \(2,\)"),
    ],
)
def test_maps_that_cannot_be_compared(prediction: list[float], truth: list[float], says: str) -> None:
    seen = DepthAccumulator()
    with pytest.raises(SampleError, match=says):
        seen.update(np.array(prediction), np.array(truth, dtype=float))
    assert seen.samples == 0
    assert seen.figures()["abs_rel"].reason == "no image could be compared with its ground truth"


DEPTHS = st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.5, 50)), min_size=1, max_size=20)


@given(DEPTHS, st.integers(-6, 6))
def test_median_scaling_does_not_see_the_scale(pairs: list[tuple[float, float]], power: int) -> None:
    prediction, truth = np.array(pairs).T
    one, two = depth_errors(prediction, truth), depth_errors(prediction * 2.0**power, truth)
    assert (one.abs_rel, one.rmse, one.delta1) == (two.abs_rel, two.rmse, two.delta1)


@given(DEPTHS)
def test_thresholds_do_not_see_which_is_the_truth(pairs: list[tuple[float, float]]) -> None:
    prediction, truth = np.array(pairs).T
    one, two = depth_errors(prediction, truth, NO_SCALING), depth_errors(truth, prediction, NO_SCALING)
    assert (one.delta1, one.delta2, one.delta3) == (two.delta1, two.delta2, two.delta3)
    assert one.rmse == pytest.approx(two.rmse)


@given(st.lists(DEPTHS, min_size=1, max_size=5), st.integers(0, 5))
def test_depth_merged_is_the_mean_of_images(images: list[list[tuple[float, float]]], cut: int) -> None:
    first, second, each = DepthAccumulator(), DepthAccumulator(), []
    for place, image in enumerate(images):
        each.append((first if place < cut else second).update(*np.array(image).T))
    first.merge(second)
    assert first.figures()["abs_rel"].value == pytest.approx(np.mean([one.abs_rel for one in each]))
    assert first.figures()["delta2"].value == pytest.approx(np.mean([one.delta2 for one in each]))


# ---- normalised maps ----


def test_map_difference_by_hand() -> None:
    """(0, 1, 2) and (10, 40, 30) are (0, 1/2, 1) and (0, 1, 2/3)."""
    found = map_difference(np.array([0, 1, 2]), np.array([10, 40, 30]))
    assert (found.mae, found.rmse, found.max) == pytest.approx(((1 / 2 + 1 / 3) / 3, sqrt((1 / 4 + 1 / 9) / 3), 1 / 2))


@given(st.lists(FINITE, min_size=2, max_size=20, unique=True), st.integers(-4, 4))
def test_normalised_maps_do_not_see_scale_and_sign_is_seen(values: list[float], power: int) -> None:
    found = np.array(values)
    assert map_difference(found, found * 2.0**power).max == pytest.approx(0, abs=1e-9)
    assert map_difference(found, -found).max == pytest.approx(1)


@pytest.mark.parametrize(
    ("values", "says"),
    [([1, 1], "all values of the map are 1"), ([1, np.nan], "1 of 2 values of the map are NaN"), ([], "empty")],
)
def test_maps_without_range(values: list[float], says: str) -> None:
    with pytest.raises(SampleError, match=says):
        normalised(np.array(values))


@given(st.lists(st.lists(st.tuples(FINITE, FINITE), min_size=2, max_size=5), max_size=5))
def test_maps_merged_are_at_once_and_symmetric(images: list[list[tuple[float, float]]]) -> None:
    whole, parts, turned = MapAccumulator(), MapAccumulator(), MapAccumulator()
    for image in images:
        x, b = np.array(image).T
        one = MapAccumulator()
        for seen, pair in ((whole, (x, b)), (one, (x, b)), (turned, (b, x))):
            update_or_not(seen, *pair)
        parts.merge(one)
    assert same(whole.figures(), parts.figures())
    assert same(whole.figures(), turned.figures())


def update_or_not(seen: MapAccumulator, x: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
    try:
        seen.update(x, b)
    except SampleError:
        assert np.ptp(x) == 0 or np.ptp(b) == 0
