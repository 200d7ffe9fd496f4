"""Fresh processes with a cold and a warm file cache. The machine's own cache is left alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.launch import show_cold_start
from perfharness.cli.support.output import Output
from perfharness.errors import UsageError
from perfharness.runs.series.cold_start import cold_start_options, spreads
from perfharness.runs.series.cold_start_file import ColdStart, ColdStartRow
from perfharness_launcher.options import LaunchOptions
from tests.schemas import valid
from tests.support.launch_plans import plan_of

ROOT = Path(__file__).parents[3]

SCRIPT = """
import sys, time
from pathlib import Path
from perfharness import PerfRecorder, startup_range
with startup_range("model_load"), open(sys.argv[1], "rb") as weights:
    weights.read()
    time.sleep(0.3)
if len(sys.argv) > 2 and "cold_1" in __import__("os").environ["PERFHARNESS_OUTPUT_DIR"]:
    sys.exit(7)
perf = PerfRecorder("rec")
for i in range(3):
    with perf.batch(i, total_items=1):
        pass
perf.finalize()
"""


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"weights")
    return path


def test_median_and_range() -> None:
    rows = [
        ColdStartRow(cache="warm", folder=f"warm_{n}", status="ok", startup={"model_load_ms": value})
        for n, value in enumerate((3.0, 1.0, 8.0, None))
    ]
    rows.append(ColdStartRow(cache="warm", folder="warm_4", status="failed", startup={"model_load_ms": 100.0}))
    rows.append(ColdStartRow(cache="unknown", folder="first", status="ok", startup={"model_load_ms": 50.0}))
    found = spreads(rows, "warm")["model_load_ms"]
    assert (found.count, found.median, found.min, found.max) == (3, 3.0, 1.0, 8.0)
    assert spreads(rows, "cold")["model_load_ms"].median is None


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 0), ({}, 10**20), ({"num_processes": 2}, 2), ({"num_gpus": 2}, 2), ({"gpus": ("0", "1")}, 2)],
)
def test_what_cannot_go_together(options: dict[str, Any], count: int) -> None:
    with pytest.raises(UsageError, match="--cold-start"):
        cold_start_options(LaunchOptions(script="x.py", **options), count)


OPTIONS = LaunchOptions(script="script.py", tracer="none", python=sys.executable, telemetry=False)


def options_of(tmp_path: Path, *arguments: str) -> LaunchOptions:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    settings = {"script": str(script), "script_arguments": arguments, "output_dir": tmp_path / "out"}
    return OPTIONS.model_copy(update=settings)


Measure = Callable[..., tuple[int, ColdStart]]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Cold starts for real; gives the exit code and what was written."""

    def measure(options: LaunchOptions, reason: str | None = None, count: int = 2) -> tuple[int, ColdStart]:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "launcher")]))
        monkeypatch.setattr("perfharness.runs.series.cold_start.drop_page_cache", lambda: reason)
        plans = [plan_of(each) for each in cold_start_options(options, count)]
        code = show_cold_start(options, plans, Output())
        written = valid("cold_start", options.output_dir / "cold_start.json")
        return code, ColdStart.model_validate(written)

    return measure


@pytest.mark.slow
def test_real_processes_without_a_tracer_of_which_one_fails(weights: Path, tmp_path: Path, measure: Measure) -> None:
    code, found = measure(options_of(tmp_path, str(weights), "fail"))
    assert code == 3
    assert [row.folder for row in found.rows] == ["first", "cold_0", "warm_0", "cold_1", "warm_1"]
    assert [row.cache for row in found.rows] == ["unknown", "cold", "warm", "cold", "warm"]
    failed = next(row for row in found.rows if row.folder == "cold_1")
    assert (failed.status, failed.startup) == ("failed", None)
    assert "7" in (failed.reason or "")
    assert (found.cold["model_load_ms"].count, found.warm["model_load_ms"].count) == (1, 2)
    assert (found.warm["model_load_ms"].median or 0) >= 300
    assert found.warm["first_batch_ms"].median is None, "without a tracer nobody tells"


def test_a_cache_that_cannot_be_emptied_is_null_with_the_reason(
    weights: Path, tmp_path: Path, measure: Measure
) -> None:
    code, found = measure(options_of(tmp_path, str(weights)), "not permitted", count=1)
    assert code == 0
    assert [row.status for row in found.rows] == ["ok", "not_run", "ok"]
    assert found.cold["process_to_first_batch_ms"].median is None
    assert found.cold_reason == "not permitted"
    assert (found.warm["process_to_first_batch_ms"].median or 0) > 300


def test_cold_starts_that_report_nothing_are_3(tmp_path: Path, measure: Measure) -> None:
    options = OPTIONS.model_copy(update={"script": "true", "output_dir": tmp_path / "out"})
    code, found = measure(options, count=1)
    assert code == 3
    assert [row.status for row in found.rows] == ["ok"] * 3
    assert all(spread.median is None for spread in (*found.cold.values(), *found.warm.values()))
