"""From the spool to the Parquet file, a part at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.model.telemetry import ClockTieRecord, TelemetryMeta
from perfharness.telemetry import spool, store
from perfharness.telemetry.source import Columns
from perfharness.telemetry.spool import SpoolState, SpoolWriter, finish_spool
from perfharness.telemetry.store import read_sample_log
from perfharness.telemetry.updates import SLACK, _mark_silent_updates

KEYS = [("gpu", "power_instant_mw"), ("host", "cpu_percent"), ("gpu", "never_read"), ("host", "late")]


def part(seed: int) -> Columns:
    """Five readings of each of the first keys, in the order in which they were taken."""
    columns = Columns()
    for reading in range(5):
        for key in range(2 if seed < 3 else 4):
            columns.key.append(key)
            columns.time_monotonic_ns.append(seed * 1000 + reading * 10 + key)
            columns.value.append(float("nan") if key == 2 else seed + key / 10)
            columns.read_ns.append(reading)
    return columns


@pytest.mark.parametrize("together", [1, 7, 1 << 20])
def test_the_file_is_the_same_in_whatever_parts_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(spool, "GATHER_SIZE", together)
    monkeypatch.setattr(store, "ROW_GROUP", together)
    meta = TelemetryMeta(period_ns=10, clock=ClockTieRecord(offset_ns=7, error_ns=0), ended="stopped")
    writer = SpoolWriter(tmp_path / "spool")
    for seed in range(6):
        writer.append([part(seed)], SpoolState(keys=KEYS[: 2 if seed < 3 else 4], meta=meta), last=seed == 5)
    writer.close()
    done = finish_spool(tmp_path / "spool", tmp_path / "telemetry.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["telemetry.parquet"]
    assert done.sampled == {"gpu": ["power_instant_mw"], "host": ["cpu_percent", "late"]}
    log = read_sample_log(tmp_path / "telemetry.parquet")
    assert log.meta.ended == "stopped"
    for key, (subject, metric) in enumerate(KEYS):
        series = log.get(subject, metric)
        assert series is not None
        seeds = range(6) if key < 2 else range(3, 6)
        assert series.time_monotonic_ns.tolist() == [s * 1000 + r * 10 + key for s in seeds for r in range(5)]
        assert series.time_unix_ns.tolist() == [time + 7 for time in series.time_monotonic_ns]
        assert series.read_ns.tolist() == [0, 1, 2, 3, 4] * len(seeds)
        assert np.isnan(series.value).all() == (metric == "never_read")


def test_a_spool_without_a_reading_gives_an_empty_file(tmp_path: Path) -> None:
    meta = TelemetryMeta(period_ns=10, clock=ClockTieRecord(offset_ns=7, error_ns=0))
    writer = SpoolWriter(tmp_path / "spool")
    writer.append([], SpoolState(meta=meta))
    writer.close()
    finish_spool(tmp_path / "spool", tmp_path / "telemetry.parquet")
    assert read_sample_log(tmp_path / "telemetry.parquet").series == {}


def one_stretch_at_a_time(changed: np.ndarray, times: np.ndarray, period_ns: int) -> None:
    """What is to come out, in the plainest way."""
    polling = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    marks = np.flatnonzero(changed)
    for first, after in zip(marks, np.append(marks[1:], len(changed)), strict=True):
        if after < len(changed):
            updates = int(np.ceil((times[after] - times[first] - polling) / period_ns - SLACK)) - 1
        else:
            updates = int(np.floor((times[-1] - times[first]) / period_ns + SLACK))
        for number in range(1, updates + 1):
            due = times[first] + number * period_ns - polling / 2
            place = first + int(np.searchsorted(times[first:after], due))
            if place < after:
                changed[place] = True


@given(
    steps=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=60), period_ns=st.integers(1, 120)
)
def test_silent_updates_of_all_stretches_together(steps: list[tuple[int, bool]], period_ns: int) -> None:
    times = np.cumsum([step for step, _ in steps])
    changed = np.array([True, *(change for _, change in steps[1:])])
    expected, found = changed.copy(), changed.copy()
    one_stretch_at_a_time(expected, times, period_ns)
    _mark_silent_updates(found, times, period_ns)
    np.testing.assert_array_equal(found, expected)
