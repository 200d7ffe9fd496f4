"""Launcher faults: a launch comes to its end and leaves no process, whoever is killed or does not answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from perfharness_launcher import hold
from tests.integration.launches import (
    PATIENCE_S,
    codes,
    environment,
    hanging,
    launching,
    manifest,
    processes_naming,
    run_to_the_end,
    wait_for,
)

NSYS = """#!/bin/sh
case "$1 $2" in
  "--version "*) echo "NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0"; exit;;
  "profile --help") echo "  --trace="; exit;;
  "export "*) exit 4;;
esac
echo start >> "$0.starts"
{fault}
while [ "${{1#--output}}" = "$1" ]; do shift; done; shift
exec "$@"
"""
"""Answers as nsys does, and starts its program."""

PROGRAM = "import os; print(os.environ.get('TMPDIR'), flush=True)"
HANGS = "import time; print('hanging', flush=True); time.sleep(600)"


def arguments_of(folder: Path, fault: str, program: str = PROGRAM, *options: object) -> tuple[object, ...]:
    """A launch of a program under an nsys with a fault."""
    nsys, script = folder / "nsys", folder / "script.py"
    nsys.write_text(NSYS.format(fault=fault))
    nsys.chmod(0o755)
    script.write_text(program)
    return ("--tracer", "nsys", "--nsys", nsys, "-w", 0, "-o", folder / "out", *options, script)


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    wait_for(lambda: processes_naming(str(tmp_path)) == [])


@pytest.mark.parametrize(
    ("fault", "starts", "ended"),
    [
        ("if [ $(wc -l < $0.starts) -le 2 ]; then setsid sleep 1000 & exit 1; fi", 3, "ok"),
        ("exit 3", 3, None),
    ],
    ids=["fails twice and leaves an agent", "always fails"],
)
def test_an_nsys_that_fails_before_the_process_began(
    tmp_path: Path, fault: str, starts: int, ended: str | None
) -> None:
    done = run_to_the_end(arguments_of(tmp_path, fault), environment())
    assert done.returncode == 1
    assert (tmp_path / "nsys.starts").read_text().split() == ["start"] * starts
    if ended is None:
        assert "exit code 3" in done.stderr
        assert not (tmp_path / "out" / "manifest.json").exists()
        return
    (record,) = manifest(tmp_path / "out")["processes"]
    assert record["ended"] == ended
    assert "tracer-restarted" in codes(tmp_path / "out")
    printed = (tmp_path / "out" / "proc_0_gpu_0" / "stdout.log").read_text().strip()
    assert printed == str(os.environ.get("TMPDIR")), "the temporary folder of nsys is not that of the process"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "victim", "number", "ended"),
    [
        ("exec sleep 1000", None, None, None),
        ("", "helper", signal.SIGSTOP, ("timeout", None)),
        ("", "helper", signal.SIGKILL, ("failed", None)),
        ("", "process", signal.SIGKILL, ("failed", "SIGKILL")),
    ],
    ids=["nsys never starts", "helper stopped", "helper killed", "process killed"],
)
def test_whoever_does_not_answer(
    tmp_path: Path, fault: str, victim: str | None, number: signal.Signals | None, ended: tuple[str, str | None] | None
) -> None:
    out = tmp_path / "out"
    with launching(arguments_of(tmp_path, fault, HANGS, "--timeout", 3), environment()) as launcher:
        if victim is None or number is None:
            wait_for(lambda: (tmp_path / "nsys.starts").exists())
            launcher.send_signal(signal.SIGINT)
        else:
            wait_for(lambda: hanging(out, 1))
            below = psutil.Process(launcher.pid).children(recursive=True)
            (helper,) = [process for process in below if hold.__file__ in process.cmdline()]
            (helper if victim == "helper" else helper.children()[0]).send_signal(number)
        assert launcher.wait(PATIENCE_S) == 1
    if ended is None:
        assert not (out / "manifest.json").exists()
    else:
        assert [(record["ended"], record["signal"]) for record in manifest(out)["processes"]] == [ended]


# ---- the helper, run as the tracer runs it ----

SECONDS = f"7301.{os.getpid()}"
SLEEP = f"sleep {SECONDS}"
"""Of this test process alone: others may run on the machine."""

DAEMON = f"""
import os, subprocess, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen(["env", "-i", "sleep", "{SECONDS}"])
        time.sleep(0.2)
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(600)
"""
"""Starts a process without an environment, twice removed, in a session of its own."""


def helper(folder: Path, program: str) -> list[str]:
    for name in ("control", "status"):
        os.mkfifo(folder / name)
    files = {name: str(folder / name) for name in ("control", "status", "stdout", "stderr")}
    settings = {**files, "umask": 0o22, "cpus": [], "environment": {}}
    return [sys.executable, "-I", "-S", hold.__file__, json.dumps(settings), sys.executable, "-c", program]


def test_without_a_launcher_the_helper_starts_nothing(tmp_path: Path) -> None:
    command = helper(tmp_path, "print('measured')")
    assert subprocess.run(command, timeout=PATIENCE_S, check=False, stderr=subprocess.DEVNULL).returncode != 0
    status = os.open(tmp_path / "status", os.O_RDWR)
    done = subprocess.run(command, timeout=PATIENCE_S, check=False)
    assert done.returncode == hold.EXIT_NOT_STARTED
    assert json.loads(os.read(status, 4096))["state"] == "not_started"
    assert not (tmp_path / "stdout").exists()


@pytest.mark.parametrize(
    ("act", "code", "ended"),
    [
        ("the launcher dies", 128 + signal.SIGINT, signal.SIGINT),
        ("the tracer ends it", 128 + signal.SIGTERM, signal.SIGTERM),
        ("the helper is killed", -signal.SIGKILL, None),
    ],
)
def test_the_end_of_a_process_that_left_a_daemon(tmp_path: Path, act: str, code: int, ended: int | None) -> None:
    command = helper(tmp_path, DAEMON)
    status, control = (os.open(tmp_path / name, os.O_RDWR) for name in ("status", "control"))
    with subprocess.Popen(command) as process:
        wait_for(lambda: (tmp_path / "stdout").exists() and "up" in (tmp_path / "stdout").read_text())
        wait_for(lambda: processes_naming(SLEEP) != [])
        started = json.loads(os.read(status, 4096))
        assert (started["state"], started["hold"]) == ("started", process.pid)
        if act == "the helper is killed":
            process.kill()
        elif act == "the tracer ends it":
            process.terminate()
            told = json.loads(os.read(status, 4096))
            os.close(control)
        else:
            os.close(control)
            told = json.loads(os.read(status, 4096))
        assert process.wait(PATIENCE_S) == code
    wait_for(lambda: not psutil.pid_exists(started["pid"]))
    if ended is not None:
        assert (told["state"], told["exit_code"], told["signal"]) == ("ended", None, ended)
        assert told["max_rss_bytes"] > 1_000_000
    for one in psutil.process_iter(["cmdline"]):
        if one.info["cmdline"] == SLEEP.split():
            assert ended is None, "nobody was left that could have known of it"
            one.kill()
