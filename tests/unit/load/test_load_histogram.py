"""Histograms of a load test, beside the package whose buckets they have."""

from __future__ import annotations

import numpy as np
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from perfharness.load.histogram import DIGITS, HIGHEST_NS, Histogram

VALUES = st.lists(st.integers(0, HIGHEST_NS) | st.integers(0, 5000), min_size=1, max_size=60)


def filled(values: list[int]) -> Histogram:
    made = Histogram()
    made.add(np.array(values, np.int64))
    return made


@given(VALUES)
def test_same_buckets_and_encoding_as_the_package(values: list[int]) -> None:
    theirs = HdrHistogram(1, HIGHEST_NS, DIGITS)
    for value in values:
        assert theirs.record_value(value)
    assert filled(values).encode() == theirs.encode().decode()


@given(VALUES, VALUES)
def test_merged_and_read_back_is_the_same(first: list[int], second: list[int]) -> None:
    merged = Histogram.of_json(filled(first).to_json())
    merged.merge(filled(second))
    whole = filled(first + second)
    assert merged.to_json() == whole.to_json()
    assert merged.count == len(first) + len(second)
    assert merged.sum_ns == sum(first) + sum(second)


@given(VALUES, st.data())
def test_a_rank_is_within_a_thousandth(values: list[int], data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, len(values)))
    exact = sorted(values)[rank - 1]
    assert exact <= filled(values).value_at_rank(rank) <= exact * 1.001


def test_values_beyond_count_as_the_ends() -> None:
    found = filled([-5, 2 * HIGHEST_NS])
    assert (found.count, found.max_ns, found.value_at_rank(1)) == (2, HIGHEST_NS, 0)
