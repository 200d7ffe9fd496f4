"""A process is killed at a random time in a short launch: none hangs, no process is left, no good result is lost.

Victims in turn: launcher, helper, measured process, nsys, terminal (SIGHUP to the launcher). Each trial begins with a
good run in its output folder. A victim that is not there at the time drawn is awaited; trials go on until there are as
many hits as asked for.

    PERFHARNESS_TEST_KILLS      hits per tracer (10)
    PERFHARNESS_TEST_KILL_SEED  which signals and moments are drawn (1)
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfharness_launcher import hold
from tests.integration.launches import command, environment, tracing

KILLS = int(os.environ.get("PERFHARNESS_TEST_KILLS", "10"))
SEED = int(os.environ.get("PERFHARNESS_TEST_KILL_SEED", "1"))
TRIES = 40
"""At most so many trials until a victim was there at the moment drawn, or later."""
TAG = "PERFHARNESS_TEST_KILL"
LIMIT_S = 300.0
"""The launcher's patience, and as much again for a busy machine."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 60 * KILLS)]

SCRIPT = """
import subprocess, sys, time
from perfharness import PerfRecorder
if sys.argv[1] == "daemon":
    subprocess.Popen(["sleep", sys.argv[2]], start_new_session=True)
perf = PerfRecorder("rec")
with perf.range("pipeline"):
    for index in range(14):
        with perf.batch(index, total_items=2):
            with perf.range("work"):
                time.sleep(0.05)
perf.finalize()
"""
VICTIMS = {
    "embedded": ("launcher", "helper", "measured", "terminal"),
    "nsys": ("launcher", "helper", "measured", "terminal", "nsys"),
}


def is_kind(kind: str, line: str) -> bool:
    """Whether a command line, of which each argument ends with a zero byte, is that of such a process."""
    return {
        "launcher": "\0launch\0" in line,
        "terminal": "\0launch\0" in line,
        "helper": hold.__file__ in line and "\0profile\0" not in line,
        "measured": "work.py" in line and not (hold.__file__ in line or "\0launch\0" in line),
        "nsys": "/nsys\0profile\0" in line,
    }[kind]


def processes(tag: str) -> dict[int, str]:
    """Command lines of the living processes of a trial."""
    mark, found = f"{TAG}={tag}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if line and (mark in (folder / "environ").read_bytes().split(b"\0") or f"60{tag}".encode() in line):
                found[int(folder.name)] = line.decode(errors="replace")
    return found


def comes_true(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait for it, at most so long."""
    limit = time.monotonic() + limit_s
    while not (is_true := condition()) and time.monotonic() < limit:
        time.sleep(0.02)
    return is_true


def is_good(out: Path) -> bool:
    """Whether there are numbers in the results."""
    try:
        result = json.loads((out / "benchmark_mean.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(result.get("mean_data")) and bool(result.get("mean_all_batches"))


def strike(kind: str, tag: str, number: signal.Signals) -> bool:
    """Whether there was such a process, which has the signal now."""
    for pid, line in processes(tag).items():
        if is_kind(kind, line):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                return True
    return False


@dataclass(frozen=True)
class Campaign:
    folder: Path
    tracer: str

    def start(self, place: Path, tag: str, *arguments: str) -> subprocess.Popen[bytes]:
        (place / "work.py").write_text(SCRIPT)
        tracer, sites = tracing(self.tracer)
        options = ("--telemetry", "-np", 2, "-w", 1, *tracer, "--barrier-timeout", 20, "-o", place / "out")
        words = command(*options, place / "work.py", *arguments)
        with (place / "said").open("wb") as said:
            return subprocess.Popen(words, env=environment(*sites, **{TAG: tag}), stdout=said, stderr=said)

    def run_well(self) -> float:
        """A good run in `good/out`; how many seconds a launch takes here and now."""
        place = self.folder / "good"
        place.mkdir()
        begin = time.monotonic()
        assert self.start(place, "good", "plain").wait(LIMIT_S) == 0
        assert is_good(place / "out")
        return time.monotonic() - begin

    def trial(self, number: int, lasts_s: float) -> tuple[bool, list[str]]:
        """Whether somebody was hit, and what went wrong."""
        chance = random.Random(SEED * 100_003 + number)
        kind = VICTIMS[self.tracer][number // TRIES % len(VICTIMS[self.tracer])]
        number_of_signal = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        if kind == "terminal":
            number_of_signal = signal.SIGHUP
        tag, place = f"{SEED}.{os.getpid()}{number:05d}", self.folder / str(number)
        shutil.copytree(self.folder / "good", place)
        launcher = self.start(place, tag, chance.choice(["plain", "plain", "plain", "daemon"]), f"60{tag}")
        comes_true(lambda: launcher.poll() is not None, chance.uniform(0.2, lasts_s))
        hit = False

        def is_over() -> bool:
            nonlocal hit
            hit = launcher.poll() is None and strike(kind, tag, number_of_signal)
            return hit or launcher.poll() is not None

        comes_true(is_over, LIMIT_S)
        wrong = self.came_to_its_end(launcher, tag)
        if "bug in perfharness" in (place / "said").read_text():
            wrong.append((place / "said").read_text()[-400:])
        if not is_good(place / "out"):
            wrong.append(f"lost: {sorted(path.name for path in (place / 'out').iterdir())}")
        wrong += self.not_finished(place / "out")
        if not wrong:
            shutil.rmtree(place)
        told = f"trial {number}: {kind}, {number_of_signal.name}, exit code {launcher.returncode}"
        return hit, [f"{told}: {one}" for one in wrong]

    def came_to_its_end(self, launcher: subprocess.Popen[bytes], tag: str) -> list[str]:
        wrong = []
        if not comes_true(lambda: launcher.poll() is not None, LIMIT_S):
            wrong.append("hang")
            launcher.kill()
        launcher.wait()
        if not comes_true(lambda: not processes(tag), LIMIT_S):
            left = processes(tag)
            wrong.append(f"left: {[line.replace(chr(0), ' ')[:160] for line in left.values()]}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return wrong

    def not_finished(self, out: Path) -> list[str]:
        """What `analyze` does not finish: of the run, and of a run that was cut off."""
        wrong = []
        for place in (out, *sorted(out.glob(".perfharness-run-*")), *sorted(out.glob("run-*"))):
            words = [sys.executable, "-m", "perfharness", "analyze", str(place)]
            done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
            if done.returncode not in (0, 1, 3) or "bug in perfharness" in done.stderr:
                wrong.append(f"partial: analyze {place} {done.returncode} {(done.stderr or done.stdout)[-300:]}")
        left = [path.name for path in out.glob(".perfharness-*") if not path.name.startswith(".perfharness-run-")]
        return [*wrong, f"partial: {left}"] if left else wrong


@pytest.mark.parametrize("tracer", ["embedded", pytest.param("nsys", marks=pytest.mark.nsys)])
def test_whoever_is_killed(tmp_path: Path, tracer: str) -> None:
    campaign = Campaign(tmp_path, tracer)
    lasts_s = 1.2 * campaign.run_well()
    wrong: list[str] = []
    for place in range(KILLS):
        hit = False
        for number in range(TRIES * place, TRIES * (place + 1)):
            hit, problems = campaign.trial(number, lasts_s)
            wrong += problems
            if hit:
                break
        assert hit, f"nobody was hit in {TRIES} trials"
    assert wrong == []
