"""Several launches for real: folders, the file, what fails, an interrupt, versions in turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import perfharness
from perfharness.cli.main import run
from perfharness.runs.series.model import Series, read_series, runs_in
from perfharness_launcher.options import LaunchOptions
from tests.integration.launches import CHECKOUT, environment, hanging, launching, manifest, run_to_the_end, wait_for
from tests.schemas import valid

SCRIPT = """
import os, sys, time
from perfharness import PerfRecorder, startup_range
with startup_range("model_load"):
    time.sleep(0.1)
name = os.environ["PERFHARNESS_OUTPUT_DIR"]
action = sys.argv[1] if len(sys.argv) > 1 else ""
if action == "hang" and "launch_1" in name:
    print("hanging", flush=True)
    time.sleep(600)
if action == "fail" and any(one in name for one in ("launch_1", "cold_1", "np_3")):
    raise MemoryError("out of memory")
traced = os.environ["PERFHARNESS_TRACER"] != "ranges"
perf = PerfRecorder("rec")
with perf.range("pipeline"):
    for _ in perf.batches([[0, 0]] * 4, items=len):
        with perf.range("work"):
            time.sleep(0.2 if action == "traced" and traced else 0.01)
perf.finalize()
"""
BATCH = "rec/pipeline/batch"
QUICK = ("--tracer", "embedded", "-w", "0")


def series(script: Path, *options: object, action: str = "") -> tuple[subprocess.CompletedProcess[str], Series]:
    """Launch for real; returns what was printed and written."""
    out = script.parent / "out"
    done = run_to_the_end((*QUICK, "-o", out, *options, script, *([action] if action else [])), environment())
    return done, Series.model_validate(valid("series", out / "series.json"))


def statuses(found: Series) -> list[str]:
    return [f"{row.folder} {row.status}" for row in found.rows]


def test_two_launches(script: Path, tmp_path: Path) -> None:
    done, found = series(script, "--repeat", 2, "--format", "json")
    out = tmp_path / "out"
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads((out / "series.json").read_text()) | {"created": printed["created"]}
    assert statuses(found) == ["launch_0 ok", "launch_1 ok"]
    assert len({row.run_id for row in found.rows}) == 2
    assert runs_in(out) == (out / "launch_0", out / "launch_1")
    of_runs = [
        json.loads((folder / "benchmark_mean.json").read_text())["stats_minus_warmup"]["rec"]["pipeline"]["batch"]
        for folder in runs_in(out)
    ]
    times = [row.figures[BATCH]["cpu_time_per_item"] for row in found.rows]
    assert times == [one["cpu_time_per_item"]["mean"] for one in of_runs]
    batch = found.summary["launch"][BATCH]["cpu_time_per_item"]
    assert (batch.low or 0) < (batch.mean or 0)
    assert f"{BATCH}/work" in found.summary["launch"]


@pytest.mark.slow
def test_a_launch_that_fails_is_listed_and_the_others_count(script: Path, tmp_path: Path) -> None:
    done, found = series(script, "--repeat", 3, action="fail")
    assert done.returncode == 3
    assert statuses(found) == ["launch_0 ok", "launch_1 failed", "launch_2 ok"]
    assert [row.exit_codes for row in found.rows] == [[0], [1], [0]]
    assert found.summary["launch"][BATCH]["cpu_time"].count == 2
    assert [path.name for path in runs_in(tmp_path / "out")] == ["launch_0", "launch_2"]


@pytest.mark.slow
def test_an_interrupt_ends_it_and_what_was_measured_stays(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching(("--repeat", 3, "-o", out, *QUICK, script, "hang"), environment()) as launcher:
        wait_for(lambda: hanging(out / "launch_1", 1))
        launcher.send_signal(signal.SIGINT)
        launcher.communicate()
        assert launcher.returncode == 1
    found = read_series(out)
    assert found is not None
    assert statuses(found) == ["launch_0 ok", "launch_1 failed", "launch_2 not_run"]
    assert runs_in(out) == (out / "launch_0",)


@pytest.mark.slow
def test_numbers_of_processes_go_on_after_a_launch_that_fails(script: Path, tmp_path: Path) -> None:
    done, found = series(script, "--np-sweep", "1,3,2", action="fail")
    out = tmp_path / "out"
    assert done.returncode == 3, done.stdout + done.stderr
    assert statuses(found) == ["np_1 ok", "np_3 failed", "np_2 ok"]
    one, three, _ = found.rows
    assert "out of memory" in str(three.reason)
    measured = json.loads((out / "np_1" / "benchmark_mean.json").read_text())["throughput"]["items_per_second"]
    assert one.figures[""]["items_per_second"] == pytest.approx(measured)
    assert (one.figures[""]["latency_p50_ms"] or 0) > 10
    assert one.figures[""]["speedup"] == 1
    assert all((out / f"np_{number}" / "manifest.json").exists() for number in (1, 2, 3))
    assert (out / "scaling.png").exists()
    assert "speed-up" in done.stdout
    refused = ["launch", *QUICK, "-o", str(out / "x"), "--np-sweep", "1", "--repeat", "2", str(script)]
    assert run(refused) == 2


@pytest.mark.slow
def test_a_series_without_a_number_is_3(script: Path) -> None:
    done, found = series(script, "--np-sweep", "1", "--tracer", "none")
    assert done.returncode == 3, done.stdout + done.stderr
    assert statuses(found) == ["np_1 failed"]
    assert found.rows[0].reason
    assert not (script.parent / "out" / "scaling.png").exists()


@pytest.mark.slow
def test_a_planted_cost_of_tracing_is_found(script: Path, tmp_path: Path) -> None:
    done, found = series(script, "--overhead", "--repeat", 2, action="traced")
    assert done.returncode == 3, done.stderr
    assert (found.overhead[BATCH]["cpu_time"].overhead or 0) > 1
    assert (found.summary["untraced"][BATCH]["cpu_time"].mean or 0) >= 10
    folders = sorted(row.folder for row in found.rows)
    assert folders == [f"{kind}/launch_{number}" for kind in ("traced", "untraced") for number in range(2)]
    kinds = [manifest(tmp_path / "out" / folder)["tracer"]["kind"] for folder in folders]
    assert kinds == ["embedded", "embedded", "ranges", "ranges"]
    for name, code in (("out", 3), ("out/untraced", 0)):
        assert run(["analyze", str(tmp_path / name), "-q"]) == code


def test_ranges_only(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_to_the_end(("-o", out, "-w", "0", "--tracer", "ranges", script), environment())
    assert done.returncode == 0, done.stderr
    work = json.loads((out / "benchmark_mean.json").read_text())["stats_minus_warmup"]["rec"]["pipeline"]["batch"][
        "work"
    ]
    assert work["cpu_time"]["count"] == 4
    assert work["cpu_time"]["mean"] >= 10
    assert run(["launch", "--tracer", "ranges", "--explain", "--dry-run", str(script)]) == 2


@pytest.mark.parametrize(
    ("reason", "action", "code", "expected"),
    [
        ("not permitted", "", 0, ["first ok", "cold_0 not_run", "warm_0 ok"]),
        pytest.param(
            None,
            "fail",
            3,
            ["first ok", "cold_0 ok", "warm_0 ok", "cold_1 failed", "warm_1 ok"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_cold_starts(
    reason: str | None,
    action: str,
    code: int,
    expected: list[str],
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine's own file cache is left alone."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "launcher")]))
    monkeypatch.setattr("perfharness.runs.series.launching.drop_page_cache", lambda: reason)
    out, count = tmp_path / "out", str(len(expected) // 2)
    words = ["--repeat", count, "--cold", "--tracer", "none", "--no-telemetry", "-o", str(out), str(script)]
    assert run(["launch", *words, *([action] if action else [])]) == code
    found = read_series(out)
    assert found is not None
    assert statuses(found) == expected
    warm = found.summary["warm"][""]
    assert (warm["model_load_ms"].median or 0) >= 100
    assert warm["first_batch_ms"].median is None, "without a tracer nobody knows"
    assert ("cold" in found.summary) == (reason is None)


@pytest.mark.slow
def test_cases_in_turns_from_python(script: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"script": str(script), "tracer": "embedded", "telemetry": False, "warmup_batches": 0}
    made = perfharness.launch_in_turns([LaunchOptions(**settings)] * 2, tmp_path / "turns", count=2, seed=5)
    rows = made.series.rows
    assert sorted(row.folder for row in rows) == [
        f"{of}/launch_{number}" for of in ("base", "new") for number in (0, 1)
    ]
    assert [row.place for row in rows] == [0, 1, 2, 3]
    assert [row.created for row in rows] == sorted(str(row.created) for row in rows)
    assert made.series.seed == 5
    assert len(runs_in(tmp_path / "turns" / "new")) == 2
