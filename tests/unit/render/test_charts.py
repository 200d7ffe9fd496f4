"""Charts of a report, as specifications."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.comparison.compare import Interval
from perfharness.analysis.ranks.results import RankFigures
from perfharness.analysis.stages.charts import batch_series
from perfharness.model.result import BatchLoop
from perfharness.render.charts.report import comparison_picture, ranks_picture, series_picture
from perfharness.render.report.files import gather_all
from perfharness.render.report.sections import document_of
from perfharness.runs.comparison.result import ComparedRow, ComparedSide, ComparedVersion, SideFigures
from perfharness.runs.files.run_folder import ReadAs
from perfharness.runs.report.gather import gather
from perfharness.runs.report.model import LoopSeries, SuiteReport
from tests.unit.bench_results import whole_suite
from tests.unit.charts import drawn, pictures_of
from tests.unit.load.test_load_report import hostile
from tests.unit.render.test_report import hostile_trace

MS = 1_000_000
TRACES = Path(__file__).parents[2] / "golden" / "traces"


def test_every_chart_of_a_report_is_vega_lite(tmp_path: Path) -> None:
    """Of a GPU trace, a trace and a load test whose names try to break out of the page, and a suite."""
    runs = [TRACES / "graphs.sqlite", hostile_trace(tmp_path / "run"), hostile(tmp_path / "load")]
    reports = [gather_all([run], ReadAs(), None) for run in runs]
    reports.append(gather([], suites=[SuiteReport(name="made up", suite=whole_suite())]))
    found = {picture.name: picture for report in reports for picture in pictures_of(document_of(report))}
    kinds = {name.partition("_")[0] for name in found}
    assert kinds >= {"stages", "series", "distribution", "timeline", "load", "bench"}
    for picture in found.values():
        assert "mark" in drawn(picture), picture.name


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
    scales = [layer["encoding"]["y"]["scale"] for layer in picture.chart["layer"] if "y" in layer["encoding"]]
    assert scales
    assert [scale.get("domain") for scale in scales] == [top and [0, top]] * len(scales)
    assert any("700" in note for note in picture.notes) is (top is not None)
    assert 3 <= len(picture.rows["p_batches"]) <= 1000


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
    assert "mark" in drawn(made)


def test_the_wait_of_a_rank_is_part_of_its_communication_where_it_is_not_known() -> None:
    ranks = [
        RankFigures(
            process="p", rank=rank, batch_ms=10.0, collectives=1.0, communication_ms=4.0, communication_share=0.4,
            waiting_ms=waiting, transfer_ms=transfer, other_ms=6.0, judged_share=None, last_share=None, lag_ms=None,
        )
        for rank, (waiting, transfer) in enumerate([(1.0, 3.0), (None, None)])
    ]  # fmt: skip
    made = ranks_picture("r", ranks)
    assert [(row["rank"], row["ms"]) for row in made.rows["r_ranks"]] == [
        ("rank 0", 6.0), ("rank 0", 3.0), ("rank 0", 1.0), ("rank 1", 6.0), ("rank 1", 4.0),
    ]  # fmt: skip
    assert "mark" in drawn(made)
