"""What the product says of recorded inputs stays as it is; README.md tells what to do where it may not."""

from __future__ import annotations

import pytest

from tests.support import snapshots


@pytest.mark.parametrize("name", snapshots.names())
def test_an_input_gives_the_numbers_of_its_snapshot(name: str) -> None:
    found = snapshots.differences(name, snapshots.read(name), snapshots.round_trip(snapshots.make(name)))
    assert [str(difference) for difference in found] == []


def test_each_mark_is_of_a_value_that_is_there() -> None:
    for mark in snapshots.marks():
        paths = [path for path, _ in snapshots.leaves(snapshots.read(mark.input))]
        assert any(mark.covers(mark.input, path) for path in paths), mark
