"""Rows of the defect tables about who is killed, who is left, who reads what is printed, and what is run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TAG = "CHECK_PROCESSES"
COMMAND = str(ROOT / ".venv/bin/perfharness")
TOY = """
import os, subprocess, sys, time
from perfharness import PerfRecorder
if "daemon" in sys.argv:
    subprocess.Popen(["env", "-i", "sleep", "7411"], start_new_session=True)
perf = PerfRecorder("toy")
with perf.range("pipeline"):
    for index in range(int(sys.argv[1])):
        if os.environ.get("PERFHARNESS_PROCESS_INDEX") == "1" and "late" in sys.argv:
            time.sleep(600)
        with perf.batch(index, total_items=2):
            time.sleep(0.03)
        print("batch", index, flush=True)
perf.finalize()
"""
Row = tuple[bool, str, str, str]


def marked(tag: str) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if line and f"{TAG}={tag}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = line.decode(errors="replace").replace("\0", " ")
    return found


def start(tag: str, *arguments: object, **more: object) -> subprocess.Popen[bytes]:
    settings = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
    command = [COMMAND, "launch", "--no-telemetry", *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, TAG: tag}, **settings)  # type: ignore[call-overload]


def wait_for(tag: str, sign: str, but: Sequence[int] = ()) -> int:
    for _ in range(600):
        for pid, line in marked(tag).items():
            if sign in line and pid not in but:
                return pid
        time.sleep(0.05)
    raise SystemExit(f"no process with {sign!r}")


def ended(process: subprocess.Popen[bytes], limit_s: float) -> str:
    try:
        return f"exit {process.wait(limit_s)}"
    except subprocess.TimeoutExpired:
        process.kill()
        return "hangs"


def left(tag: str, sign: str = "", limit_s: float = 15) -> int:
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        found = [*marked(tag), *(everybody(sign) if sign else ())]
        if not found:
            return 0
        time.sleep(0.2)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def everybody(sign: str) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if sign.encode() == (folder / "cmdline").read_bytes().replace(b"\0", b" ").strip():
                yield int(folder.name)


def ends(out: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [process["ended"] for process in json.loads((out / "manifest.json").read_text())["processes"]]
    return []


def killed(place: Path, toy: Path) -> Iterator[Row]:
    run = start("hang1", "-np", 2, "--no-barrier", "--tracer", "embedded", "-o", place / "a", toy, 40)
    wait_for("hang1", "perfharness.tracer")
    time.sleep(1)
    os.kill(wait_for("hang1", "child.py"), signal.SIGKILL)
    how = f"{ended(run, 60)}, {sorted(ends(place / 'a'))}, {left('hang1')} left"
    yield how == "exit 1, ['failed', 'ok'], 0 left", "hang1.py", how, "exit 1, one failed, one ok, 0 left"

    fake = place / "fakensys"
    real = next(iter(sorted((ROOT / ".nsys").glob("target-linux-*/nsys"))), "nsys")
    fake.write_text(f'#!/bin/sh\n[ "$1" = profile ] && [ "$2" != --help ] && exec sleep 1000\nexec {real} "$@"\n')
    fake.chmod(0o755)
    run = start("hang2", "--tracer", "nsys", "--nsys", fake, "-o", place / "b", toy, 4)
    wait_for("hang2", "sleep 1000")
    run.terminate()
    how = f"{ended(run, 60)}, {left('hang2')} left"
    yield how == "exit 1, 0 left", "hang2.py", how, "exit 1, 0 left"

    run = start("spt", "--tracer", "none", "-o", place / "c", toy, 4, "daemon")
    how = f"{ended(run, 60)}, {left('spt', 'sleep 7411')} left"
    codes = [finding["code"] for finding in json.loads((place / "c/manifest.json").read_text())["findings"]]
    how += ", told" if "leftover-processes" in codes else ""
    yield how == "exit 0, 0 left, told", "spt.py", how, "exit 0, 0 left, told"

    run = start("bark", "-np", 2, "-w", 0, "--tracer", "none", "-o", place / "d", toy, 40, "late")
    wait_for("bark", "child.py")
    time.sleep(2)
    for pid, line in marked("bark").items():
        if "child.py" in line or "launch" in line:
            os.kill(pid, signal.SIGKILL)
    ended(run, 10)
    how = f"{left('bark')} left"
    yield how == "0 left", "bark.py", how, "0 left"


def printed(place: Path, toy: Path) -> Iterator[Row]:
    line = f"{COMMAND} launch --no-telemetry --tracer embedded -o {place}/e {toy} 20"
    for row, tail in (("launch … | head -3", "2>&1 | head -3 > /dev/null"), ("stdout on a full disk", "> /dev/full")):
        done = subprocess.run(["bash", "-c", f"{line} {tail}; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
        good = (place / "e/benchmark_mean.json").exists()
        how = f"exit {done.stdout.split()[-1]}, results {'written' if good else 'lost'}"
        yield how == "exit 0, results written", row, how, "exit 0, results written"
    line = f"timeout -s HUP 6 {COMMAND} launch --no-telemetry --tracer embedded -o {place}/h {toy} 400"
    subprocess.run(["script", "-qec", line, "/dev/null"], capture_output=True)
    how = f"{ends(place / 'h')}"
    yield how == "['interrupted']", "SIGHUP, terminal", how, "results of what ran until then"


def run_from(place: Path, toy: Path) -> Iterator[Row]:
    trap = place / "trap"
    trap.mkdir()
    for name in ("json", "types", "numpy", "perfharness", "importlib", "sqlite3", "nvtx"):
        (trap / f"{name}.py").write_text(f"open({str(place / 'marks')!r}, 'a').write('{name} '); raise SystemExit(9)")
    for verb in (["launch", "--no-telemetry", "--tracer", "embedded", "-o", str(place / "f"), str(toy), "4"],
                 ["launch", "--dry-run", str(toy), "4"], ["doctor"]):  # fmt: skip
        done = subprocess.run([COMMAND, *verb], cwd=trap, capture_output=True)
        marks = (place / "marks").read_text() if (place / "marks").exists() else "nothing"
        how = f"ran {marks}, exit {done.returncode}"
        ok = marks == "nothing" and (verb[0] == "doctor" or done.returncode == 0)
        yield ok, f"current folder: {' '.join(verb[:2])}", how, "ran nothing, exit 0"


def names(place: Path, toy: Path) -> Iterator[Row]:
    script = place / os.fsdecode(b"caf\xe9.py")
    script.write_text(TOY)
    how = ended(start("bytes", "--tracer", "embedded", "-o", place / "g", script, 4, os.fsdecode(b"\xff")), 60)
    yield how == "exit 0", "bytes in script and argument", how, "exit 0"
    how = ended(start("bytes", "--tracer", "none", "-o", place / os.fsdecode(b"\xe9"), toy, 4), 60)
    yield how == "exit 2", "bytes in -o", how, "exit 2"
    done = subprocess.run([COMMAND, "launch", "--dry-run", str(toy), "-np", "2"], capture_output=True, text=True)
    how = "pointed out" if "-np" in done.stderr else "not a word"
    yield how == "pointed out", "options behind SCRIPT", how, "pointed out"


def main() -> int:
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        toy = place / "toy.py"
        toy.write_text(TOY)
        for rows in (killed, printed, run_from, names):
            for ok, row, how, right in rows(place, toy):
                bad += not ok
                print(f"{'ok' if ok else 'BAD'}  {row}  {how}  (right: {right})", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
