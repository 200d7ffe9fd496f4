"""The scaling curve and its knee, by hand; a real sweep with a launch that fails."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.cli.launch import parse_numbers
from perfharness.errors import UsageError
from perfharness.render.charts.drawing import Picture
from perfharness.render.charts.scaling import scaling_picture
from perfharness.runs.series.scaling import (
    MARGINAL_EFFICIENCY,
    GpuPoint,
    Scaling,
    ScalingRow,
    busy_share,
    find_knee,
    ideal_items_per_second,
    scaling_points,
    total_power_w,
)
from perfharness.runs.series.sweep import sweep_options
from perfharness_launcher.options import LaunchOptions
from tests.integration.launches import environment, run_to_the_end
from tests.schemas import valid
from tests.unit.charts import drawn


def rows(rates: dict[int, float | None], **more: Any) -> list[ScalingRow]:
    return [
        ScalingRow(
            num_processes=number,
            folder=f"np_{number}",
            status="failed" if rate is None else "ok",
            items_per_second=rate,
            **more,
        )
        for number, rate in rates.items()
    ]


def knee(rates: dict[int, float | None]) -> int | None:
    return find_knee(scaling_points(rows(rates))).num_processes


@pytest.mark.parametrize(
    ("rates", "figures", "bend"),
    [
        # speedup, efficiency, slowdown: each of four gets 50 items/s where one alone got 100
        ({1: 100, 2: 180, 4: 200}, [(1, 1, 1), (1.8, 0.9, 1 / 0.9), (2, 0.5, 2)], 2),
        ({4: 300, 1: None, 2: 200}, [(1.5, 0.75, 1 / 0.75), (None, None, None), (1, 1, 1)], None),
        ({1: 100, 2: 190, 4: 300, 8: 340}, None, 4),  # steps: 0.9, 0.55, 0.1 of a process each
        ({8: 340, 1: 100, 4: 300, 2: 190}, None, 4),  # in whatever order they ran
        ({1: 100, 2: 90}, None, 1),
        ({1: 100, 2: 200, 4: 400, 8: 800}, None, None),
        ({1: 100, 2: 150, 3: 200}, None, None),  # half is enough
        ({1: 100, 2: None, 4: 110, 8: None}, None, 1),  # a launch that failed is stepped over
        ({1: 100, 2: None}, None, None),
    ],
)
def test_figures_against_the_smallest_that_was_measured_and_the_knee(
    rates: dict[int, float | None], figures: list[tuple[float | None, ...]] | None, bend: int | None
) -> None:
    points = scaling_points(rows(rates))
    if figures is not None:
        found = [(point.speedup, point.efficiency, point.slowdown) for point in points]
        assert found == [tuple(None if one is None else pytest.approx(one) for one in each) for each in figures]
    assert knee(rates) == bend


def test_more_processes_that_are_slower_are_named() -> None:
    found = find_knee(scaling_points(rows({1: 10.0, 2: 7.0, 4: 6.0})))
    assert found.num_processes == 1
    assert "slower" in found.reason
    assert "0.70" in found.reason


@given(st.lists(st.integers(1, 64), min_size=2, max_size=6, unique=True), st.floats(0.51, 1.5))
def test_a_straight_line_above_the_threshold_has_no_knee(numbers: list[int], slope: float) -> None:
    first = min(numbers)
    rates: dict[int, float | None] = {number: first + slope * (number - first) for number in numbers}
    assert knee(rates) is None
    assert slope > MARGINAL_EFFICIENCY


@pytest.mark.parametrize("text", ["", "1,", "0,1", "1,1", "a", "-1", "1;2"])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--np-sweep"):
        sweep_options(LaunchOptions(script="x.py"), parse_numbers(text) or ())


def test_the_number_of_processes_is_the_sweep_s() -> None:
    swept = sweep_options(LaunchOptions(script="x.py"), (1, 2))
    assert [(each.num_processes, str(each.output_dir)) for each in swept] == [(1, "out/np_1"), (2, "out/np_2")]
    with pytest.raises(UsageError, match="-np"):
        sweep_options(LaunchOptions(script="x.py", num_processes=2), (1, 2))


def scaling_of(rates: dict[int, float | None], **more: Any) -> Scaling:
    points = scaling_points(rows(rates, **more))
    return Scaling(
        created="", command=[], script="x.py", num_gpus=1, warmup_batches=1, base_num_processes=1, points=points,
        knee=find_knee(points),
    )  # fmt: skip


def lines(picture: Picture) -> dict[str, dict[str, list[float | None]]]:
    """Of every panel, by its label and the names of its lines."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for label, rows in picture.rows.items():
        for row in rows:
            if "line" in row:
                found.setdefault(label.removeprefix("scaling_"), {}).setdefault(row["line"], []).append(row["value"])
    return found


