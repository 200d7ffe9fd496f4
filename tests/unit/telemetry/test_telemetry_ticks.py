"""When ticks are due, and how UTC is tied to the monotonic clock."""

from __future__ import annotations

import pytest

from perfharness.model.telemetry import TickRecord
from perfharness.telemetry.ticks import ClockTie, Ticker

MS = 1_000_000


class Clock:
    """Time that only passes by waiting and by work."""

    now_ns = 1_000_000 * MS
    oversleep_ns = 0
    ending = False

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> bool:
        if not self.ending:
            self.now_ns += round(seconds * 1e9) + (self.oversleep_ns if seconds else 0)
        return self.ending


@pytest.mark.parametrize(
    ("work_ms", "oversleep_ms", "begun_ms", "late", "missed", "latest_ms", "overrun"),
    [
        ([1, 30, 49, 0, 7], 0, [0, 50, 100, 150, 200], 0, 0, 0, 0),
        ([0] * 5, 3, [0, 53, 103, 153, 203], 0, 0, 3, 0),
        ([1] * 5, 130, [0, 180, 181, 330, 331], 4, 2, 130, 0),  # woken late, never long at work
        # 80: the tick due at 50 begins 30 late; 175: those due at 150 and 200 never begin
        ([80, 1, 175, 0, 0], 0, [0, 80, 100, 275, 300], 1, 2, 30, 3),
    ],
)
def test_ticks_stay_on_the_grid_however_long_the_work_takes(
    work_ms: list[int], oversleep_ms: int, begun_ms: list[float], late: int, missed: int, latest_ms: int, overrun: int
) -> None:
    clock = Clock()
    clock.oversleep_ns = oversleep_ms * MS
    ticker = Ticker("made up", 50 * MS, clock.wait, clock)
    found = []
    for work in work_ms:
        assert ticker.next()
        found.append(clock.now_ns)
        clock.now_ns += work * MS
    assert [(moment - found[0]) / MS for moment in found] == begun_ms
    clock.ending = True
    assert not ticker.next()  # the end wakes the wait
    assert ticker.record() == TickRecord(
        source="made up",
        period_ns=50 * MS,
        ticks=5,
        late=late,
        missed=missed,
        latest_ns=latest_ms * MS,
        overrun=overrun,
        longest_ns=max(work_ms) * MS,
    )


def test_the_tie_is_that_of_the_shortest_bracket_and_a_step_of_utc_is_noted() -> None:
    widths = iter([400, 60, 900] * 40)
    now, step = 5_000_000, 0

    def unix() -> int:
        nonlocal now
        width = next(widths)
        now += width
        return now - width // 2 + 1_000 + step

    tie = ClockTie(lambda: now, unix)
    assert (tie.offset_ns, tie.error_ns) == (1_000, 30)
    tie.read_again()
    assert tie.record().moved_ns == 0
    step = -2_000_000
    tie.read_again()
    assert (tie.record().moved_ns, tie.record().offset_ns) == (-2_000_000, 1_000)
