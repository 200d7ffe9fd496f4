"""A process is killed at a random time in a short launch: none hangs, no process is left, no good result is lost.

Victims in turn: launcher, terminal, helper, measured process, sampler, nsys's processes. Each trial begins with a good
run in its output folder. A hit counts only where the victim was there; trials go on until there are as many as asked
for.

    PERFHARNESS_TEST_KILLS      hits for each tracer (12)
    PERFHARNESS_TEST_KILL_SEED  which signals and moments are drawn (1)
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfharness_launcher.processes import child
from tests.integration.launches import NSYS, NVTX_SITE, TRACERS, command, environment

KILLS = int(os.environ.get("PERFHARNESS_TEST_KILLS", "12"))
SEED = int(os.environ.get("PERFHARNESS_TEST_KILL_SEED", "1"))
AT_ONCE = 2
TRIES = 40
"""At most so many trials until a victim was there at the moment drawn."""
TAG = "PERFHARNESS_TEST_KILL"
LAUNCHER_LIMIT_S = 300.0
"""--barrier-timeout, two escalations of signals, the sampler's 60 s and as much again for a busy machine."""
ORPHANS_LIMIT_S = 300.0
"""The guard's patience, and some."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 60 * KILLS)]

SCRIPT = """
import subprocess, sys, time
from perfharness import PerfRecorder
if sys.argv[1] == "daemon":
    subprocess.Popen(["env", "-i", "sleep", sys.argv[2]], start_new_session=True)
perf = PerfRecorder("rec")
with perf.range("pipeline"):
    for index in range(14):
        with perf.batch(index, total_items=2):
            with perf.range("work"):
                time.sleep(0.05)
perf.finalize()
"""
ON_A_TERMINAL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Run on a terminal of its own, whatever the tests are run under; the process id stays."""
VICTIMS = ("launcher", "terminal", "helper", "measured", "sampler")
VICTIMS_OF_NSYS = (*VICTIMS, "nsys", "nsys-launcher", "agent")


