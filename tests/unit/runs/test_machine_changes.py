"""What changed on the machine between launches, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import perfharness
from perfharness.runs.series.machine import MachineChange
from tests.unit.export_runs import process_record, run_folder

ONE, OTHER = {"pid": 7, "name": "train"}, {"pid": 8, "name": None}


def loop(before_ms: float, after_ms: float | None = None, **more: Any) -> dict[str, Any]:
    """The load of a machine whose reference loop took that long."""
    times = (before_ms, before_ms if after_ms is None else after_ms)
    before, after = ({"wall_ms": ms, "cpu_ms": 1.0} for ms in times)
    return {"yardstick": {"cpus": 2, "loop_before": before, "loop_after": after, **more}}


def gpu(*before: dict[str, Any], after: tuple[dict[str, Any], ...] = (), reason: str | None = None) -> dict[str, Any]:
    """The other programs on a GPU."""
    return {"exclusive": {"gpus": [{"foreign_before": before, "foreign_after": after, "reason": reason}]}}


def changes(folder: Path, *launches: dict[str, Any], mhz: tuple[float, ...] = ()) -> list[MachineChange]:
    """Between launches `a`, `b`, … with these companions, and these clocks of their GPU."""
    named = zip("abcdefgh", launches, strict=False)
    folders = [run_folder(folder / name, process_record(0), companions=one) for name, one in named]
    for path, clock in zip(folders, mhz, strict=False):
        gpus = [{"gpu_index": 0, "figures": {"sm_clock_mhz": {"mean": clock}}}]
        mean = {"meta": {"findings": []}, "gpu_metrics": {"gpus": gpus}}
        (path / "benchmark_mean.json").write_text(json.dumps(mean))
    return perfharness.machine_changes(folders)


@pytest.mark.parametrize(
    ("launches", "sizes", "worst"),
    [
        ([loop(1.0, steal_share=0.0), loop(1.2, steal_share=0.03)], {"loop_ms": 0.2, "steal_share": 0.03}, "b"),
        ([loop(1.0), loop(1.0), {}], {"loop_ms": 0.0}, "a"),
        ([{**loop(1.0), **gpu()}, {**loop(1.0), **gpu(ONE)}], {"gpu_users": None, "loop_ms": 0.0}, "b"),
        ([gpu(ONE), gpu(ONE)], {}, None),
        ([gpu(), gpu(reason="no permission")], {}, None),
        ([loop(1.0)], {}, None),
        ([{}, {}], {}, None),
    ],
)
def test_by_hand(
    tmp_path: Path, launches: list[dict[str, Any]], sizes: dict[str, float | None], worst: str | None
) -> None:
    found = changes(tmp_path, *launches)
    assert {one.measure: one.relative for one in found} == pytest.approx(sizes)
    assert worst is None or found[0].worst == worst


def test_a_low_clock_is_the_slow_one(tmp_path: Path) -> None:
    (found,) = changes(tmp_path, {}, {}, mhz=(1900.0, 1520.0))
    assert (found.measure, found.relative, found.worst) == ("sm_clock_mhz of GPU 0", 0.25, "b")


def test_other_programs_are_counted_by_process(tmp_path: Path) -> None:
    (found,) = changes(tmp_path, gpu(), gpu(ONE, after=(ONE, OTHER)), gpu(ONE, after=({"pid": 9, "name": "train"},)))
    assert found.by_launch == {"a": 0.0, "b": 2.0, "c": 2.0}
    assert "a program without a name, train" in found.reason


def test_a_loop_that_repeats_within_a_launch_differs_between_launches(tmp_path: Path) -> None:
    pairs = [(0.18, 0.19), (0.19, 0.18), (0.29, 0.27), (0.18, 0.19)]
    (found,) = changes(tmp_path, *(loop(*pair) for pair in pairs))
    assert (found.relative or 0) > 0.2
    assert found.p_value == pytest.approx(stats.f_oneway(*np.log(pairs)).pvalue)
