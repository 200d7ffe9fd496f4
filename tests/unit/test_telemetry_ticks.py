from __future__ import annotations

from perfharness.telemetry.ticks import ClockTie, Ticker

MS = 1_000_000


class Clock:
    """Time that only passes by waiting and by work."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000 * MS
        self.oversleep_ns = 0
        self.ending = False

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> bool:
        if not self.ending:
            self.now_ns += round(seconds * 1e9) + (self.oversleep_ns if seconds else 0)
        return self.ending


def ticks(rhythm: Ticker, clock: Clock, work_ms: list[int]) -> list[float]:
    """Times of the ticks in ms after the first, each followed by so much work."""
    found = []
    for work in work_ms:
        assert rhythm.next()
        found.append(clock.now_ns)
        clock.now_ns += work * MS
    return [(moment - found[0]) / MS for moment in found]


def test_ticks_stay_on_the_grid_however_long_the_work_takes() -> None:
    clock = Clock()
    rhythm = Ticker("made up", 50 * MS, clock.wait, clock)
    assert ticks(rhythm, clock, [1, 30, 49, 0, 7]) == [0, 50, 100, 150, 200]
    assert (rhythm.ticks, rhythm.late, rhythm.missed) == (5, 0, 0)


def test_oversleeping_does_not_add_up() -> None:
    clock = Clock()
    clock.oversleep_ns = 3 * MS
    rhythm = Ticker("made up", 50 * MS, clock.wait, clock)
    assert ticks(rhythm, clock, [0] * 101)[-1] == 100 * 50 + 3
    assert rhythm.late == 0
    assert rhythm.latest_ns == 3 * MS


def test_late_and_missed_ticks_are_counted() -> None:
    clock = Clock()
    rhythm = Ticker("made up", 50 * MS, clock.wait, clock)
    #                               80: the tick due at 50 begins 30 late; 175: those due at 150 and 200 never begin
    assert ticks(rhythm, clock, [80, 1, 175, 0, 0]) == [0, 80, 100, 275, 300]
    assert (rhythm.late, rhythm.missed) == (1, 2)
    assert rhythm.latest_ns == 30 * MS
    assert rhythm.record().ticks == 5


def test_the_end_wakes_the_wait() -> None:
    clock = Clock()
    rhythm = Ticker("made up", 50 * MS, clock.wait, clock)
    assert rhythm.next()
    clock.ending = True
    assert not rhythm.next()
    assert rhythm.ticks == 1


def test_the_tie_is_that_of_the_shortest_bracket() -> None:
    widths = iter([400, 60, 900] * 20)
    now = 5_000_000

    def monotonic() -> int:
        return now

    def unix() -> int:
        nonlocal now
        width = next(widths)
        now += width
        return now - width // 2 + 1_000

    tie = ClockTie(monotonic, unix)
    assert tie.offset_ns == 1_000
    assert tie.error_ns == 30


def test_a_step_of_utc_is_noted_and_does_not_move_the_readings() -> None:
    now, step = 0, 0

    def monotonic() -> int:
        nonlocal now
        now += 50
        return now

    tie = ClockTie(monotonic, lambda: now + 25 + 7_000 + step)
    assert tie.record().offset_ns == 7_000
    tie.read_again()
    assert tie.record().moved_ns == 0
    step = -2_000_000
    tie.read_again()
    assert tie.record().moved_ns == -2_000_000
    assert tie.record().offset_ns == 7_000
