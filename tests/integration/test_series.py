"""Several launches for real: folders, the file, what fails, an interrupt, versions in turns."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import perfharness
from perfharness.cli.main import run
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


def written(folder: Path) -> tuple[Any, list[str]]:
    """`series.json`, and folder and status of each launch."""
    found = valid("series", folder / "series.json")
    return found, [f"{row['folder']} {row['status']}" for row in found["rows"]]


def test_two_launches(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_to_the_end((*QUICK, "-o", out, "--repeat", 2, "--format", "json", script), environment())
    found, statuses = written(out)
    assert (done.returncode, statuses) == (0, ["launch_0 ok", "launch_1 ok"]), done.stderr
    printed = json.loads(done.stdout)
    assert printed == found | {"created": printed["created"]}
    assert len({row["run_id"] for row in found["rows"]}) == 2
    for row in found["rows"]:
        folder = out / row["folder"]
        tree = json.loads((folder / "benchmark_mean.json").read_text())["stats_minus_warmup"]["rec"]["pipeline"]
        assert row["figures"][BATCH]["cpu_time_per_item"] == tree["batch"]["cpu_time_per_item"]["mean"]
        (process,) = manifest(folder)["processes"]
        assert row["figures"][""]["duration_s"] == pytest.approx(process["duration_s"])
        assert row["figures"][""]["cpu_s"] == pytest.approx(process["user_s"] + process["system_s"])
        load = manifest(folder)["companions"]["yardstick"]
        assert (load["loop_before"]["wall_ms"] > 0, load["cpus"]) == (True, len(os.sched_getaffinity(0)))
    batch = found["summary"]["launch"][BATCH]["cpu_time_per_item"]
    assert batch["low"] < batch["mean"] < batch["high"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "action", "code", "statuses"),
    [
        (("--repeat", 3), "fail", 3, ["launch_0 ok", "launch_1 failed", "launch_2 ok"]),
        (("--np-sweep", "1,3,2"), "fail", 3, ["np_1 ok", "np_3 failed", "np_2 ok"]),
        (("--np-sweep", "1", "--tracer", "none"), "", 3, ["np_1 failed"]),
    ],
)
def test_a_launch_that_fails_is_listed_and_the_others_count(
    options: tuple[Any, ...], action: str, code: int, statuses: list[str], script: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run_to_the_end((*QUICK, "-o", out, *options, script, *([action] if action else [])), environment())
    found, listed = written(out)
    assert (done.returncode, listed) == (code, statuses), done.stdout + done.stderr
    assert f"Results: {out}" in done.stdout
    (failed,) = (row for row in found["rows"] if row["status"] == "failed")
    assert "out of memory" in failed["reason"] or action == ""
    measured = [row["folder"] for row in found["rows"] if row["status"] == "ok"]
    assert all((out / name / "manifest.json").exists() for name in measured)
    if "--repeat" in options:
        assert found["summary"]["launch"][BATCH]["cpu_time"]["count"] == 2
    elif measured:
        one = found["rows"][0]["figures"][""]
        throughput = json.loads((out / "np_1" / "benchmark_mean.json").read_text())["throughput"]
        assert one["items_per_second"] == pytest.approx(throughput["items_per_second"])
        assert (one["latency_p50_ms"] > 10, one["speedup"]) == (True, 1)
    assert (out / "scaling.png").exists() == (len(measured) > 0 and "--np-sweep" in options)


@pytest.mark.slow
def test_an_interrupt_ends_it_and_what_was_measured_stays(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching(("--repeat", 3, "-o", out, *QUICK, script, "hang"), environment()) as launcher:
        wait_for(lambda: hanging(out / "launch_1", 1))
        launcher.send_signal(signal.SIGINT)
        launcher.communicate()
        assert launcher.returncode == 1
    assert written(out)[1] == ["launch_0 ok", "launch_1 failed", "launch_2 not_run"]
    assert [one.name for one in perfharness.open_run(out).processes] == ["launch_0/proc_0_gpu_0"]


@pytest.mark.slow
def test_a_planted_cost_of_tracing_is_found(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_to_the_end((*QUICK, "-o", out, "--overhead", "--repeat", 2, script, "traced"), environment())
    found, _ = written(out)
    assert done.returncode == 3, done.stderr
    assert found["overhead"][BATCH]["cpu_time"]["overhead"] > 1
    assert found["summary"]["untraced"][BATCH]["cpu_time"]["mean"] >= 10
    kinds = {row["folder"]: manifest(out / row["folder"])["tracer"]["kind"] for row in found["rows"]}
    assert kinds == {
        f"{label}/launch_{number}": kind
        for label, kind in (("traced", "embedded"), ("untraced", "ranges"))
        for number in (0, 1)
    }
    for name, code in (("out", 3), ("out/untraced", 0)):
        assert run(["analyze", str(tmp_path / name), "-q"]) == code


def test_ranges_only(script: Path, tmp_path: Path) -> None:
    done = run_to_the_end(("-o", tmp_path / "out", "-w", "0", "--tracer", "ranges", script), environment())
    assert done.returncode == 0, done.stderr
    tree = json.loads((tmp_path / "out" / "benchmark_mean.json").read_text())["stats_minus_warmup"]
    time = tree["rec"]["pipeline"]["batch"]["work"]["cpu_time"]
    assert (time["count"], time["mean"] >= 10) == (4, True)
    assert run(["launch", "--tracer", "ranges", "--explain", "--dry-run", str(script)]) == 2


@pytest.mark.parametrize(
    ("reason", "action", "code", "expected"),
    [
        ("not permitted", [], 0, ["first ok", "cold_0 not_run", "warm_0 ok"]),
        pytest.param(
            None, ["fail"], 3, ["first ok", "cold_0 ok", "warm_0 ok", "cold_1 failed", "warm_1 ok"],
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_cold_starts(
    reason: str | None, action: list[str], code: int, expected: list[str], script: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The machine's own file cache is left alone."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "launcher")]))
    monkeypatch.setattr("perfharness.runs.series.launching.drop_page_cache", lambda: reason)
    out, count = tmp_path / "out", str(len(expected) // 2)
    words = ["--repeat", count, "--cold", "--tracer", "none", "--no-telemetry", "-o", str(out), str(script)]
    assert run(["launch", *words, *action]) == code
    found, statuses = written(out)
    assert statuses == expected
    warm = found["summary"]["warm"][""]
    assert warm["model_load_ms"]["median"] >= 100
    assert warm["first_batch_ms"]["median"] is None, "without a tracer nobody knows"
    assert ("cold" in found["summary"]) == (reason is None)


@pytest.mark.slow
def test_cases_in_turns_from_python(script: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"script": str(script), "tracer": "embedded", "telemetry": False, "warmup_batches": 0}
    made = perfharness.launch_in_turns([LaunchOptions(**settings)] * 2, tmp_path / "turns", count=2, seed=5)
    rows = made.series.rows
    assert sorted(row.folder for row in rows) == [f"{of}/launch_{at}" for of in ("base", "new") for at in (0, 1)]
    assert {row.label for row in rows[:2]} == {row.label for row in rows[2:]} == {"base", "new"}
    assert [row.created for row in rows] == sorted(str(row.created) for row in rows)
    assert (made.series.seed, len(perfharness.open_run(tmp_path / "turns" / "new").processes)) == (5, 2)
