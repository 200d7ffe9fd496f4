"""Kill somebody at random in short launches, and count what goes wrong: hangs, processes and good results lost.

kill_campaign.py [--count N] [--tracer embedded|nsys] [--seed S] [--jobs J]

Victims: launcher, helper, measured process, sampler, nsys's processes, the terminal. Each trial begins with a good run
in OUT. Prints a line a trial that went wrong, then the counts.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TAG = "KILL_CAMPAIGN"
LAUNCHER_LIMIT_S = 150.0
"""--barrier-timeout, two escalations of signals, the sampler's 60 s and some for a busy machine."""
ORPHANS_LIMIT_S = 150.0
"""The guard's patience, and some."""

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
print("done", flush=True)
"""
VICTIMS = {
    "launcher": None, "terminal": None, "helper": "launcher/perfharness_launcher/child.py", "measured": "work.py",
    "sampler": "perfharness.telemetry.sampler", "nsys": "nsys\0profile", "nsys-launcher": "nsys-launcher",
    "agent": "--start-agent",
}  # fmt: skip
OF_NSYS = ("nsys", "nsys-launcher", "agent")


def environment(tag: str) -> dict[str, str]:
    nvtx = sorted((ROOT / ".nvtx").glob("0.2.11-*"))
    path = [*map(str, nvtx), str(ROOT), str(ROOT / "launcher")]
    return {**os.environ, TAG: tag, "PYTHONPATH": os.pathsep.join(path)}


def processes(tag: str) -> dict[int, str]:
    """Command lines of the living processes of a trial; arguments end with a zero byte."""
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


def find_victim(kind: str, tag: str, launcher: subprocess.Popen[bytes], until: float) -> int | None:
    sign = VICTIMS[kind]
    assert sign is not None
    while launcher.poll() is None and time.monotonic() < until:
        for pid, line in processes(tag).items():
            named = sign in line
            if kind == "measured":
                named = named and "child.py" not in line and "\0launch\0" not in line and "nsys" not in line
            elif kind == "nsys-launcher":
                named = named and line.partition("\0")[0].endswith(sign)
            elif kind == "helper":
                named = named and "nsys\0profile" not in line and "nsys-launcher" not in line
            if named and pid != launcher.pid:
                return pid
        time.sleep(0.02)
    return None


def trial(number: int, seed: int, tracer: str, good: Path, folder: Path) -> tuple[str, list[str], str]:
    """The victim, what went wrong, and how the launcher ended."""
    chance = random.Random(seed * 100_003 + number)
    kinds = [kind for kind in VICTIMS if tracer == "nsys" or kind not in OF_NSYS]
    kind = chance.choice(kinds)
    number_of_signal = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    tag = f"{seed}.{os.getpid()}{number:05d}"
    place = folder / str(number)
    out = place / "out"
    shutil.copytree(good, out)
    (place / "work.py").write_text(SCRIPT)
    command = [str(ROOT / ".venv/bin/perfharness"), "launch", "-np", "2", "-w", "1", "--measure-idle", "0"]
    command += ["--tracer", tracer, "--barrier-timeout", "20", "-o", str(out)]
    if tracer == "nsys":
        command += ["--nsys", str(next(iter((ROOT / ".nsys").glob("target-linux-*/nsys"))))]
    command += [str(place / "work.py"), chance.choice(["plain", "plain", "plain", "daemon"]), f"60{tag}"]
    terminal, slave = pty.openpty()

    def take_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_DFL)

    launcher = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment(tag), preexec_fn=take_the_terminal
    )
    os.close(slave)
    os.set_blocking(terminal, False)
    wrong: list[str] = []
    begin = time.monotonic()
    at = begin + chance.uniform(0.2, 5.0 if tracer == "embedded" else 9.0)
    said = b""
    is_open = True

    def drain() -> None:
        nonlocal said
        with contextlib.suppress(OSError):
            while is_open and (more := os.read(terminal, 65536)):
                said += more

    while time.monotonic() < at and launcher.poll() is None:
        drain()
        time.sleep(0.02)
    hit = launcher.poll() is None
    if hit and kind == "terminal":
        os.close(terminal)
        is_open = False
    elif hit and kind == "launcher":
        launcher.send_signal(number_of_signal)
    elif hit:
        victim = find_victim(kind, tag, launcher, time.monotonic() + 10)
        hit = victim is not None
        if victim is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, number_of_signal)
    limit = time.monotonic() + LAUNCHER_LIMIT_S
    while launcher.poll() is None and time.monotonic() < limit:
        drain()
        time.sleep(0.05)
    drain()
    if is_open:
        os.close(terminal)
    if launcher.poll() is None:
        wrong.append("hang")
        launcher.kill()
        launcher.wait()
    was_killed = launcher.returncode < 0
    limit = time.monotonic() + (ORPHANS_LIMIT_S if was_killed else 2.0)
    while (left := processes(tag)) and time.monotonic() < limit:
        time.sleep(0.2)
    if left:
        wrong.append(f"left: {[line.replace(chr(0), ' ')[:160] for line in left.values()]}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if b"fault of perfharness" in said:
        wrong.append(f"fault: {said[-400:].decode(errors='replace')}")
    if not is_good(out):
        wrong.append(f"lost: {sorted(path.name for path in out.iterdir())}")
    wrong += finished(out, tag)
    if not wrong:
        shutil.rmtree(place)
    return (kind if hit else "nobody"), wrong, f"{number_of_signal.name} {launcher.returncode}"


def finished(out: Path, tag: str) -> list[str]:
    """What `analyze` does not finish: of the run, and of a run that was cut off."""
    wrong = []
    for place in (out, *sorted(out.glob(".perfharness-run-*")), *sorted(out.parent.glob("out?*"))):
        done = subprocess.run(
            [str(ROOT / ".venv/bin/perfharness"), "analyze", str(place)],
            capture_output=True, text=True, env=environment(tag), check=False,
        )  # fmt: skip
        if done.returncode not in (0, 1, 3) or "fault of perfharness" in done.stderr:
            wrong.append(f"partial: analyze {place} {done.returncode} {(done.stderr or done.stdout)[-300:]}")
    left = [path.name for path in out.glob(".perfharness-*") if not path.name.startswith(".perfharness-run-")]
    return [*wrong, f"partial: {left}"] if left else wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--tracer", choices=["embedded", "nsys"], default="embedded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kill-campaign-"))
    good = folder / "good"
    (folder / "work.py").write_text(SCRIPT)
    subprocess.run(
        [str(ROOT / ".venv/bin/perfharness"), "launch", "--tracer", "embedded", "--no-telemetry", "-o", str(good),
         str(folder / "work.py"), "plain"],
        env=environment("good"), stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    assert is_good(good)
    hits: collections.Counter[str] = collections.Counter()
    faults: collections.Counter[str] = collections.Counter()

    def summary() -> str:
        counts = ", ".join(f"{name} {faults[name]}" for name in ("hang", "left", "lost", "partial", "fault"))
        mark, victims = "BAD" if faults else "ok", dict(sorted(hits.items()))
        return f"{mark}  {hits.total()} random kills, {options.tracer} ({victims}): {counts}  (right: 0 of each)"

    def one(number: int) -> None:
        kind, wrong, how = trial(number, options.seed, options.tracer, good, folder)
        hits[kind] += 1
        for text in wrong:
            faults[text.partition(":")[0]] += 1
            print(f"trial {number} {kind} {how}: {text}", flush=True)
        if hits.total() % 20 == 0 and hits.total() < options.count:
            print(f"so far: {summary()}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, range(options.count)))
    if not faults:
        shutil.rmtree(folder)
    print(summary())
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
