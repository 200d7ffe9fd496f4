"""What is made of results: the flat rows, the charts, several machines side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.suites.recommend import recommend
from perfharness.bench import read_suite
from perfharness.bench.results import bench_table, write_suite
from perfharness.bench.side_by_side import merge_suites
from perfharness.cli.main import run
from perfharness.errors import ResultError
from perfharness.model.bench import (
    CaseResult,
    LayerRecord,
    MachineRecord,
)
from perfharness.model.bench_suite import BenchSuiteResult, Recommendation
from perfharness.model.manifest import BENCH_NAME
from perfharness.render.charts.bench import BENCH_PAGE, bench_pictures
from perfharness.render.charts.drawing import Picture
from perfharness.render.html import draw
from tests.schemas import valid
from tests.support.documents import markdown_table
from tests.unit.bench_results import made_up, suite_of, whole_suite
from tests.unit.charts import drawn


def reported(folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """The report in Markdown."""
    assert run(["report", str(folder), "-o", "-"]) == 0
    return capfd.readouterr().out


# ---- the table ----


def test_every_case_has_a_row_with_its_state_and_every_problem_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite = whole_suite()
    found = recommend(suite.cases, suite.constraints, suite.baseline)
    write_suite(tmp_path, suite.model_copy(update={"recommendations": found}))
    text = reported(tmp_path, capfd)
    rows = {tuple(row.values())[:3]: row for row in markdown_table(text, "speed-up", "state")}
    assert len(rows) == 42
    best = rows["tensorrt/engine", "fp16", "8"]
    assert [best[name] for name in ("p50 ms", "items/s", "speed-up", "cosine", "memory GB", "state")] == [
        "1.380", "5,796", "4.66x", "0.99989", "1", "",
    ]  # fmt: skip
    assert best["95 % of items/s"] == "5,564 to 6,027"
    assert rows["torch/eager", "fp32", "8"]["speed-up"] == "base"
    assert rows["tensorrt/engine", "int8", "8"]["state"] == "wrong answer"
    assert (rows["keras/plain", "fp32", "1"]["state"], rows["keras/plain", "fp32", "1"]["p50 ms"]) == (
        "unavailable",
        "-",
    )
    assert f"take tensorrt/engine fp16, batch 64 ({found[0].best})" in text.replace("\\", "")
    lines = [line.strip() for line in text.splitlines()]
    assert "7.64 GB at batch 64" in lines[lines.index("- memory over 7.5 GB, 1 case:") + 1]
    assert len([line for line in text.splitlines() if "batch 1, 2, 4, 8, 16, 32, 64" in line]) == 3


def test_a_speed_that_is_not_reproducible_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    held = made_up("held", 4, rate=100, telemetry_items_per_second=95.0)
    fast = made_up("fast", 4, rate=531, telemetry_items_per_second=727.0)
    drifting = made_up("drifting", 4, rate=193)
    assert drifting.latency is not None
    latency = drifting.latency.model_copy(update={"drift_percent": -34.0})
    write_suite(tmp_path, suite_of(held, fast, drifting.model_copy(update={"latency": latency})))
    lines = [line for line in reported(tmp_path, capfd).splitlines() if ": its " in line]
    assert [line.partition("/")[0] for line in lines] == ["- fast", "- drifting"]
    assert all(number in line for number, line in zip(("+37 %", "-34 %"), lines, strict=True))


# ---- files ----


def test_rows_have_units_and_nulls(tmp_path: Path) -> None:
    suite = whole_suite()
    table = bench_table(suite)
    rows = table.to_pylist()
    assert len(rows) == len(suite.cases)
    best = next(row for row in rows if row["case_id"] == "net-tensorrt-engine-fp16-b8")
    assert best["latency_p95_ms"] == pytest.approx(best["latency_median_ms"] * 1.1)
    assert best["latency_p95_low_ms"] < best["latency_p95_ms"] < best["latency_p95_high_ms"]
    assert best["speedup"] == pytest.approx(best["items_per_second"] / 1244.2, rel=1e-3)
    assert best["accuracy_loss"] == pytest.approx(1 - 0.99989)
    gone = next(row for row in rows if row["status"] == "unavailable")
    assert {gone[name] for name in gone if name.endswith(("_ms", "_j", "_w", "_low", "_high"))} == {None}
    assert valid("bench", suite)
    write_suite(tmp_path, suite)
    assert read_suite(tmp_path) == suite
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_results_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ResultError):
        read_suite(tmp_path)
    for text in ("{", suite_of(made_up("torch"), schema_version=99).model_dump_json()):
        (tmp_path / BENCH_NAME).write_text(text)
        with pytest.raises(ResultError):
            read_suite(tmp_path)


# ---- charts ----


def suite_charts(suite: BenchSuiteResult) -> dict[str, Picture]:
    return {picture.name.removeprefix("bench_"): picture for picture in bench_pictures(suite)}


def curves(picture: Picture, *fields: str) -> dict[str, list[tuple[Any, ...]]]:
    """The points of every curve."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in picture.rows[f"{picture.name}_points"]:
        found.setdefault(row["curve"], []).append(tuple(row[field] for field in fields))
    return found


