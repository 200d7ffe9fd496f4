"""A launch from Python gives what the command gives: folder, files, findings; in a thread, too."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import perfharness
from perfharness.cli.main import run as cli
from perfharness.errors import LaunchError, UsageError
from perfharness.model.manifest import ProcessRecord
from perfharness.runs.analyze import AnalyzedRuns
from perfharness.runs.launch import LaunchResult
from perfharness.runs.run import Run
from tests.integration.launches import environment, manifest, run_to_the_end
from tests.schemas import valid

SCRIPT = """
import sys
from perfharness import PerfRecorder
perf = PerfRecorder("rec")
for i in range(6):
    with perf.batch(i, total_items=int(sys.argv[1])):
        with perf.range("work"):
            sum(range(1000))
perf.finalize()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    path = tmp_path / "pipeline.py"
    path.write_text(SCRIPT)
    (tmp_path / "perfharness.toml").write_text('[launch]\ntracer = "embedded"\nmeasure-idle = 0\nwarmup-batches = 2\n')
    return path


def shape(tree: Any) -> Any:
    """A result without its times: names, and the numbers that do not depend on the machine."""
    if not isinstance(tree, dict):
        return None
    kept = {"count", "total_items", "warmup", "warmup_batches"}
    return {name: value if name in kept else shape(value) for name, value in tree.items() if name != "run_id"}


def of_run(folder: Path) -> dict[str, Any]:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    mean = json.loads((folder / "benchmark_mean.json").read_text())
    one = json.loads((folder / "proc_1_gpu_0" / "benchmark.json").read_text())
    busy = ("cpu-contention", "machine-noisy")  # another program, perhaps
    codes = [finding["code"] for finding in mean["meta"]["findings"] if finding["code"] not in busy]
    trees = {name: shape(tree[name]) for tree in (one, mean) for name in ("mean_data", "data") if name in tree}
    return {"names": names, "codes": codes, "settings": manifest(folder)["settings"], **trees}


def launched_in_a_thread() -> LaunchResult:
    """A launch from Python; a process of the caller's own is left alone."""
    results = []
    settings: dict[str, Any] = {"num_processes": 2, "output_dir": Path("python")}
    thread = threading.Thread(target=lambda: results.append(perfharness.launch("pipeline.py", "4", **settings)))
    with subprocess.Popen(["sleep", "1000"]) as own:
        thread.start()
        thread.join()
        assert own.poll() is None
        own.kill()
    return results[0]


def test_a_launch_from_python_gives_what_the_command_gives(script: Path, tmp_path: Path) -> None:
    words = ("--telemetry", "--format", "json", "-np", 2, "-o", "command", "pipeline.py", 4)
    done = run_to_the_end(words, environment(), tmp_path)
    assert (done.returncode, "proc_1_gpu_0" in done.stderr) == (0, True), done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "command" / "benchmark_mean.json").read_text())
    result = launched_in_a_thread()
    assert (result.folder, result.all_processes_well) == (tmp_path / "python", True)
    assert of_run(tmp_path / "python") == of_run(tmp_path / "command")
    assert manifest(result.folder)["settings"]["names"] == ["tracer", "measure-idle", "warmup-batches"]
    assert manifest(result.folder)["command"] == [
        "perfharness", "launch", "--num-processes", "2", "--warmup-batches", "2", "--tracer", "embedded",
        "--output-dir", "python", "pipeline.py", "4",
    ]  # fmt: skip
    run = result.open()
    assert (len(run.processes), run.batches().num_rows) == (2, 12)
    assert run.benchmark is not None
    assert run.benchmark["throughput"] == result.summary.mean["throughput"]
    check_times(run, result.manifest.processes)
    again = perfharness.analyze("python", warmup_batches=1)
    assert isinstance(again, AnalyzedRuns)
    assert shape(again.summaries[0].mean["mean_data"]) == shape(result.summary.mean["mean_data"])
    assert json.loads((tmp_path / "python" / "benchmark_mean.json").read_text())["meta"]["warmup_batches"] == 1
    bare = perfharness.analyze("python/proc_0_gpu_0/trace.sqlite", warmup_batches=1, output_dir="written")
    assert bare.has_numbers
    assert (tmp_path / "written" / "trace" / "benchmark.json").is_file()


def check_times(run: Run, processes: Sequence[ProcessRecord]) -> None:
    """The same moments, by way of the timeline and by way of the table; inside the time of the processes."""
    assert cli(["export", "python", "-o", "t.json"]) == 0
    events = valid("chrome_trace", Path("t.json"))["traceEvents"]
    batches = [event for event in events if event.get("cat") == "batch"]
    assert [event["args"]["warmup"] for event in batches] == 2 * [True, True, False, False, True, True]
    begin, rows = min(process.start_unix_ns or 0 for process in processes), run.batches().to_pylist()
    assert [round(event["ts"] * 1000) + begin for event in batches] == [row["start_unix_ns"] for row in rows]
    slack_ns = 1_000_000_000  # two clocks were read, by two processes
    for process in processes:
        assert process.start_unix_ns is not None
        assert process.duration_s is not None
        mine = [row for row in rows if row["process"] == process.folder]
        last = mine[-1]["start_unix_ns"] + mine[-1]["duration_ns"]
        assert process.start_unix_ns - slack_ns < mine[0]["start_unix_ns"]
        assert last < process.start_unix_ns + process.duration_s * 1e9 + slack_ns


def test_what_is_wrong_is_raised_before_anything_starts(script: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gone"):
        perfharness.launch("gone.py")
    wrong: dict[str, Any] = {"num_proceses": 2}
    with pytest.raises(UsageError, match="num_proceses"):
        perfharness.launch(script, **wrong)
    program = tmp_path / "broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(LaunchError):
        perfharness.launch(program, tracer="none", telemetry=False, output_dir="out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_a_sweep_and_cold_starts_from_python(script: Path, tmp_path: Path) -> None:
    swept = perfharness.launch_series(script, "2", np_sweep=[1, 2], output_dir="sweep", telemetry=False)
    assert [row.status for row in swept.series.rows] == ["ok", "ok"]
    written = json.loads((tmp_path / "sweep" / "series.json").read_text())
    assert written["rows"] == swept.series.model_dump(mode="json")["rows"]
    assert swept.series.command[:4] == ["perfharness", "launch", "--np-sweep", "1,2"]
    started = perfharness.launch_series(
        script, "2", repeat=1, cold=True, output_dir="cold", tracer="none", telemetry=False
    )
    assert [row.folder for row in started.rows] == ["first", "cold_0", "warm_0"]
    assert (started.folder / "series.json").is_file()
