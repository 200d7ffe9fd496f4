"""Charts of a report, as specifications."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfharness.analysis.stages.batch_series import batch_series
from perfharness.analysis.stages.batch_timeline import Bar, BatchTimeline
from perfharness.model.result import BatchLoop
from perfharness.render.charts.drawing import short_label
from perfharness.render.charts.report import comparison_picture, series_picture, timeline_picture
from perfharness.runs.comparison.result import ComparedRow, ComparedSide, ComparedVersion, RatioInterval, SideFigures
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
    assert any(f"{warmup_ms} ms" in note for note in picture.notes) == (top is not None)


def test_a_long_name_without_blanks_keeps_its_beginning_and_its_end() -> None:
    assert short_label("a stage", 40) == "a stage"
    path = "model/encoder/layers/11/self_attention/projection/inner"
    short = short_label(f"{path} CPU/item", 40)
    assert len(short) == 40
    assert short.startswith("model/")
    assert short.endswith("inner CPU/item")
    assert "…" in short


def test_one_wide_interval_does_not_flatten_the_others() -> None:
    side = SideFigures(mean=1.0, spread=None, launches=[1.0])
    rows = [
        ComparedRow(
            stage=f"s{place}", metric="cpu_time", unit="ms", base=side, new=side, ratio=1.1, verdict="undecided",
            judged_by=RatioInterval(low=0.9, high=high, confidence=0.95),
        )
        for place, high in enumerate((1.2, 400.0))
    ]  # fmt: skip
    version = ComparedVersion(
        side=ComparedSide(name="new", launches=[]), order="in-turns", allows_drift=False, differences=[], rows=rows,
        not_compared=[], only_in_base=[], only_in_new=[], remarks=[],
    )  # fmt: skip
    made = comparison_picture("c", version, ["s0", "s1"])
    assert made is not None
    assert [row["end"] for row in made.rows["c_intervals"]] == [pytest.approx(20), pytest.approx(30)]
    assert any("+30 %" in note for note in made.notes)


def test_names_in_a_timeline_end_with_their_bars() -> None:
    bars = [Bar("stages 1", "x" * 200, "stage", 10.0 * place, 10.0 * place + 9) for place in range(3)]
    found = BatchTimeline("typical", "p", ("rec", "batch"), 0, 30.0, 30.0, ["stages 1"], bars)
    content = timeline_picture("t", found).content
    assert content is not None
    (names,) = [layer for layer in content["layer"] if layer["mark"]["type"] == "text"]
    assert "datum.end" in names["mark"]["limit"]["expr"]
