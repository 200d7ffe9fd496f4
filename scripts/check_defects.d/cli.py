"""Rows of the defect tables that concern verbs, tables, help, hints, streams and messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "launcher")]), "COLUMNS": "80"}

Row = tuple[bool, str, str, str]
"""Whether it is right, the row, what came out, what is right."""

LOOP = """
import os, signal, sys, time
from perfharness import PerfRecorder
perf = PerfRecorder("app")
with perf.range("pipeline"):
    for index, _ in perf.batches(range(10), items={items}):
        with perf.range("decode"): time.sleep(0.004)
        with perf.range("tiny"): pass
        {inside}
perf.finalize()
"""
WORK = """
import time
from perfharness import PerfRecorder
perf = PerfRecorder("app")
with perf.range("work"): time.sleep(0.02)
perf.finalize()
"""


class Machine:
    """A folder with scripts, and the command run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def script(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "perfharness", *arguments], cwd=self.folder, capture_output=True, text=True,
            check=False, timeout=300, env={**ENVIRONMENT, **environ},
        )  # fmt: skip

    def launch(self, script: str, out: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("launch", "--tracer", "embedded", "--measure-idle", "0", *options, "-o", out, script)


def nothing_measured(machine: Machine) -> Iterator[Row]:
    loop = machine.script("loop.py", LOOP.format(items="lambda one: 1", inside=""))
    machine.launch(loop, "run", "-np", "2", "-w", "1")
    code = machine.launch(loop, "none", "-w", "5000").returncode
    yield code == 3, "launch -w 5000 with 10 batches", f"exit {code}", "exit 3"
    code = machine.launch(loop, "none", "--batch-pattern", "nomatch").returncode
    yield code == 3, "launch --batch-pattern nomatch", f"exit {code}", "exit 3"
    for verb in ("analyze", "diagnose"):
        for options in (["-w", "5000"], ["--batch-pattern", "nomatch"], ["--domain", "nowhere"]):
            code = machine.run(verb, "run", *options).returncode
            yield code == 3, f"{verb} {' '.join(options)}", f"exit {code}", "exit 3"
    code = machine.run("launch", "--np-sweep", "1", "--tracer", "none", "-o", "sweep_none", "true").returncode
    yield code == 3, "a sweep without a number", f"exit {code}", "exit 3"
    code = machine.run("launch", "--cold-start", "1", "--tracer", "none", "-o", "cold_none", "true").returncode
    yield code == 3, "cold starts without a number", f"exit {code}", "exit 3"


def ranges_without_batches(machine: Machine) -> Iterator[Row]:
    done = machine.launch(machine.script("work.py", WORK), "work")
    row = next((line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["work"]), [])
    ok = done.returncode == 0 and row[1:2] == ["1"] and float(row[2]) >= 20
    yield ok, "one range, no batch", f"exit {done.returncode}, {row}", "the table of ranges"


def tables(machine: Machine) -> Iterator[Row]:
    done = machine.run("analyze", "run")
    cut = [line for line in done.stdout.splitlines() if "…" in line]
    yield not cut, "the table at 80 columns in a pipe", f"{len(cut)} cut lines", "none"
    found = re.search(r"\bGPU\b|\bbusy\b", done.stdout)
    yield found is None, "columns of a GPU that is not there", f"{found}", "left out"


def every_source(machine: Machine) -> Iterator[Row]:
    machine.run("launch", "--tracer", "embedded", "--np-sweep", "1,2", "-o", "sweep", "loop.py")
    machine.run("launch", "--tracer", "embedded", "--cold-start", "1", "-o", "cold", "loop.py")
    sources = {
        "run": "run", "process": "run/proc_0_gpu_0", "sweep": "sweep", "cold start": "cold",
        "trace": "run/proc_0_gpu_0/trace.sqlite",
    }  # fmt: skip
    for name, path in sources.items():
        codes = [
            machine.run("analyze", path).returncode,
            machine.run("diagnose", path).returncode,
            machine.run("ranges", path, "--format", "csv").returncode,
            machine.run("export", path, "-o", "out.json").returncode,
        ]
        yield codes == [0] * 4, f"analyze, diagnose, ranges, export of a {name}", f"exits {codes}", "0, 0, 0, 0"


def install_commands(machine: Machine) -> Iterator[Row]:
    done = subprocess.run(
        ["grep", "-rnE", r"perfharness\[[a-z]|scripts/install_nsys|docs/[a-z-]+\.md",
         "--include=*.py", "perfharness/report", "perfharness/cli", "perfharness/backends", "perfharness/bench"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    named = [line for line in done.stdout.splitlines() if '"' in line and '"""' not in line and "perfharness[" in line]
    yield not named, "install commands name a stranger's package", f"{len(named)} messages", "none"
    done = machine.run("doctor", "--help")
    yield "--install-nsys" in done.stdout, "doctor --install-nsys", f"exit {done.returncode}", "a verb"


HINTS = {
    "syntax error": ("def f(:\n", 1, "compiled"),
    "import error": ("import nothing_like_this\n", 1, "--python"),
    "no annotations": ("print(1)\n", 3, "--annotate"),
    "SIGSEGV": (LOOP.format(items="None", inside="index == 3 and os.kill(os.getpid(), signal.SIGSEGV)"), 1, "Native"),
    "SIGKILL": (LOOP.format(items="None", inside="index == 3 and os.kill(os.getpid(), signal.SIGKILL)"), 1, "memory"),
    "sys.exit(3)": (LOOP.format(items="None", inside="index == 3 and sys.exit(3)"), 1, "sys.exit"),
    "batches without items": (LOOP.format(items="None", inside=""), 0, "items=len"),
}
MISLEADING = re.compile(r"Annotate the script|Call finalize|doctor says what is missing|Give total_items")


def hints(machine: Machine) -> Iterator[Row]:
    for name, (text, expected, hint) in HINTS.items():
        done = machine.launch(machine.script("hint.py", text), "hint", "-np", "2")
        wrong = MISLEADING.findall(done.stderr) if name != "no annotations" else []
        twice = [line for line in done.stderr.splitlines() if re.match(r"(error|warning) proc_1_gpu_0:", line)]
        ok = done.returncode == expected and hint in done.stderr and not wrong and not twice
        told = f"exit {done.returncode}, hint {hint in done.stderr}, misleading {wrong}, told twice {len(twice)}"
        yield ok, f"hint: {name}", told, f"exit {expected}, one line with a hint that fits"


def diagnosis(machine: Machine) -> Iterator[Row]:
    out = machine.run("diagnose", "run/proc_0_gpu_0").stdout
    lines = out.splitlines()
    ok = len(lines) <= 15 and not re.search(r"\bidle\b|at work", out)
    yield ok, "diagnose without a GPU", f"{len(lines)} lines", "at most 15, nothing of a GPU"


def help_and_version(machine: Machine) -> Iterator[Row]:
    out = machine.run("--help").stdout
    yield "..." not in out.partition("Verbs:")[2], "--help", f"{out.count('...')} cut summaries", "none"
    groups = re.findall(r"^(\w.*):$", machine.run("launch", "--help").stdout, re.MULTILINE)
    yield len(groups) >= 6, "launch --help", f"groups {groups}", "options in groups"
    code = (
        "import sys; from perfharness.cli.main import run; run(['--version']);"
        "print(*sorted({'numpy','pyarrow','pydantic','rich.console'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    loaded = done.stdout.splitlines()[-1]
    yield not loaded, "--version", f"imports {loaded or 'none of the large libraries'}", "none"


def streams(machine: Machine) -> Iterator[Row]:
    done = machine.launch("loop.py", "json", "--format", "json")
    try:
        tree = json.loads(done.stdout)
    except ValueError:
        tree = {}
    yield "throughput" in tree, "launch --format json", f"{len(done.stdout)} bytes on stdout", "one document"
    done = machine.launch("loop.py", "text")
    clean = "proc_0_gpu_0: running" not in done.stdout and "running" in done.stderr
    yield clean, "progress of launch", "on stderr" if clean else "on stdout", "on stderr"


def escapes(machine: Machine) -> Iterator[Row]:
    name = "evil\\x1b]52;c;Zm9v\\x07\\x9b2J\\u202e[red]"
    inside = f'perf.push_range("{name}"); perf.pop_range()'
    machine.launch(machine.script("evil.py", LOOP.format(items="None", inside=inside)), "evil")
    for arguments in (
        ["analyze", "evil"],
        ["diagnose", "evil"],
        ["ranges", "evil"],
        ["ranges", "evil", "--format", "json"],
    ):
        done = machine.run(*arguments)
        bad = re.findall("[\x1b\x07\x9b\u202e]", done.stdout + done.stderr)
        yield not bad and "[red]" in done.stdout, f"escapes in names: {' '.join(arguments)}", f"{len(bad)} raw", "none"
    for environ in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}):
        done = machine.run("analyze", "evil", **environ)
        ok = "Traceback" not in done.stderr and "fault" not in done.stderr and done.returncode == 0
        yield ok, f"an ASCII locale ({next(iter(environ))})", f"exit {done.returncode}", "exit 0, no traceback"


CASES: list[Callable[[Machine], Iterator[Row]]] = [
    nothing_measured, ranges_without_batches, tables, every_source, install_commands, hints, diagnosis,
    help_and_version, streams, escapes,
]  # fmt: skip


def main() -> int:
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder))
        for case in CASES:
            for ok, row, came_out, right in case(machine):
                bad += not ok
                print(f"{'ok ' if ok else 'BAD'}  {row}  {came_out}  (right: {right})", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
