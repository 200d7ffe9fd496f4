"""GPU times of ranges, against counting moments one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.timeline.forest import Forest
from perfharness.analysis.timeline.projection import NEVER, BusyTimes

Tree = list[int]
"""Of each range: the place of the one around it, or -1."""


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    return [draw(st.integers(-1, place - 1)) for place in range(draw(st.integers(1, 6)))]


def forest_of(parents: Tree) -> Forest:
    level: list[int] = []
    for parent in parents:
        level.append(level[parent] + 1 if parent >= 0 else 0)
    nothing = np.zeros(len(parents), dtype=np.int64)
    return Forest(None, nothing, nothing, np.asarray(parents), np.asarray(level), ())


def is_inside(parents: Tree, place: int, around: int) -> bool:
    while place > around:
        place = parents[place]
    return place == around


@given(
    trees(),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(0, 5)), max_size=15),
    st.booleans(),
)
def test_busy_time_is_the_number_of_covered_moments(
    parents: Tree, work: list[tuple[int, int, int]], serial: bool
) -> None:
    operations = [(start, start + length, place % len(parents)) for start, length, place in sorted(work)]
    if serial:  # one behind the other, as on one stream
        operations = [(100 * turn + start, 100 * turn + end, at) for turn, (start, end, at) in enumerate(operations)]
    start, end, position = np.asarray(operations, dtype=np.int64).reshape(-1, 3).T
    times = BusyTimes(forest_of(parents))
    times.add(position, start, end)
    for place in range(len(parents)):
        mine = [(begin, stop) for begin, stop, at in operations if is_inside(parents, at, place)]
        assert times.busy_ns[place] == len({moment for begin, stop in mine for moment in range(begin, stop)})
        assert times.first_ns[place] == min((begin for begin, _ in mine), default=NEVER.max)
        assert times.last_ns[place] == max((stop for _, stop in mine), default=NEVER.min)
