"""`perfharness launch` with real child processes and no tracer: starting, ending, failing, and what is left on disk.

What a tracer adds is tested in test_launch_nsys.py and test_launch_embedded.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from perfharness_launcher.processes import child
from tests.integration import launches
from tests.integration.launches import (
    PATIENCE_S,
    environment,
    hanging,
    manifest,
    noted,
    processes_naming,
    run_to_the_end,
    wait_for,
)

DAEMON = f"sleep 7305.{os.getpid()}"
"""Of this test process alone: others may run on the machine."""

SCRIPT = f"""
import json, os, signal, subprocess, sys, time
index = int(os.environ["PERFHARNESS_PROCESS_INDEX"])
mode = sys.argv[1] if len(sys.argv) > 1 else ""
print("hello from", index)
if not mode:
    print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1])
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


def launch(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_to_the_end((*PLAIN, *arguments), environment(), cwd)


def launching(*arguments: object) -> AbstractContextManager[subprocess.Popen[str]]:
    return launches.launching((*PLAIN, *arguments), environment())


def ended(out: Path) -> list[tuple[str, int | None, str | None]]:
    return [(record["ended"], record["exit_code"], record["signal"]) for record in manifest(out)["processes"]]


ARGUMENTS = ("tell", "-np", "7", "--foo_bar", "--", "-h")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a launch of three processes that wait for one another, and what it printed; one leaves a daemon."""
    folder = tmp_path_factory.mktemp("three")
    (folder / "script.py").write_text(SCRIPT)
    options = ("--telemetry", "--num_processes", 3, "-w", 1, "-v", "-ll", "debug", "--output_dir=out")
    done = launch(*options, "script.py", *ARGUMENTS, cwd=folder)
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
    assert ended(out) == [("ok", 0, None)] * 3
    records = manifest(out)["processes"]
    for index, record in enumerate(records):
        hello, descriptors, told = (out / record["folder"] / "stdout.log").read_text().splitlines()
        assert (hello, descriptors) == (f"hello from {index}", "[0, 1, 2]"), "no descriptor of the launcher's"
        assert f"proc_{index}_gpu_0 | hello from {index}" in done.stderr.splitlines()
        assert record["command"] == [sys.executable, "script.py", *ARGUMENTS]
        assert record["max_rss_bytes"] > 1_000_000
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
    assert launch("-o", out, program).returncode == 1
    assert ({path.name for path in out.iterdir()}, (out / "manifest.json").read_text()) == before


def test_each_process_that_fails_is_named_with_its_end_and_the_other_is_kept(script: Path, tmp_path: Path) -> None:
    """By exit code, by exception, killed (which takes along what was not written), and killed with its helper."""
    out = tmp_path / "out"
    assert launch("-np", 5, "-o", out, script, "fail").returncode == 1
    ends = [("ok", 0, None), ("failed", 3, None), ("failed", 1, None), ("failed", None, "SIGKILL")]
    assert ended(out) == [*ends, ("failed", None, None)]
    found = {one["process"]: one["message"] for one in manifest(out)["findings"] if one["code"] == "process-failed"}
    assert list(found) == [f"proc_{index}_gpu_0" for index in range(1, 5)]
    words = ("no such camera", "ValueError: bad frame 7", "SIGKILL", f"{script} fail")
    assert [word for word, message in zip(words, found.values(), strict=True) if word not in message] == []
    assert processes_naming(str(tmp_path)) == []


def test_a_timeout_ends_what_hangs(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert launch("-np", 2, "--timeout", 1, "-o", out, script, "hang").returncode == 1
    assert ended(out) == [("timeout", None, "SIGINT")] * 2
    assert processes_naming(str(tmp_path)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_to_the_launcher_ends_the_whole_family(script: Path, tmp_path: Path, number: signal.Signals) -> None:
    """And while it runs, no other launch writes to its folder."""
    out = tmp_path / "out"
    with launching("-np", 2, "-o", out, script, "family") as launcher:
        wait_for(lambda: hanging(out, 2))
        second = launch("-o", out, script)
        launcher.send_signal(number)
        assert launcher.wait(PATIENCE_S) == 1
    assert (second.returncode, str(out) in second.stderr) == (1, True)
    assert [end for end, _, _ in ended(out)] == ["interrupted"] * 2
    assert processes_naming(str(tmp_path)) == []


@pytest.mark.slow
def test_asked_twice_the_launcher_kills_what_ignores_signals(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching("-o", out, script, "stubborn") as launcher:
        assert launcher.stdout is not None
        wait_for(lambda: hanging(out, 1))
        launcher.send_signal(signal.SIGINT)
        for line in launcher.stdout:
            if "again" in line:
                break
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(PATIENCE_S) == 1
    assert ended(out) == [("interrupted", None, "SIGKILL")]


@pytest.mark.slow
def test_helpers_killed_together_with_the_launcher_leave_no_process(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching("-np", 2, "-o", out, script, "hang") as launcher:
        wait_for(lambda: hanging(out, 2))
        helpers = [one for one in psutil.Process(launcher.pid).children() if child.__file__ in one.cmdline()]
        assert len(helpers) == 2
        launcher.kill()
        for helper in helpers:
            helper.kill()
    wait_for(lambda: processes_naming(str(tmp_path)) == [])


def test_even_a_killed_launcher_leaves_no_process(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching("-np", 2, "-o", out, script, "hang") as launcher:
        wait_for(lambda: hanging(out, 2) and noted(out, 2))
        launcher.kill()
    wait_for(lambda: processes_naming(str(tmp_path)) == [])
    (hidden,) = out.glob(".perfharness-run-*")
    begun = manifest(hidden)
    assert begun["complete"] is False
    assert [record["ended"] for record in begun["processes"]] == ["cut_off"] * 2
    assert all(record["pid"] and record["start_unix_ns"] for record in begun["processes"])
    assert launch("-o", out, script).returncode == 0
    assert [finding["code"] for finding in manifest(out)["findings"]] == ["unfinished-run"]


def test_a_program_runs_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launch("-o", out, "echo", "-n", "a b", "--", "c")
    assert done.returncode == 0, done.stderr
    assert (out / "proc_0_gpu_0" / "stdout.log").read_text() == "a b -- c"


SECRETS = [
    *("--api-key", "SECRET1", "--url", "http://u:SECRET2@h/?token=SECRET3", "--db-dsn", "SECRET4"),
    *("--bearer", "SECRET5", "--header", "Authorization: Bearer SECRET6"),
]


def test_the_users_umask_holds_and_no_file_has_a_secret_in_clear(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(
        "import argparse, os\n"
        "from perfharness import PerfRecorder\n"
        "umask = os.umask(0)\n"
        "os.umask(umask)\n"
        "print(oct(umask))\n"
        "parser = argparse.ArgumentParser()\n"
        "for name in ('--api-key', '--url', '--db-dsn', '--bearer', '--header'):\n"
        "    parser.add_argument(name)\n"
        "perf = PerfRecorder('toy', parser.parse_args())\n"
        "with perf.batch(0, total_items=1):\n"
        "    pass\n"
        "perf.finalize()\n"
    )
    before = os.umask(0o027)
    try:
        done = run_to_the_end(
            ("--tracer", "embedded", "-w", 0, "-o", out, script, *SECRETS), environment(HUB_TOKEN="SECRET7")
        )
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    log = out / "proc_0_gpu_0" / "stdout.log"
    assert log.read_text() == "0o27\n"
    assert log.stat().st_mode & 0o777 == 0o640
    assert not [path for path in (out, *out.rglob("*")) if path.stat().st_mode & 0o027]
    assert json.loads((out / "proc_0_gpu_0" / "recorder.json").read_text())["start_barrier"] is None
    assert manifest(out)["start_barrier"] is None, "one process alone waits for nobody"
    assert not [path for path in out.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    assert "SECRET" not in done.stdout + done.stderr
