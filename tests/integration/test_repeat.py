"""Several launches of the same for real: folders, the file, what fails, and several cases."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.runs.series.folders import repeated_launches
from perfharness.runs.series.repeat import repeat_cases
from perfharness.runs.series.repeat_file import read_repeat
from perfharness_launcher.options import LaunchOptions
from tests.integration.launches import environment, hanging, launching, run_to_the_end, wait_for

SCRIPT = """
import sys, time
from pathlib import Path
from typing import Any
from perfharness import PerfRecorder
count = Path(__file__).with_name("count")
number = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (number + 1))
if sys.argv[1:] == ["hang"] and number == 1:
    print("hanging", flush=True)
    time.sleep(600)
if sys.argv[1:] == ["fail"] and number == 1:
    sys.exit(7)
perf = PerfRecorder("rec")
with perf.range("pipeline"):
    for i in range(3):
        with perf.batch(i, total_items=2), perf.range("work"):
            time.sleep(0.002)
perf.finalize()
"""
BATCH = "rec/pipeline/batch"
QUICK = ("--tracer", "embedded", "--no-telemetry", "-w", "0")


def test_two_launches(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "rep"
    done = run_to_the_end(("--repeat", 2, "-o", out, *QUICK, "--format", "json", script), environment())
    assert done.returncode == 0, done.stderr
    printed, repeat = json.loads(done.stdout), read_repeat(out)
    assert repeat is not None
    assert printed == json.loads((out / "repeat.json").read_text()) | {"created": printed["created"]}
    assert [row.status for row in repeat.rows] == ["ok"] * 2
    assert len({row.run_id for row in repeat.rows}) == 2
    assert repeated_launches(out) == tuple(out / f"launch_{number}" for number in range(2))
    values = [
        json.loads((folder / "benchmark_mean.json").read_text())["stats_minus_warmup"]["rec"]["pipeline"]["batch"]
        for folder in repeated_launches(out)
    ]
    batch = repeat.stages[BATCH]["cpu_time_per_item"]
    assert batch.values == [value["cpu_time_per_item"]["mean"] for value in values]
    assert batch.low is not None
    assert batch.low < (batch.mean or 0)
    assert f"{BATCH}/work" in repeat.stages
    refused = ["launch", *QUICK, "--repeat", "2"]
    assert run([*refused, "--np-sweep", "1,2", "-o", str(tmp_path / "x"), str(script)]) == 2


@pytest.mark.slow
def test_a_launch_that_fails_is_listed_and_the_others_count(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "rep"
    done = run_to_the_end(("--repeat", 3, "-o", out, *QUICK, script, "fail"), environment())
    assert done.returncode == 3
    repeat = read_repeat(out)
    assert repeat is not None
    assert [(row.status, row.exit_codes) for row in repeat.rows] == [("ok", [0]), ("failed", [7]), ("ok", [0])]
    assert len(repeat.stages[BATCH]["cpu_time"].values) == 2
    assert [path.name for path in repeated_launches(out)] == ["launch_0", "launch_2"]


@pytest.mark.slow
def test_an_interrupt_ends_it_and_what_was_measured_stays(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "rep"
    with launching(("--repeat", 3, "-o", out, *QUICK, script, "hang"), environment()) as launcher:
        wait_for(lambda: hanging(out / "launch_1", 1))
        launcher.send_signal(signal.SIGINT)
        launcher.communicate()
        assert launcher.returncode == 1
    repeat = read_repeat(out)
    assert repeat is not None
    assert [row.status for row in repeat.rows] == ["ok", "failed", "not_run"]
    assert repeated_launches(out) == (out / "launch_0",)


@pytest.mark.slow
def test_cases_in_turn_from_python(script: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"script": str(script), "tracer": "embedded", "telemetry": False, "warmup_batches": 0}
    options = [LaunchOptions(output_dir=tmp_path / name, **settings) for name in ("a", "b")]
    first, second = repeat_cases(options, count=2, seed=5)
    made = sorted(
        (row.created or "", row.place, f"{case.folder.name}/{row.folder}")
        for case in (first, second)
        for row in case.repeat.rows
    )
    assert [name for _, _, name in sorted(made, key=lambda one: one[1])] == list(first.order) == list(second.order)
    assert [created for created, _, _ in made] == sorted(created for created, _, _ in made)
    assert len(first.launches) == len(second.launches) == 2
    assert first.repeat.asked.seed == second.repeat.asked.seed == 5
