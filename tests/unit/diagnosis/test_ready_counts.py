"""When a process has too many threads ready: for as long as two counts in a row say so."""

from __future__ import annotations

from perfharness.host_probe.sampler import COUNT_AGAIN_NS, COUNT_READY_EVERY_NS, ReadyCounts

MS = 1_000_000


def test_one_count_of_too_many_threads_says_nothing() -> None:
    counts = ReadyCounts(0)
    assert counts.count(20 * MS, 6) == []
    assert counts.count(25 * MS, -1) == []
    assert counts.count(45 * MS, 2) == []


def test_between_two_counts_of_too_many_threads_there_were_so_many_at_least() -> None:
    counts = ReadyCounts(0)
    assert counts.count(20 * MS, 6) == []
    assert counts.count(25 * MS, 3) == [(20 * MS, 3)]
    assert counts.count(31 * MS, 7) == [(25 * MS, 3)]
    assert counts.count(36 * MS, 0) == []


def test_it_is_counted_sooner_where_there_were_too_many() -> None:
    counts = ReadyCounts(0)
    assert not counts.is_due(COUNT_READY_EVERY_NS - 1)
    assert counts.is_due(COUNT_READY_EVERY_NS)
    counts.count(COUNT_READY_EVERY_NS, 1)
    assert not counts.is_due(COUNT_READY_EVERY_NS + COUNT_AGAIN_NS - 1)
    assert counts.is_due(COUNT_READY_EVERY_NS + COUNT_AGAIN_NS)
