"""Rows about run folders and files: what is lost, what is written where, what is read of untrusted folders.

`fault_injection.py` and `full_disk.py` beside this have the campaigns.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOY = str(HERE / "scripts" / "toy.py")
PERFHARNESS = [sys.executable, "-m", "perfharness"]
LAUNCH = ["launch", "--tracer", "embedded", "--no-telemetry", "-o"]


def run(*arguments: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERFHARNESS, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300, **more
    )  # type: ignore[call-overload,no-any-return]


def files(folder: Path) -> dict[str, bytes]:
    """Every regular file below a folder that is not hidden."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith((".perf", "run-")) for part in path.relative_to(folder).parts)
    }


def sentence(done: subprocess.CompletedProcess[str]) -> bool:
    return "Traceback" not in done.stderr and "fault of perfharness" not in done.stderr


class Rows:
    def __init__(self, place: Path) -> None:
        self.place = place
        self.good = place / "good"
        done = run(*LAUNCH, self.good, "-np", "2", TOY)
        assert done.returncode == 0, done.stderr
        self.bad = 0

    def copy(self) -> Path:
        out = self.place / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(self.good, out)
        return out

    def say(self, row: str, well: bool, came_out: str, right: str) -> None:
        self.bad += not well
        print(f"{'ok' if well else 'BAD'}  {row}  {came_out}  (right: {right})", flush=True)

    def traces_gone(self, row: str, spoil: Callable[[Path], object]) -> None:
        out = self.copy()
        for trace in out.glob("proc_*/trace.sqlite"):
            spoil(trace)
        before = {name: text for name, text in files(out).items() if "benchmark" in name}
        done = run("analyze", out)
        same = before == {name: text for name, text in files(out).items() if "benchmark" in name}
        self.say(
            row, done.returncode == 3 and same, f"exit code {done.returncode}, results as before: {same}", "3, True"
        )

    def leads_out(self, row: str, folder: str, *, link: bool = False) -> None:
        out, outside = self.copy(), self.place / "outside"
        shutil.rmtree(outside, ignore_errors=True)
        shutil.copytree(out / "proc_0_gpu_0", outside)
        if link:
            shutil.rmtree(out / "proc_0_gpu_0")
            (out / "proc_0_gpu_0").symlink_to(outside)
        else:
            tree = json.loads((out / "manifest.json").read_text())
            tree["processes"][0]["folder"] = folder
            (out / "manifest.json").write_text(json.dumps(tree))
        before = files(outside)
        codes = []
        for verb in (("analyze",), ("diagnose",), ("export", "-o", self.place / "x.json")):
            done = run(verb[0], out, *verb[1:])
            codes.append(done.returncode if sentence(done) else -1)
        same = before == files(outside)
        self.say(row, codes == [1, 1, 1] and same, f"exit codes {codes}, outside as before: {same}", "1, 1, 1, True")

    def failed_run(self) -> None:
        script = self.place / "fails.py"
        script.write_text("import sys\nsys.exit(7)\n")
        out = self.copy()
        before = files(out)
        done = run(*LAUNCH, out, script)
        aside = list(out.glob("run-*/manifest.json"))
        named = bool(aside) and str(aside[0].parent) in done.stdout + done.stderr
        well = done.returncode == 1 and files(out) == before and named
        self.say(
            "script that fails at once", well,
            f"exit code {done.returncode}, good run as before: {files(out) == before}, failed run named: {named}",
            "1, True, True",
        )  # fmt: skip

    def killed_launch(self) -> None:
        script = self.place / "long.py"
        script.write_text(Path(TOY).read_text() + "import os\nprint('done', flush=True)\ntime.sleep(600)\n")
        out = self.copy()
        with subprocess.Popen([*PERFHARNESS, *LAUNCH, str(out), str(script)], stdout=subprocess.DEVNULL) as launcher:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                if any("done" in log.read_text() for log in out.glob(".perfharness-run-*/proc_*/stdout.log")):
                    break
                time.sleep(0.1)
            launcher.send_signal(signal.SIGKILL)
        (hidden,) = out.glob(".perfharness-run-*")
        time.sleep(8)  # until the process has been ended and its trace is written
        done = run("analyze", hidden)
        batches = '"batch_5"' in (hidden / "benchmark_mean.json").read_text()
        again = run(*LAUNCH, out, TOY)
        named = str(hidden) in again.stdout + again.stderr
        self.say(
            "killed launch", done.returncode == 3 and batches and named,
            f"analyze: exit code {done.returncode}, its batches: {batches}; the next launch names it: {named}",
            "3, True, True",
        )  # fmt: skip

    def outputs(self) -> None:
        link = self.place / "link"
        link.symlink_to("/dev/null")
        for target in ("/dev/null", "/dev/stdout", str(link)):
            before = stat.S_IFMT(os.lstat(target).st_mode)
            done = run("export", self.good, "-o", target)
            same = before == stat.S_IFMT(os.lstat(target).st_mode)
            self.say(
                f"export -o {target}", done.returncode == 0 and same, f"{done.returncode}, as before: {same}", "0, True"
            )
        done = run("export", self.good, "-o", "-")
        size = len(json.loads(done.stdout)["traceEvents"])
        self.say("export -o -", size > 10, f"{size} events on stdout", "more than 10")

    def secrets(self) -> None:
        script = self.place / "sec.py"
        script.write_text(
            "import argparse\nfrom perfharness import PerfRecorder\np = argparse.ArgumentParser()\n"
            "for name in ('--api-key', '--url', '--db-dsn', '--bearer', '--header'):\n    p.add_argument(name)\n"
            "perf = PerfRecorder('toy', p.parse_args())\n"
            "with perf.batch(0, total_items=1):\n    pass\nperf.finalize()\n"
        )
        out = self.place / "secrets"
        arguments = ["--api-key", "SECRET1", "--url", "http://u:SECRET2@h/?token=SECRET3", "--db-dsn", "SECRET4"]
        arguments += ["--bearer", "SECRET5", "--header", "Authorization: Bearer SECRET6"]
        before = os.umask(0o077)
        done = run(*LAUNCH, out, "-w", "0", script, *arguments)
        os.umask(before)
        leaks = [name for name, text in files(out).items() if b"SECRET" in text]
        leaks += ["printed"] * ("SECRET" in done.stdout + done.stderr)
        open_to_others = [str(path) for path in out.rglob("*") if path.stat().st_mode & 0o077]
        self.say("--api-key X and others", not leaks, f"in clear in {leaks}", "[]")
        self.say("umask 077", not open_to_others, f"open to others: {open_to_others}", "[]")

    def read_only(self) -> None:
        out = self.copy()
        subprocess.run(["mount", "--bind", str(out), str(out)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", str(out)], check=True)
            done = run("analyze", out)
        finally:
            subprocess.run(["umount", str(out)], check=True)
        shown = "infer" in done.stdout
        well = done.returncode == 1 and shown and sentence(done) and len(done.stderr.splitlines()) == 1
        self.say(
            "analyze on a read-only mount", well, f"exit code {done.returncode}, results shown: {shown}", "1, True"
        )

    def interrupt(self) -> None:
        out = self.copy()
        before = files(out)
        codes = []
        for delay in (0.3, 0.8, 1.3):
            with subprocess.Popen(
                [*PERFHARNESS, "analyze", "-w", "2", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                time.sleep(delay)
                process.send_signal(signal.SIGINT)
                codes.append(process.wait())
        self.say(
            "Ctrl-C while traces are read",
            set(codes) <= {0, 1, -2},
            f"exit codes {codes}",
            "1; -2: not begun; 0: done before",
        )
        if 0 not in codes:
            self.say("old results after it", files(out) == before, f"{files(out) == before}", "True")

    def not_regular(self) -> None:
        for name in ("manifest.json", "proc_0_gpu_0/trace.sqlite", "proc_0_gpu_0/recorder.json", "telemetry.parquet"):
            out = self.copy()
            (out / name).unlink(missing_ok=True)
            os.mkfifo(out / name)
            done = run("analyze", out)
            said = done.stdout + done.stderr
            well = sentence(done) and (done.returncode == 1 or "cannot be read" in said or "not a regular file" in said)
            self.say(f"{name} is a FIFO", well, f"exit code {done.returncode}", "it is said, nothing hangs")
        out = self.copy()
        text = (out / "manifest.json").read_text()
        for what, made in (
            ("NaN", text.replace('"duration_s": ', '"duration_s": NaN, "x": ')),
            ("deep", "[" * 100_000),
        ):
            (out / "manifest.json").write_text(made)
            done = run("analyze", out)
            self.say(
                f"a manifest with {what}", sentence(done) and done.returncode == 1, f"exit code {done.returncode}", "1"
            )
        state = self.place / "state"
        state.mkdir()
        os.mkfifo(state / "clocks.json")
        done = run("diagnose", self.good, env={**os.environ, "PERFHARNESS_STATE_DIR": str(state)})
        self.say("a FIFO as clocks.json", done.returncode == 0, f"exit code {done.returncode}", "0")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="folder-rows-") as folder:
        rows = Rows(Path(folder))
        rows.traces_gone("traces deleted", Path.unlink)
        rows.traces_gone("traces cut short", lambda trace: trace.write_bytes(trace.read_bytes()[:6000]))
        rows.leads_out("folder ../x", "../outside")
        rows.leads_out("folder /x", str(rows.place / "outside"))
        rows.leads_out("folder that is a link", "", link=True)
        rows.failed_run()
        rows.killed_launch()
        rows.outputs()
        rows.secrets()
        rows.read_only()
        rows.interrupt()
        rows.not_regular()
        return 1 if rows.bad else 0


if __name__ == "__main__":
    sys.exit(main())
