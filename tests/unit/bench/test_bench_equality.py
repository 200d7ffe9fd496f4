"""Outputs compared: by hand, against numpy.allclose, and with what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as made

from perfharness.bench.suite.suite import EqualityTable
from perfharness.bench.worker.equality import Tolerance, compare_outputs

TIGHT = Tolerance(absolute=0.1, relative=0.0)


def test_by_hand() -> None:
    found = compare_outputs("ref", {"y": np.array([3.0, 4.0])}, {"y": np.array([3.05, 3.0])}, TIGHT)
    assert found.equal is False
    assert found.max_absolute == pytest.approx(1.0)
    assert found.max_relative == pytest.approx(0.25)
    assert found.cosine == pytest.approx((3 * 3.05 + 4 * 3) / (5 * np.hypot(3.05, 3)))
    assert "10 times" in (found.reason or "")


@pytest.mark.parametrize(
    ("expected", "found", "equal", "worst"),
    [
        ({"y": [1.0]}, {"y": [1.05]}, True, "y"),
        ({"a": [1.0], "b": [1.0]}, {"x": [1.0], "z": [5.0]}, False, "b"),  # matched by position; the worst of several
        ({"y": [0.0, 0.0]}, {"y": [[0.0, 0.0]]}, False, "y"),
        ({"y": [0.0, 0.0]}, {}, False, None),
    ],
)
def test_outputs_are_matched(
    expected: dict[str, list[float]], found: dict[str, list[float]], equal: bool, worst: str | None
) -> None:
    one, other = ({name: np.asarray(value) for name, value in each.items()} for each in (expected, found))
    compared = compare_outputs("ref", one, other, TIGHT)
    assert (compared.equal, compared.worst_output, bool(compared.reason)) == (equal, worst, not equal)
    assert compared.reference == "ref"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_is_different_and_json_can_hold_it(bad: float) -> None:
    found = compare_outputs("ref", {"y": np.array([1.0, 2.0])}, {"y": np.array([1.0, bad])}, TIGHT)
    assert (found.equal, found.max_absolute, found.cosine) == (False, None, None)
    assert "Infinity" not in found.model_dump_json()
    assert compare_outputs("ref", {"y": np.array([bad])}, {"y": np.array([bad])}, TIGHT).equal is True


@pytest.mark.parametrize("bad", [np.zeros(2), np.zeros(0), np.array([1.0, np.nan])])
def test_the_cosine_is_not_that_of_the_other_outputs(bad: np.ndarray) -> None:
    expected = {"a": np.array([1.0, 2.0]), "b": np.full(len(bad), 0.05)}
    assert compare_outputs("ref", expected, {"a": np.array([1.0, 2.0]), "b": bad}, TIGHT).cosine is None


def test_zero_tolerance_and_empty_outputs() -> None:
    none = Tolerance(absolute=0, relative=0)
    assert compare_outputs("r", {"y": np.ones(3)}, {"y": np.ones(3)}, none).equal is True
    assert compare_outputs("r", {"y": np.ones(3)}, {"y": np.ones(3) + 1e-9}, none).equal is False
    assert compare_outputs("r", {"y": np.ones((0, 3))}, {"y": np.ones((0, 3))}, none).equal is True


def test_tolerance_of_a_precision_is_never_tighter_than_the_suites() -> None:
    table = EqualityTable.model_validate({"absolute": 0.5, "precision": {"int8": {"absolute": 9.0, "relative": 0.0}}})
    assert table.tolerance("fp32") == Tolerance(absolute=0.5, relative=1e-3)
    assert table.tolerance("fp16") == Tolerance(absolute=0.5, relative=2e-2)
    assert table.tolerance("int8") == Tolerance(absolute=9.0, relative=0.0)


values = made.arrays(np.float64, 5, elements=st.floats(-1e6, 1e6, allow_nan=False) | st.sampled_from([np.nan, np.inf]))


@given(values, values, st.sampled_from([0.0, 1e-3, 1.0]), st.sampled_from([0.0, 1e-3, 1.0]))
def test_as_numpy_allclose(expected: np.ndarray, got: np.ndarray, absolute: float, relative: float) -> None:
    found = compare_outputs("r", {"y": expected}, {"y": got}, Tolerance(absolute=absolute, relative=relative))
    finite = np.isfinite(expected)
    same = np.allclose(got[finite], expected[finite], atol=absolute, rtol=relative, equal_nan=True)
    same = same and np.array_equal(got[~finite], expected[~finite], equal_nan=True)
    if found.max_absolute is None or abs(found.max_absolute - absolute) > 1e-9:  # a rounding at the very border apart
        assert found.equal == same