def test_a_chart_has_every_measured_point_with_its_interval() -> None:
    suite = whole_suite()
    found = suite_charts(suite)
    assert list(found) == ["speedup", "throughput", "latency", "memory", "accuracy"]
    throughput = curves(found["throughput"], "x", "y", "y_low", "y_high")
    first, *_, last = throughput["torch/compile fp16"]
    assert first == (1, 520.0, pytest.approx(499.2), pytest.approx(540.8))
    assert last[0] == 64
    assert "keras/plain fp32" not in throughput
    assert "tensorrt/engine int8 (wrong answers)" in throughput
    assert sum(point[2] is not None for curve in throughput.values() for point in curve) == 4 * 7 + 6
    assert curves(found["memory"], "y")["tensorrt/engine fp16"][0] == (pytest.approx(0.65),)
    loss = curves(found["accuracy"], "x", "y", "x_low")["tensorrt/engine fp16"]
    assert loss[0] == (pytest.approx(900 / 210), pytest.approx(0.00011), pytest.approx(864 / 218.4))
    assert loss[-1] == (None, None, None)  # the baseline was not measured at a batch of 64
    bars = {row["case"]: row["speedup"] for row in found["speedup"].rows["bench_speedup_bars"]}
    assert bars["tensorrt/engine fp16, batch 1"] == pytest.approx(900 / 210)
    assert len(bars) == 5 * 6


def test_power_over_throughput_has_a_line_per_gpu() -> None:
    cases = [
        made_up("torch", size, gpu=gpu, power_w=watts * size, telemetry_items_per_second=100.0 * size)
        for gpu, watts in (("H200", 70.0), ("L4", 20.0))
        for size in (1, 2)
    ]
    found = suite_charts(suite_of(*cases))
    assert curves(found["power"], "x", "y") == {
        "torch/plain fp32 on H200": [(100, 70), (200, 140)],
        "torch/plain fp32 on L4": [(100, 20), (200, 40)],
    }
    assert set(curves(found["throughput"], "y")) == set(curves(found["power"], "y"))


def test_a_chart_of_what_nobody_has_is_not_drawn(tmp_path: Path) -> None:
    found = suite_charts(suite_of(made_up("torch"), made_up("gone", status="failed", reason="x")))
    assert list(found) == ["speedup", "throughput", "latency"]
    nothing = bench_pictures(suite_of(made_up("gone", status="failed", reason="x")))
    assert draw(nothing, tmp_path, BENCH_PAGE) == []


def test_a_curve_is_broken_where_a_batch_size_was_not_measured() -> None:
    cases = [made_up("torch", size, rate=10.0 * size) for size in (1, 2, 8, 16)]
    cases.insert(2, made_up("torch", 4, status="not-run", reason="stopped"))
    throughput = suite_charts(suite_of(*cases))["throughput"]
    assert curves(throughput, "x", "y") == {"torch/plain fp32": [(1, 10), (2, 20), (4, None), (8, 80), (16, 160)]}
    assert any("batch 4" in note for note in throughput.notes)


