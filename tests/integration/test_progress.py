"""Progress of long work: a bar with the time left on a terminal, lines in a log, nothing with -q."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.tiny_models import onnx_model
from tests.integration.launches import PATIENCE_S, environment

ESCAPE, BAR = "\x1b[", "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * 10
SCRIPT = """
import time
from perfharness import PerfRecorder
perf = PerfRecorder("app")
for index, _ in perf.batches(range(40)):
    with perf.range("stage"):
        time.sleep(0.04)
perf.finalize()
"""
LAUNCH = ("launch", "--tracer", "embedded", "--no-telemetry", "--no-history")
COMMANDS = {
    "launch": (*LAUNCH, "-np", 2, "-o", "run", "script.py"),
    "repeat": (*LAUNCH, "--repeat", 2, "-o", "repeats", "script.py"),
    "sweep": (*LAUNCH, "--np-sweep", "1,2", "-o", "sweep", "script.py"),
    "analyze": ("analyze", "run"),
    "report": ("report", "run", "-o", "report.html"),
    "stress": (
        *("stress", "app.py:answer", "--rate", 50, "--duration", "12s"),
        *("--tracer", "embedded", "--no-history", "-o", "load"),
    ),
    "bench": (
        *("bench", "--model", "tiny.onnx", "--backend", "onnxruntime", "--batch-size", "1,2"),
        *("--duration", 1, "--no-history", "-o", "suite"),
    ),
}
TARGET = """
import time

def answer(request=None):
    time.sleep(0.002)"""
STEPS = {
    "launch": (r"proc_1_gpu_0: running", r"reading the traces"),
    "repeat": (r"launch_1 \(2 of 2\), \d+ s left", r"reading the traces"),
    "sweep": (r"np_2 \(2 of 2\), \d+ s left",),
    "analyze": (r"reading the traces", r"reading proc_1_gpu_0 \(2 of 2\)"),
    "report": (r"reading proc_1_gpu_0 \(2 of 2\)", r"drawing report\.html"),
    "stress": (r"load: 50 asked, \d+ answered per second.* \d+ s left",),
    "bench": (r"\[1/2\] onnxruntime.*\(\d+ s left\)", r"\[2/2\] onnxruntime"),
}
SLOW = ("repeat", "sweep", "report", "stress", "bench")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script and a run of it, by two processes."""
    path = tmp_path_factory.mktemp("progress")
    (path / "script.py").write_text(SCRIPT)
    (path / "app.py").write_text(TARGET)
    (path / "tiny.onnx").write_bytes(onnx_model("fp32"))
    in_a_log(path, *COMMANDS["launch"])
    return path


def started(folder: Path, *words: object, errors: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "perfharness", *map(str, words)]
    environ = environment(TERM="xterm-256color", COLUMNS="120", PERFHARNESS_HISTORY="off")
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=errors)


def on_a_terminal(folder: Path, *words: object) -> str:
    """What a command prints to a terminal."""
    terminal, end = pty.openpty()
    with started(folder, *words, errors=end) as process:
        os.close(end)
        printed = b""
        try:
            while received := os.read(terminal, 1 << 16):
                printed += received
        except OSError:  # the last process that had the terminal has ended
            pass
        assert process.wait(PATIENCE_S) in (0, 3)
    os.close(terminal)
    return printed.decode(errors="replace")


def in_a_log(folder: Path, *words: object) -> str:
    with (folder / "log").open("w+b") as log:
        with started(folder, *words, errors=log.fileno()) as process:
            assert process.wait(PATIENCE_S) in (0, 3)
        log.seek(0)
        return log.read().decode()


@pytest.mark.parametrize(
    "name",
    ["launch", "analyze", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_a_bar_on_a_terminal_and_lines_in_a_log(name: str, folder: Path) -> None:
    shown = on_a_terminal(folder, *COMMANDS[name])
    assert ESCAPE in shown
    assert BAR in shown
    if name not in ("analyze", "report"):
        assert re.search(r"\d+ s left", shown)
    shutil.rmtree(folder / "suite", ignore_errors=True)  # bench writes to a new folder only
    log = in_a_log(folder, *COMMANDS[name])
    assert ESCAPE not in log
    assert BAR not in log
    for step in STEPS[name]:
        assert re.search(step, log), log


@pytest.mark.parametrize("name", ["launch", "analyze"])
def test_quiet_is_silent(name: str, folder: Path) -> None:
    verb, *words = COMMANDS[name]
    assert in_a_log(folder, verb, "-q", *words) == ""
    assert on_a_terminal(folder, verb, "-q", *words) == ""
