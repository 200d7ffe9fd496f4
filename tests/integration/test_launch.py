"""`perfharness launch` with real child processes and no tracer: starting, ending, failing, and what is left on disk.

What a tracer adds is tested in test_launch_nsys.py and test_launch_embedded.py.
"""

from __future__ import annotations

import json
import os
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

SCRIPT = """
import json, os, signal, subprocess, sys, time
index = int(os.environ["PERFHARNESS_PROCESS_INDEX"])
mode = sys.argv[1] if len(sys.argv) > 1 else ""
print("hello from", index)
if not mode:
    print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1])
if mode == "tell":
    print(json.dumps({"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ), "time": time.time()}))
if index == 1:
    if mode == "exit":
        print("no such camera", file=sys.stderr)
        sys.exit(3)
    if mode == "raise":
        raise ValueError("bad frame 7")
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "kill-helper":
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
if mode == "daemon":
    subprocess.Popen(["env", "-i", "sleep", "7305"], start_new_session=True)
"""


def launch(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run_to_the_end(arguments, environment(), cwd)


def launching(*arguments: object) -> AbstractContextManager[subprocess.Popen[str]]:
    return launches.launching(arguments, environment())


def ended(out: Path) -> list[tuple[str, int | None, str | None]]:
    return [(record["ended"], record["exit_code"], record["signal"]) for record in manifest(out)["processes"]]


def test_processes_run_at_once_in_folders_of_their_own_and_are_mirrored_on_request(
    script: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = launch("--telemetry", "-np", 3, "-w", 1, "--show-output", "--tracer", "none", "-o", out, script)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "benchmark_mean.json", "manifest.json", *(f"proc_{index}_gpu_0" for index in range(3)), "telemetry.parquet",
    ]  # fmt: skip
    assert ended(out) == [("ok", 0, None)] * 3
    for index, record in enumerate(manifest(out)["processes"]):
        fds = (out / record["folder"] / "stdout.log").read_text().splitlines()
        assert fds == [f"hello from {index}", "[0, 1, 2]"], "no descriptor of the launcher reaches the script"
        assert f"proc_{index}_gpu_0 | hello from {index}" in done.stderr.splitlines()
        assert record["command"] == [sys.executable, str(script)]
        assert record["max_rss_bytes"] > 1_000_000
    records = manifest(out)["processes"]
    first_end = min(record["start_unix_ns"] + record["duration_s"] * 1e9 for record in records)
    assert max(record["start_unix_ns"] for record in records) < first_end
    assert processes_naming(str(tmp_path)) == []


def test_the_script_gets_its_arguments_its_folder_and_the_users_current_folder(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["tell", "-np", "7", "--foo_bar", "--", "-h"]
    done = launch(
        "--num_processes", 1, "--output_dir=out", "-ll", "debug", "--tracer=none", script.name, *arguments, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((out / "proc_0_gpu_0" / "stdout.log").read_text().splitlines()[1])
    assert told["argv"] == ["script.py", *arguments]
    assert told["cwd"] == str(tmp_path)
    assert told["env"]["PERFHARNESS_LOG_LEVEL"] == "debug"
    assert told["env"]["PERFHARNESS_TRACER"] == "none"
    assert Path(told["env"]["PERFHARNESS_OUTPUT_DIR"]).name == "proc_0_gpu_0"


@pytest.mark.parametrize(
    ("mode", "how", "end", "words"),
    [
        ("exit", "ended with exit code 3", ("failed", 3, None), "no such camera"),
        ("raise", "ended with exit code 1", ("failed", 1, None), "ValueError: bad frame 7"),
        ("kill", "was killed by SIGKILL", ("failed", None, "SIGKILL"), ""),  # it takes along what it had not written
        ("kill-helper", "was killed together with the helper", ("failed", None, None), ""),
    ],
)
def test_a_process_that_fails_is_named_and_the_other_is_kept(
    script: Path, tmp_path: Path, mode: str, how: str, end: tuple[str, int | None, str | None], words: str
) -> None:
    out = tmp_path / "out"
    done = launch("-np", 2, "--tracer", "none", "-o", out, script, mode)
    assert done.returncode == 1
    assert ended(out) == [("ok", 0, None), end]
    (finding,) = [finding for finding in manifest(out)["findings"] if finding["code"] == "process-failed"]
    assert finding["process"] == "proc_1_gpu_0"
    assert how in finding["message"]
    assert f"{script} {mode}" in finding["message"]
    assert words in finding["message"]
    assert how in done.stdout + done.stderr
    assert processes_naming(str(tmp_path)) == []


def test_a_timeout_ends_what_hangs(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launch("-np", 2, "--tracer", "none", "--timeout", 1, "-o", out, script, "hang")
    assert done.returncode == 1
    assert ended(out) == [("timeout", None, "SIGINT")] * 2
    assert "was ended after --timeout 1 seconds" in done.stdout + done.stderr
    assert processes_naming(str(tmp_path)) == []


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_to_the_launcher_ends_the_whole_family(script: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    with launching("-np", 2, "--tracer", "none", "-o", out, script, "family") as launcher:
        wait_for(lambda: hanging(out, 2))
        launcher.send_signal(number)
        assert launcher.wait(PATIENCE_S) == 1
    assert [end for end, _, _ in ended(out)] == ["interrupted"] * 2
    assert processes_naming(str(tmp_path)) == []


def test_asked_twice_the_launcher_kills_what_ignores_signals(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching("--tracer", "none", "-o", out, script, "stubborn") as launcher:
        assert launcher.stdout is not None
        wait_for(lambda: hanging(out, 1))
        launcher.send_signal(signal.SIGINT)
        for line in launcher.stdout:
            if "once more" in line:
                break
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(PATIENCE_S) == 1
    assert ended(out) == [("interrupted", None, "SIGKILL")]


@pytest.mark.slow
def test_helpers_killed_together_with_the_launcher_leave_no_process(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching("-np", 2, "--tracer", "none", "-o", out, script, "hang") as launcher:
        wait_for(lambda: hanging(out, 2))
        helpers = [one for one in psutil.Process(launcher.pid).children() if child.__file__ in one.cmdline()]
        assert len(helpers) == 2
        launcher.kill()
        for helper in helpers:
            helper.kill()
    wait_for(lambda: processes_naming(str(tmp_path)) == [])


def test_even_a_killed_launcher_leaves_no_process(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching("-np", 2, "--tracer", "none", "-o", out, script, "hang") as launcher:
        wait_for(lambda: hanging(out, 2) and noted(out, 2))
        launcher.kill()
    wait_for(lambda: processes_naming(str(tmp_path)) == [])
    (hidden,) = out.glob(".perfharness-run-*")
    begun = manifest(hidden)
    assert begun["complete"] is False
    assert [record["ended"] for record in begun["processes"]] == ["cut_off"] * 2
    assert all(record["pid"] and record["start_unix_ns"] for record in begun["processes"])
    done = launch("--tracer", "none", "-o", out, script)
    assert done.returncode == 0
    assert [finding["code"] for finding in manifest(out)["findings"]] == ["unfinished-run"]
    assert str(hidden) in done.stdout + done.stderr


def test_a_daemon_left_behind_is_ended_and_told(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert launch("--tracer", "none", "-o", out, script, "daemon").returncode == 0
    (finding,) = manifest(out)["findings"]
    assert finding["code"] == "leftover-processes"
    assert "sleep 7305" in finding["message"]
    assert processes_naming("sleep 7305") == []


def test_an_old_run_is_replaced_as_a_whole_and_foreign_files_stay(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert launch("-np", 3, "--tracer", "none", "-o", out, script).returncode == 0
    (out / "notes.txt").write_text("mine")
    (out / "proc_0_gpu_0" / "extra").write_text("of the old run")
    (out / "telemetry.parquet").write_text("of the old run")
    assert launch("-np", 1, "--tracer", "none", "-o", out, script).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "benchmark_mean.json", "manifest.json", "notes.txt", "previous", "proc_0_gpu_0",
    ]  # fmt: skip
    assert not (out / "proc_0_gpu_0" / "extra").exists()
    assert (out / "previous" / "proc_0_gpu_0" / "extra").exists()


def test_where_nothing_was_started_the_old_run_stays(tmp_path: Path, script: Path) -> None:
    out = tmp_path / "out"
    assert launch("--tracer", "none", "-o", out, script).returncode == 0
    before = (out / "manifest.json").read_text()
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    done = launch("--tracer", "none", "-o", out, program)
    assert done.returncode == 1
    assert "no process was started" in done.stderr
    assert "No such file or directory" in done.stderr
    assert (out / "manifest.json").read_text() == before
    assert sorted(path.name for path in out.iterdir()) == [
        "benchmark_mean.json", "manifest.json", "proc_0_gpu_0",
    ]  # fmt: skip


def test_two_launches_do_not_write_to_one_folder(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching("--tracer", "none", "-o", out, script, "hang") as first:
        wait_for(lambda: hanging(out, 1))
        second = launch("--tracer", "none", "-o", out, script)
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 1
    assert second.returncode == 1
    assert f"another launch is writing to {out}" in second.stderr


def test_a_program_runs_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = launch("--tracer", "none", "-o", out, "echo", "-n", "a b", "--", "c")
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
        done = launch("--tracer", "embedded", "-w", 0, "-o", out, script, *SECRETS)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    log = out / "proc_0_gpu_0" / "stdout.log"
    assert log.read_text() == "0o27\n"
    assert log.stat().st_mode & 0o777 == 0o640
    assert not [path for path in (out, *out.rglob("*")) if path.stat().st_mode & 0o027]
    assert (out / "proc_0_gpu_0" / "recorder.json").exists()
    assert not [path for path in out.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    assert "SECRET" not in done.stdout + done.stderr
