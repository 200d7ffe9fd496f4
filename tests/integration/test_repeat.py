"""Several launches of the same for real: folders, the file, what fails, several cases, and a planted neighbour."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import perfharness
from perfharness.errors import LaunchInterruptedError
from perfharness.model.yardstick import yardstick_of
from perfharness.runs.files import run_folder
from perfharness.runs.series.repeat import repeat_cases
from perfharness.runs.series.repeat_file import read_repeat, repeated_launches
from perfharness.runs.series.steadiness import unsteadiness
from perfharness_launcher.companions.yardstick import LISTED, YardstickCompanion
from perfharness_launcher.plan.options import LaunchOptions
from tests.integration.launches import environment, hanging, launching, manifest, run_to_the_end, wait_for

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
    for i in range(300 if sys.argv[1:] == ["long"] else 3):
        with perf.batch(i, total_items=2), perf.range("work"):
            time.sleep(0.002)
perf.finalize()
"""
BATCH = "rec/pipeline/batch"
QUICK = ("--tracer", "embedded", "--no-telemetry", "-w", "0")


def test_three_launches(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "rep"
    done = run_to_the_end(("--repeat", 3, "-o", out, *QUICK, "--format", "json", script), environment())
    assert done.returncode == 0, done.stderr
    printed, repeat = json.loads(done.stdout), read_repeat(out)
    assert repeat is not None
    assert printed == json.loads((out / "repeat.json").read_text()) | {"created": printed["created"]}
    assert [row.status for row in repeat.rows] == ["ok"] * 3
    assert len({row.run_id for row in repeat.rows}) == 3
    assert repeated_launches(out) == tuple(out / f"launch_{number}" for number in range(3))
    values = [
        json.loads((folder / "benchmark_mean.json").read_text())["stats_minus_warmup"]["rec"]["pipeline"]["batch"]
        for folder in repeated_launches(out)
    ]
    batch = repeat.stages[BATCH]["cpu_time_per_item"]
    assert batch.values == [value["cpu_time_per_item"]["mean"] for value in values]
    assert batch.low is not None
    assert batch.low < (batch.mean or 0)
    assert f"{BATCH}/work" in repeat.stages

    together = run_to_the_end(("--repeat", 2, "--np-sweep", "1,2", "-o", tmp_path / "x", script), environment())
    assert together.returncode == 2


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


@pytest.mark.parametrize("when", ["a companion starts", "the traces are read"])
def test_an_interrupt_at_any_time_ends_it(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    owner = YardstickCompanion if when == "a companion starts" else run_folder
    monkeypatch.setattr(owner, "start" if owner is YardstickCompanion else "analyze_run", interrupted)
    settings: dict[str, Any] = {"script": str(script), "tracer": "embedded", "telemetry": False, "warmup_batches": 0}
    options = [LaunchOptions(output_dir=tmp_path / name, **settings) for name in ("a", "b")]
    cases = repeat_cases(options, count=2, seed=5)
    rows = sorted((row for case in cases for row in case.repeat.rows), key=lambda row: row.place)
    assert [row.status for row in rows] == ["failed", "not_run", "not_run", "not_run"]
    kept = list(tmp_path.rglob("manifest.json"))
    assert len(kept) == (0 if owner is YardstickCompanion else 1)  # what was measured is kept
    with pytest.raises(LaunchInterruptedError):
        perfharness.launch(script, output_dir=tmp_path / "c", tracer="embedded", telemetry=False)


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


NEIGHBOUR = "import time\nprint(flush=True)\nwhile True: pass"


@pytest.mark.slow
def test_two_busy_loops_beside_one_of_the_launches_are_found(script: Path, tmp_path: Path) -> None:
    planted: list[subprocess.Popen[bytes]] = []
    used_s: list[float] = []

    def plant(place: int) -> None:
        """Start two before the second launch, end them after it."""
        if place == 1:
            planted.extend(subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(2))
        if place == 2:
            for process in planted:
                used_s.append(sum(psutil.Process(process.pid).cpu_times()[:2]))
                process.kill()
                process.wait()

    folders = [tmp_path / f"launch_{place}" for place in range(3)]
    try:
        for place, folder in enumerate(folders):
            plant(place)
            done = run_to_the_end(("-o", folder, *QUICK, script, "long"), environment())
            assert done.returncode == 0, done.stderr
    finally:
        for process in planted:
            process.kill()
            process.wait()
    rulers = [yardstick_of(manifest(folder)["companions"]) for folder in folders]
    pids = {process.pid for process in planted}
    counted = [{one.pid: one.cpu_s for one in ruler.others if one.pid in pids} for ruler in rulers if ruler is not None]
    disturbed, moved = rulers[1], unsteadiness(folders)
    assert disturbed is not None
    assert [set(each) for each in counted[::2]] == [set(), set()]
    if len(disturbed.others) < LISTED:  # else the machine has others that used more
        assert set(counted[1]) == pids <= {one.pid for one in moved.others["launch_1"]}
    assert 0 <= sum(counted[1].values()) <= sum(used_s)
    if disturbed.others_cpus is not None:  # all that others used, these two among them; counted in steps of 10 ms
        assert disturbed.others_cpus * disturbed.window_s >= 0.8 * sum(counted[1].values())
    assert moved.relative is not None