def is_kind(kind: str, line: str) -> bool:
    """Whether a command line, of which each argument ends with a zero byte, is that of such a process."""
    is_nsys = "nsys\0profile\0" in line or "nsys-launcher" in line
    return {
        "helper": child.__file__ in line and not is_nsys,
        "measured": "work.py" in line and not (child.__file__ in line or "\0launch\0" in line or is_nsys),
        "sampler": "perfharness.telemetry.sampler" in line,
        "nsys": "nsys\0profile\0" in line,
        "nsys-launcher": line.partition("\0")[0].endswith("nsys-launcher"),
        "agent": "--start-agent" in line,
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


def is_good(out: Path) -> bool:
    """Whether there are numbers in the results."""
    try:
        result = json.loads((out / "benchmark_mean.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(result.get("mean_data")) and bool(result.get("mean_all_batches"))


@dataclass(frozen=True)
class Campaign:
    folder: Path
    tracer: str

    def environment(self, tag: str) -> dict[str, str]:
        return environment(*([NVTX_SITE] if self.tracer == "nsys" else []), **{TAG: tag})

    def launch(self, place: Path, *arguments: str) -> list[str]:
        (place / "work.py").write_text(SCRIPT)
        nsys = ["--nsys", NSYS] if self.tracer == "nsys" else []
        options = (
            "--telemetry",
            "-np",
            2,
            "-w",
            1,
            "--measure-idle",
            0,
            "--tracer",
            self.tracer,
            *nsys,
            "--barrier-timeout",
            20,
        )
        return command(*options, "-o", place / "out", place / "work.py", *arguments)

    def run_well(self) -> float:
        """A good run in `good/out`; how many seconds a launch takes here and now."""
        place = self.folder / "good"
        place.mkdir()
        begin = time.monotonic()
        subprocess.run(self.launch(place, "plain"), env=self.environment("good"), stdout=subprocess.DEVNULL, check=True)
        assert is_good(place / "out")
        return time.monotonic() - begin

    def trial(self, number: int, lasts_s: float) -> tuple[str | None, list[str]]:
        """Who was hit, if anybody, and what went wrong."""
        chance = random.Random(SEED * 100_003 + number)
        kinds = VICTIMS_OF_NSYS if self.tracer == "nsys" else VICTIMS
        kind = kinds[number // TRIES % len(kinds)]
        number_of_signal = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        tag = f"{SEED}.{os.getpid()}{number:05d}"
        place = self.folder / str(number)
        shutil.copytree(self.folder / "good", place)
        leaves = chance.choice(["plain", "plain", "plain", "daemon"])
        terminal, slave = pty.openpty()
        launcher = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL, *self.launch(place, leaves, f"60{tag}")],
            stdin=slave, stdout=slave, stderr=slave, env=self.environment(tag),
        )  # fmt: skip
        os.close(slave)
        screen = Screen(terminal)
        at = time.monotonic() + chance.uniform(0.2, lasts_s)
        while time.monotonic() < at and launcher.poll() is None:
            screen.read()
            time.sleep(0.02)
        hit = launcher.poll() is None
        if kind == "terminal":
            screen.close()
        elif kind == "launcher":
            launcher.send_signal(number_of_signal)
        else:
            hit = strike(kind, tag, launcher, number_of_signal, screen)
        wrong = self.came_to_its_end(launcher, tag, screen)
        if b"fault of perfharness" in screen.said:
            wrong.append(f"fault: {screen.said[-400:].decode(errors='replace')}")
        out = place / "out"
        if not is_good(out):
            wrong.append(f"lost: {sorted(path.name for path in out.iterdir())}")
        wrong += self.not_finished(out)
        if not wrong:
            shutil.rmtree(place)
        return kind if hit else None, [
            f"trial {number}: {kind}, {number_of_signal.name}, exit code {launcher.returncode}: {one}" for one in wrong
        ]

    def came_to_its_end(self, launcher: subprocess.Popen[bytes], tag: str, screen: Screen) -> list[str]:
        wrong = []
        limit = time.monotonic() + LAUNCHER_LIMIT_S
        while launcher.poll() is None and time.monotonic() < limit:
            screen.read()
            time.sleep(0.05)
        screen.close()
        if launcher.poll() is None:
            wrong.append("hang")
            launcher.kill()
            launcher.wait()
        # A launcher that ends in order leaves nobody; what it has just killed may take a moment to be gone.
        limit = time.monotonic() + (ORPHANS_LIMIT_S if launcher.returncode < 0 else 10.0)
        while (left := processes(tag)) and time.monotonic() < limit:
            time.sleep(0.2)
        if left:
            wrong.append(f"left: {[line.replace(chr(0), ' ')[:160] for line in left.values()]}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return wrong

    def not_finished(self, out: Path) -> list[str]:
        """What `analyze` does not finish: of the run, and of a run that was cut off."""
        wrong = []
        for place in (out, *sorted(out.glob(".perfharness-run-*")), *sorted(out.glob("run-*"))):
            done = subprocess.run(
                [sys.executable, "-m", "perfharness", "analyze", str(place)],
                capture_output=True, text=True, env=self.environment("analyze"), check=False,
            )  # fmt: skip
            if done.returncode not in (0, 1, 3) or "fault of perfharness" in done.stderr:
                wrong.append(f"partial: analyze {place} {done.returncode} {(done.stderr or done.stdout)[-300:]}")
        left = [path.name for path in out.glob(".perfharness-*") if not path.name.startswith(".perfharness-run-")]
        return [*wrong, f"partial: {left}"] if left else wrong


class Screen:
    """The other end of the launcher's terminal, until it is closed."""

    def __init__(self, terminal: int) -> None:
        os.set_blocking(terminal, False)
        self._terminal: int | None = terminal
        self.said = b""

    def read(self) -> None:
        with contextlib.suppress(OSError):  # nothing to read, or nobody writes any more
            while self._terminal is not None and (more := os.read(self._terminal, 65536)):
                self.said += more

    def close(self) -> None:
        self.read()
        if self._terminal is not None:
            os.close(self._terminal)
        self._terminal = None


def strike(kind: str, tag: str, launcher: subprocess.Popen[bytes], number: signal.Signals, screen: Screen) -> bool:
    """Whether there was such a process within a while, which has the signal now."""
    limit = time.monotonic() + 10
    while launcher.poll() is None and time.monotonic() < limit:
        screen.read()
        for pid, line in processes(tag).items():
            if pid != launcher.pid and is_kind(kind, line):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                    return True
        time.sleep(0.02)
    return False


@TRACERS
def test_whoever_is_killed(tmp_path: Path, tracer: str) -> None:
    campaign = Campaign(tmp_path, tracer)
    lasts_s = 1.2 * campaign.run_well()
    hits: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    trials = itertools.count()

    def hit_one(place: int) -> None:
        for number in range(TRIES * place, TRIES * (place + 1)):
            hit, problems = campaign.trial(number, lasts_s)
            next(trials)
            wrong.extend(problems)
            if hit:
                hits.update([hit])
                print(f"{hits.total()} of {KILLS} hits ({hit}); {len(wrong)} wrong", flush=True)
                return

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(hit_one, range(KILLS)))
    print(f"{tracer}, seed {SEED}: {dict(sorted(hits.items()))} of {next(trials)} trials")
    assert wrong == []
    assert hits.total() == KILLS