def test_the_picture_has_a_panel_a_quantity_that_was_measured() -> None:
    gpus = [
        GpuPoint(uuid="GPU-1", busy_share=0.5, power_w=300.0),
        GpuPoint(uuid="GPU-2", busy_share=1.0, power_w=200.0),
    ]
    picture = scaling_picture(scaling_of({4: None, 1: 100.0, 2: 140.0}, gpus=gpus, latency_p50_ms=1.0))
    assert list(lines(picture).values()) == [
        {"measured": [100.0, 140.0, None], "ideal": [100.0, 200.0, 400.0]},
        {"p50": [1.0] * 3},
        {"": [1.0, pytest.approx(0.7), None]},
        {"": [0.75] * 3},
        {"": [500.0] * 3},
    ]
    assert [(row["processes"], row["text"]) for row in picture.rows["scaling_marks"]] == [(4, "failed"), (1, "knee")]
    assert "knee" in drawn(picture)
    assert lines(scaling_picture(scaling_of({1: None, 2: None}))) == {}


def test_gpus_of_which_one_was_not_measured_have_no_mean_and_no_sum() -> None:
    one = ScalingRow(num_processes=1, folder="np_1", status="ok", gpus=[
        GpuPoint(uuid="GPU-1", busy_share=0.5, power_w=300.0), GpuPoint(uuid="GPU-2", busy_share=None, power_w=None),
    ])  # fmt: skip
    assert (busy_share(one), total_power_w(one)) == (None, None)
    assert ideal_items_per_second(scaling_of({1: None, 2: None})) == [None, None]


SCRIPT = """
import os, sys, time
from perfharness import PerfRecorder
if int(os.environ["PERFHARNESS_NUM_PROCESSES"]) == 3:
    raise MemoryError("out of memory")
perf = PerfRecorder("rec")
for i in range(20):
    with perf.batch(i, total_items=2):
        time.sleep(0.01)
perf.finalize()
"""


def sweep(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return run_to_the_end(("--tracer", "embedded", "-o", tmp_path / "out", *options, script), environment())


@pytest.mark.slow
def test_a_real_sweep_goes_on_after_a_launch_that_fails(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--np-sweep", "1,3,2")
    assert done.returncode == 3, done.stdout + done.stderr
    out = tmp_path / "out"
    scaling = valid("scaling", out / "scaling.json")
    one, three, two = (point["row"] for point in scaling["points"])
    assert [row["status"] for row in (one, three, two)] == ["ok", "failed", "ok"]
    assert "out of memory" in three["reason"]
    assert three["items_per_second"] is None
    measured = json.loads((out / "np_1" / "benchmark_mean.json").read_text())["throughput"]["items_per_second"]
    assert one["items_per_second"] == pytest.approx(measured)
    assert 0 < one["items_per_second"] < 200
    assert one["latency_p50_ms"] > 10
    assert scaling["loop"] == "rec/batch"
    assert scaling["base_num_processes"] == 1
    for number in (1, 2, 3):
        assert (out / f"np_{number}" / "manifest.json").exists()
    assert (out / "scaling.png").exists()
    assert "slowdown" in done.stdout
    assert Scaling.model_validate_json((out / "scaling.json").read_text()).points[0].row.num_processes == 1


@pytest.mark.slow
def test_a_sweep_without_a_number_is_3(tmp_path: Path) -> None:
    done = sweep(tmp_path, "--np-sweep", "1", "--tracer", "none")
    assert done.returncode == 3, done.stdout + done.stderr
    (point,) = json.loads((tmp_path / "out" / "scaling.json").read_text())["points"]
    assert (point["row"]["status"], point["row"]["items_per_second"]) == ("ok", None)
    assert not (tmp_path / "out" / "scaling.png").exists()
