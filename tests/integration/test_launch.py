"""`perfharness launch` with real processes: starting, ending, failing, and what is left on disk.

Faults of tracers and helpers are in test_supervise.py, nsys in test_launch_nsys.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfharness.cli.main import run
from perfharness.trace import open_trace
from tests.integration.launches import (
    PATIENCE_S,
    codes,
    environment,
    hanging,
    launching,
    manifest,
    noted,
    processes_naming,
    read,
    run_to_the_end,
    wait_for,
)

DAEMON = f"sleep 7305.{os.getpid()}"
"""Of this test process alone: others may run on the machine."""

SCRIPT = f"""
import json, os, signal, subprocess, sys, time
index = int(os.environ["PERFHARNESS_PROCESS_INDEX"])
mode = sys.argv[1]
print("hello from", index)
if mode == "tell":
    print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1])
    print(json.dumps({{"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ)}}), flush=True)
    if index == 0:
        subprocess.Popen(["env", "-i", *{DAEMON!r}.split()], start_new_session=True)
    me = os.path.join(os.path.dirname(__file__), "here_")
    open(me + str(index), "w").close()
    while not all(os.path.exists(me + str(one)) for one in range(3)):
        time.sleep(0.01)
if mode == "fail":
    import nvtx
    with nvtx.annotate("batch", domain="pipeline"):
        time.sleep(0.02)
    if index == 1:
        print("no such camera", file=sys.stderr)
        sys.exit(3)
    if index == 2:
        raise ValueError("bad frame 7")
    if index == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if index == 4:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
if mode == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "family":
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
if mode in ("hang", "stubborn", "family"):
    print("hanging", flush=True)
    time.sleep(600)
"""
PLAIN = ("--tracer", "none")
CUT_IN_FIRST_BATCH = """
import os, signal
from perfharness import PerfRecorder
perf = PerfRecorder("cut")
with perf.range("pipeline"), perf.batch(0, total_items=1):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """The output folder beside `script.py`; in the end no process is left that names it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    yield tmp_path / "out"
    wait_for(lambda: processes_naming(str(tmp_path)) == [])


def launch(out: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_to_the_end(("-o", out, *arguments), environment())


def ends(out: Path) -> list[tuple[str, int | None, str | None]]:
    return [(record["ended"], record["exit_code"], record["signal"]) for record in manifest(out)["processes"]]


ARGUMENTS = ("tell", "-np", "7", "--foo_bar", "--", "-h")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A launch of three processes that wait for one another, of which one leaves a daemon."""
    folder = tmp_path_factory.mktemp("three")
    (folder / "script.py").write_text(SCRIPT)
    options = (*PLAIN, "--telemetry", "--num_processes", 3, "-w", 1, "-v", "-ll", "debug", "--output_dir=out")
    done = run_to_the_end((*options, "script.py", *ARGUMENTS), environment(), folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_processes_run_at_once_in_folders_of_their_own_and_are_mirrored_on_request(
    three: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = three
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "benchmark_mean.json", "manifest.json", *(f"proc_{index}_gpu_0" for index in range(3)), "telemetry.parquet",
    ]  # fmt: skip
    assert ends(out) == [("ok", 0, None)] * 3
    records = manifest(out)["processes"]
    for index, record in enumerate(records):
        hello, descriptors, told = (out / record["folder"] / "stdout.log").read_text().splitlines()
        assert (hello, descriptors) == (f"hello from {index}", "[0, 1, 2]"), "no descriptor of the launcher's"
        assert f"proc_{index}_gpu_0 | hello from {index}" in done.stderr.splitlines()
        assert record["command"] == [sys.executable, "script.py", *ARGUMENTS]
        assert record["max_rss_bytes"] > 1_000_000
        assert record["placement"]["bound"] is False
        seen = json.loads(told)
        assert (seen["argv"], seen["cwd"]) == (["script.py", *ARGUMENTS], str(folder))
        assert (seen["env"]["PERFHARNESS_LOG_LEVEL"], seen["env"]["PERFHARNESS_TRACER"]) == ("debug", "none")
        assert Path(seen["env"]["PERFHARNESS_OUTPUT_DIR"]).name == record["folder"]
    first_end = min(record["start_unix_ns"] + record["duration_s"] * 1e9 for record in records)
    assert max(record["start_unix_ns"] for record in records) < first_end


def test_a_daemon_left_behind_is_ended_and_reported(three: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = three
    found = {finding["code"]: finding["message"] for finding in manifest(folder / "out")["findings"]}
    assert DAEMON in found["leftover-processes"]
    assert processes_naming(DAEMON) == []
    assert processes_naming(str(folder)) == []


def test_where_nothing_was_started_the_old_run_stays(
    three: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    out, program = tmp_path / "out", tmp_path / "program"
    shutil.copytree(three[0] / "out", out)
    before = {path.name for path in out.iterdir()}, (out / "manifest.json").read_text()
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    assert launch(out, *PLAIN, program).returncode == 1
    assert ({path.name for path in out.iterdir()}, (out / "manifest.json").read_text()) == before


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of five processes, four of which fail."""
    folder = tmp_path_factory.mktemp("failed")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "perfharness.toml").write_text('[launch]\nbatch-pattern = "batch"\n')
    done = launch(folder / "out", "--tracer", "embedded", "-w", 0, "-np", 5, folder / "script.py", "fail")
    assert done.returncode == 1, done.stderr
    return folder / "out"


def test_each_process_that_fails_is_named_with_its_end_and_keeps_what_it_recorded(failed: Path) -> None:
    """By exit code, by exception, killed, and killed with its helper."""
    kinds = [("ok", 0, None), ("failed", 3, None), ("failed", 1, None), ("failed", None, "SIGKILL")]
    assert ends(failed) == [*kinds, ("failed", None, None)]
    found = {one["process"]: one["message"] for one in manifest(failed)["findings"] if one["code"] == "process-failed"}
    assert list(found) == [f"proc_{index}_gpu_0" for index in range(1, 5)]
    words = ("no such camera", "ValueError: bad frame 7", "SIGKILL", "script.py fail")
    assert [word for word, message in zip(words, found.values(), strict=True) if word not in message] == []
    for index in range(4):
        trace = open_trace(failed / f"proc_{index}_gpu_0" / "trace.sqlite")
        assert [trace.names[code] for code in trace.ranges.name] == ["batch"]
        assert (failed / f"proc_{index}_gpu_0" / "benchmark.json").exists()
    assert read(failed, "benchmark_mean.json")["throughput"]["items_per_second"] is None
    assert processes_naming(str(failed.parent)) == []


@pytest.mark.parametrize("text", ["import sys; sys.exit(7)", CUT_IN_FIRST_BATCH], ids=["no range", "no whole batch"])
def test_a_run_without_a_number_does_not_replace_one_with_numbers(
    text: str, failed: Path, out: Path, tmp_path: Path
) -> None:
    """And what lies beside is a whole run folder."""
    shutil.copytree(failed, out)
    before = {path: path.read_bytes() for path in out.rglob("*.json")}
    fails = tmp_path / "fails.py"
    fails.write_text(text)
    assert launch(out, "--tracer", "embedded", fails).returncode == 1
    (aside,) = out.glob("run-*")
    assert manifest(aside)["processes"][0]["ended"] == "failed"
    assert run(["analyze", str(aside)]) == 3
    assert {path: path.read_bytes() for path in before} == before


def test_a_timeout_ends_what_hangs(out: Path) -> None:
    assert launch(out, *PLAIN, "-np", 2, "--timeout", 1, out.with_name("script.py"), "hang").returncode == 1
    assert ends(out) == [("timeout", None, "SIGINT")] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_to_the_launcher_ends_the_whole_family(out: Path, number: signal.Signals) -> None:
    arguments = (*PLAIN, "-np", 2, "-o", out, out.with_name("script.py"), "family")
    with launching(arguments, environment()) as launcher:
        wait_for(lambda: hanging(out, 2))
        launcher.send_signal(number)
        assert launcher.wait(PATIENCE_S) == 1
    assert [end for end, _, _ in ends(out)] == ["interrupted"] * 2


@pytest.mark.slow
def test_asked_twice_the_launcher_kills_what_ignores_signals(out: Path) -> None:
    with launching((*PLAIN, "-o", out, out.with_name("script.py"), "stubborn"), environment()) as launcher:
        assert launcher.stdout is not None
        wait_for(lambda: hanging(out, 1))
        launcher.send_signal(signal.SIGINT)
        for line in launcher.stdout:
            if "again" in line:
                break
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(PATIENCE_S) == 1
    assert ends(out) == [("interrupted", None, "SIGKILL")]


def test_even_a_killed_launcher_leaves_no_process(out: Path, tmp_path: Path) -> None:
    script = out.with_name("script.py")
    with launching((*PLAIN, "-np", 2, "-o", out, script, "hang"), environment()) as launcher:
        wait_for(lambda: hanging(out, 2) and noted(out, 2))
        launcher.kill()
    wait_for(lambda: processes_naming(str(tmp_path)) == [])
    (hidden,) = out.glob(".perfharness-run-*")
    begun = manifest(hidden)
    assert begun["complete"] is False
    assert [record["ended"] for record in begun["processes"]] == ["cut_off"] * 2
    assert all(record["pid"] and record["start_unix_ns"] for record in begun["processes"])
    assert launch(out, *PLAIN, script, "no mode").returncode == 0
    assert "run-cut-off" in codes(out)


SECRETS = [
    *("--api-key", "SECRET1", "--url", "http://u:SECRET2@h/?token=SECRET3", "--db-dsn", "SECRET4"),
    *("--bearer", "SECRET5", "--header", "Authorization: Bearer SECRET6"),
]
WITH_SECRETS = """
import argparse, os, time
from perfharness import PerfRecorder
umask = os.umask(0)
os.umask(umask)
print(oct(umask))
parser = argparse.ArgumentParser()
for name in ("--api-key", "--url", "--db-dsn", "--bearer", "--header"):
    parser.add_argument(name)
perf = PerfRecorder("toy", parser.parse_args())
with perf.range("work"):
    time.sleep(0.02)
perf.finalize()
"""


def test_the_users_umask_holds_and_no_file_has_a_secret_in_clear(out: Path) -> None:
    """And a script without batches has a table of its ranges."""
    script = out.with_name("script.py")
    script.write_text(WITH_SECRETS)
    before = os.umask(0o027)
    try:
        options = ("--tracer", "embedded", "-w", 0, "-o", out)
        done = run_to_the_end((*options, script, *SECRETS), environment(HUB_TOKEN="SECRET7"))
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    (row,) = [cells for line in done.stdout.splitlines() if (cells := line.split())[:1] == ["work"]]
    assert (row[1], float(row[2]) >= 20) == ("1", True)
    log = out / "proc_0_gpu_0" / "stdout.log"
    assert log.read_text() == "0o27\n"
    assert log.stat().st_mode & 0o777 == 0o640
    assert not [path for path in (out, *out.rglob("*")) if path.stat().st_mode & 0o027]
    assert manifest(out)["start_barrier"] is None, "one process alone waits for nobody"
    assert not [path for path in out.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    assert "SECRET" not in done.stdout + done.stderr


REMOVED = """
import os, shutil
from perfharness import PerfRecorder
perf = PerfRecorder("app")
for number, _ in perf.batches(range(4), items=1):
    if number == 1:
        shutil.rmtree(os.environ["PERFHARNESS_OUTPUT_DIR"])
perf.finalize()
"""


def test_a_script_that_removes_its_output_folder(out: Path) -> None:
    script = out.with_name("script.py")
    script.write_text(REMOVED)
    done = launch(out, "--tracer", "embedded", "-w", "0", script)
    assert done.returncode == 1, done.stderr
    found = {finding["code"]: finding["severity"] for finding in manifest(out)["findings"]}
    assert found == {"results-not-written": "error"}
