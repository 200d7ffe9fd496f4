"""When errors end a run: and not for a burst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perfharness.load.generator.errors import ErrorWatch

S = 1_000_000_000


def window(second: int, ok: int, failed: int, phase: int = 0) -> dict[str, Any]:
    return {
        "kind": "window", "phase": phase, "start_ns": second * S, "end_ns": (second + 1) * S, "ok": ok,
        "errors": {"refused": failed},
    }  # fmt: skip


def stopped_at(failed: Sequence[int], limit: float, answers: int = 100) -> int | None:
    """The second after which a run with so many failures in each second is stopped."""
    watch = ErrorWatch(limit, 10 * S)
    for second, count in enumerate(failed):
        watch.add(window(second, answers - count, count))
        if watch.reason() is not None:
            return second + 1
    return None


def test_errors_that_go_on_stop_the_run() -> None:
    assert stopped_at([10] * 60, 0.05) == 10
    assert stopped_at([0] * 30 + [100] * 30, 0.05) == 39  # as soon as each fifth of the last 10 s has some
    assert stopped_at([5] * 60, 0.05) is None


def test_a_target_that_answers_nothing_but_errors_at_a_low_rate() -> None:
    assert stopped_at([1] * 60, 0.5, answers=1) is None  # ten answers are too few
    assert stopped_at([2] * 60, 0.5, answers=2) == 10


@given(begin=st.integers(0, 50), length=st.integers(1, 6))
def test_a_burst_stops_nothing_wherever_it_lies(begin: int, length: int) -> None:
    failed = [100 if begin <= second < begin + length else 0 for second in range(60)]
    assert stopped_at(failed, 0.05) is None
