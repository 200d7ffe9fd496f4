"""When errors end a run: over all processes, and not for a burst."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perfharness.load.generator.errors import ErrorWatch
from perfharness.model.load import WINDOWS_NAME

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


def others(folder: Path, name: str, lines: Sequence[dict[str, Any]]) -> None:
    (folder / name).mkdir(exist_ok=True)
    with (folder / name / WINDOWS_NAME).open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def test_all_processes_count(tmp_path: Path) -> None:
    """One process has errors only, the other none: half of all answers."""
    for limit, is_stopped in ((0.4, True), (0.6, False)):
        run = tmp_path / str(limit)
        (run / "proc_0_gpu_0").mkdir(parents=True)
        watch = ErrorWatch(limit, 10 * S, run / "proc_0_gpu_0")
        for second in range(12):
            others(run, "proc_1_gpu_0", [window(second, 100, 0)])
            watch.add(window(second, 0, 100))
        assert (watch.reason() is not None) == is_stopped


def test_a_warm_up_of_another_process_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "proc_0_gpu_0").mkdir()
    watch = ErrorWatch(0.4, 10 * S, tmp_path / "proc_0_gpu_0")
    warming = [{"kind": "phase", "index": 0, "is_warmup": True}, *(window(second, 0, 500) for second in range(12))]
    others(tmp_path, "proc_1_gpu_0", warming)
    for second in range(12):
        watch.add(window(second, 100, 0, phase=1))
    assert watch.reason() is None
