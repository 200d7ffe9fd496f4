"""Charts of a report, as specifications."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfharness.analysis.comparison.compare import Interval
from perfharness.analysis.stages.charts import batch_series
from perfharness.model.result import BatchLoop
from perfharness.render.charts.report import comparison_picture, series_picture
from perfharness.runs.comparison.result import ComparedRow, ComparedSide, ComparedVersion, SideFigures
from perfharness.runs.report.model import LoopSeries

MS = 1_000_000


@pytest.mark.parametrize("batches", [3, 3000])
@pytest.mark.parametrize(("warmup_ms", "top"), [(700, 12.0), (20, None)])
def test_a_long_warm_up_does_not_flatten_the_batches(batches: int, warmup_ms: int, top: float | None) -> None:
    """The axis ends at the longest measured batch where warm-up took far longer, and a note says how long."""
    length_ms = np.full(batches, 10)
    length_ms[0], length_ms[-1] = warmup_ms, 12
    end_ns = np.cumsum(length_ms) * MS
    warmup = np.arange(batches) == 0
    loop = BatchLoop(("toy", "batch"), end_ns - length_ms * MS, end_ns, np.ones(batches), warmup)
    picture = series_picture("p", LoopSeries(process="p", loop=loop.path, series=batch_series(loop)))
    y_scales = [
        layer["encoding"]["y"]["scale"] for layer in picture.specification()["layer"] if "y" in layer["encoding"]
    ]
    assert y_scales
    assert {json.dumps(scale.get("domain")) for scale in y_scales} == {json.dumps(top and [0, top])}


def test_one_wide_interval_does_not_flatten_the_others() -> None:
    side = SideFigures(mean=1.0, spread=None, launches=[1.0])
    rows = [
        ComparedRow(
            stage=f"s{place}", metric="cpu_time", unit="ms", base=side, new=side, ratio=1.1, verdict="undecided",
            judged_by=Interval(low=0.9, high=high, confidence=0.95),
        )
        for place, high in enumerate((1.2, 400.0))
    ]  # fmt: skip
    version = ComparedVersion(
        side=ComparedSide(name="new", launches=[]), order="in-turns", allows_drift=False, differences=[], rows=rows,
        not_compared=[], remarks=[], conclusion="",
    )  # fmt: skip
    made = comparison_picture("c", version, ["s0", "s1"])
    assert made is not None
    assert [row["end"] for row in made.rows["c_intervals"]] == [pytest.approx(20), pytest.approx(30)]