def test_layers_of_the_recommended_case_are_bars_with_the_longest_first() -> None:
    layers = [LayerRecord(name=f"conv{place}", milliseconds=1.0 + place % 7) for place in range(40)]
    best = made_up("fast", layers=layers)
    recommended = [Recommendation(model="net", best=best.case.case_id)]
    suite = suite_of(made_up("torch", layers=layers[:1]), best, recommendations=recommended)
    picture = suite_charts(suite)["layers"]
    rows = picture.rows["bench_layers_layers"]
    assert [row["ms"] for row in rows[:2]] == [7.0, 7.0]
    assert sum(row["ms"] for row in rows) == sum(one.milliseconds for one in layers)
    assert len(rows) == 26
    assert "conv6" in drawn(picture)


# ---- side by side ----


def test_the_same_cases_in_one_row_each_against_its_own_baseline() -> None:
    one = suite_of(made_up("torch", rate=100), made_up("fast", rate=300), made_up("only", rate=7))
    two = suite_of(
        made_up("torch", rate=10),
        made_up("fast", status="unavailable", reason="no GPU"),
        machine=MachineRecord(hostname="laptop", cpu="i7", python="3.12"),
        complete=False,
    )
    merged = merge_suites([("a", one), ("b", two)])
    assert [run.name for run in merged.runs] == ["rack1", "laptop"]
    cells = {row.backend: row.cells for row in merged.rows}
    assert cells["fast"][0].speedup is not None
    assert cells["fast"][0].speedup.value == pytest.approx(3.0)
    assert "no GPU" in (cells["fast"][1].reason or "")
    assert cells["torch"][1].speedup is not None
    assert cells["torch"][1].speedup.value == pytest.approx(1.0)
    assert (cells["only"][1].result, bool(cells["only"][1].reason)) == (None, True)
    assert any("complete" in line for line in merged.differences)
    assert any("3.12" in line for line in merged.differences)


def test_versions_and_models_that_differ_are_told() -> None:
    def suite(version: str, size: int) -> BenchSuiteResult:
        case = made_up("torch", versions={"torch": version})
        memory = case.memory.model_copy(update={"model_file_bytes": size})
        return suite_of(case.model_copy(update={"memory": memory}))

    same = merge_suites([("a", suite("2.4", 10)), ("b", suite("2.4", 10))])
    assert same.differences == []
    assert [run.name for run in same.runs] == ["rack1 #1", "rack1 #2"]
    other = merge_suites([("a", suite("2.4", 10)), ("b", suite("2.5", 11))])
    version, size = other.differences
    assert all(value in version for value in ("torch", "2.4", "2.5"))
    assert all(value in size for value in ("net", "10", "11"))


def variant(name: str, size: int = 1, **how: Any) -> CaseResult:
    result = made_up("torch", size, **how)
    case_id = f"{result.case.case_id}-{name}"
    return result.model_copy(update={"case": result.case.model_copy(update={"variant": name, "case_id": case_id})})


def test_merge_keeps_settings_and_devices_and_orders_by_size() -> None:
    one = suite_of(*(variant(f"threads={n}", size, rate=n * size) for n in (1, 2) for size in (1, 4, 16)))
    two = suite_of(*(variant("threads=1", size, device=device) for size in (8,) for device in ("cpu", "cuda")))
    merged = merge_suites([("a", one), ("b", two)])
    assert [(row.variant, row.device, row.batch_size) for row in merged.rows] == [
        ("threads=1", "cuda", 1), ("threads=1", "cuda", 4), ("threads=1", "cuda", 8), ("threads=1", "cuda", 16),
        ("threads=2", "cuda", 1), ("threads=2", "cuda", 4), ("threads=2", "cuda", 16), ("threads=1", "cpu", 8),
    ]  # fmt: skip
    rates = [row.cells[0].result and row.cells[0].result.items_per_second for row in merged.rows]
    assert [rate and rate.value for rate in rates] == [1, 4, None, 16, 2, 8, 32, None]
    assert bench_table(one).column("variant").to_pylist() == ["threads=1"] * 3 + ["threads=2"] * 3
