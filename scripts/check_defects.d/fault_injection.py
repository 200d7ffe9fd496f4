"""Faults at every file operation while a run is put in place and while it is analysed again: nothing good is lost.

    fault_injection.py [FAULTS]     at most so many places per kind of operation and fault (120)

Each fault is a process of its own that has the real run of a launch before it and fails, or is killed, at one
operation. Afterwards the next command looks: the old run or the new one has to be there, whole. Needs a compiler (cc).
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOY = HERE / "scripts" / "toy.py"
Act = Callable[[], object]
KINDS = ("open", "write", "rename", "unlink", "mkdir", "rmdir", "fsync", "chmod", "link", "truncate")
FAULTS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES, "killed": 0}


def launch(out: Path, *arguments: str, environ: dict[str, str] | None = None) -> int:
    command = [sys.executable, "-m", "perfharness", "launch", "--tracer", "embedded", "--no-telemetry", "-o", str(out)]
    return subprocess.run(
        [*command, *arguments], capture_output=True, check=False, timeout=300, env=environ or dict(os.environ)
    ).returncode


def run_ids(out: Path) -> set[str]:
    """Of all files of the run that is in place; two: runs are mixed; `missing`: a file is not there."""
    import json

    found = set()
    for name in ("manifest.json", "benchmark_mean.json", "proc_0_gpu_0/benchmark.json", "proc_1_gpu_0/benchmark.json"):
        try:
            tree = json.loads((out / name).read_text())
            found.add(f"{tree.get('run_id') or tree['meta']['run_id']}/{tree.get('meta', {}).get('warmup_batches')}")
        except (OSError, ValueError, KeyError) as error:  # noqa: PERF203 - each file on its own
            found.add(f"missing {name} ({error})")
    return {one if one.startswith("missing") else one.split("/")[0] for one in found} | {
        f"-w {one.split('/')[1]}" for one in found if not one.endswith("/None") and not one.startswith("missing")
    }


class Ground:
    """A folder with an old run in it, and a new run in its staging folder, as a launch has it after measuring."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.old, self.new = place / "old", place / "new"
        for folder in (self.old, self.new):
            assert launch(folder, "-np", "2", str(TOY)) == 0
        self.ids = {
            name: next(one for one in run_ids(getattr(self, name)) if "-w" not in one) for name in ("old", "new")
        }
        self.out = place / "out"

    def reset(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(self.old, self.out)
        staged = self.out / f".perfharness-run-{self.ids['new']}"
        shutil.copytree(self.new, staged)
        for result in staged.rglob("benchmark*.json"):
            result.unlink()

    def finish_launch(self) -> None:
        from perfharness.report.run_folder import analyze_run, read_manifest
        from perfharness_launcher.staging import Staging

        stage = Staging(self.out, self.ids["new"])
        manifest = read_manifest(stage.path)
        whole = False
        try:
            stage.write_manifest(manifest)
            whole = analyze_run(stage.path, manifest).not_written is None
        finally:
            stage.finish(whole=whole)

    def analyze(self) -> None:
        from perfharness.cli.main import run

        os._exit(run(["analyze", "-w", "2", str(self.out)]))

    def verdict(self, *, any_run: bool = False) -> str | None:
        """What is wrong after the next command, or None."""
        from perfharness.errors import PerfHarnessError
        from perfharness.report.run_folder import read_manifest

        try:
            read_manifest(self.out)
        except PerfHarnessError as error:
            return f"the next command: {error}"
        found = run_ids(self.out)
        if len([one for one in found if "-w" not in one]) != 1 or len(found) != 2:
            return ", ".join(sorted(found))
        if not any_run and not found & set(self.ids.values()):
            return f"neither run: {found}"
        return None


def in_a_process(act: Callable[[], object]) -> None:
    pid = os.fork()
    if not pid:
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.waitpid(pid, 0)


def counted(shim: ctypes.CDLL, ground: Ground, act: Callable[[], object]) -> list[int]:
    """How many operations of each kind there are."""
    ground.reset()
    reader, writer = os.pipe()

    def count() -> None:
        shim.fault_arm(str(ground.out).encode(), -1, ctypes.c_long(0), 0)
        original = os._exit

        def tell(_code: int = 0) -> None:
            os.write(writer, " ".join(str(shim.fault_count(kind)) for kind in range(len(KINDS))).encode())
            original(0)

        os._exit = tell  # type: ignore[assignment]
        act()
        tell()

    in_a_process(count)
    return [int(one) for one in os.read(reader, 4096).split()]


def real_launches(ground: Ground, most: int) -> tuple[int, list[str]]:
    """The command itself, struck at some operations: how many, and what came out wrong."""
    wrong, total = [], 0
    for kind in ("open", "write", "rename", "mkdir", "fsync", "unlink"):
        for fault in ("ENOSPC", "EIO", "killed"):
            for at in (1, 2, 4, 7, 11, 16)[: max(1, most // 20)]:
                shutil.rmtree(ground.out, ignore_errors=True)
                shutil.copytree(ground.old, ground.out)
                environ = {**os.environ, "LD_PRELOAD": os.environ["SHIM"], "FAULT_FOLDER": str(ground.out)}
                environ |= {
                    "FAULT_KIND": str(KINDS.index(kind)),
                    "FAULT_AT": str(at),
                    "FAULT_ERROR": str(FAULTS[fault]),
                }
                command = [sys.executable, "-m", "perfharness", "launch", "--tracer", "embedded", "--no-telemetry"]
                done = subprocess.run(
                    [*command, "-np", "2", "-o", str(ground.out), str(TOY)],
                    capture_output=True, text=True, check=False, timeout=300, env=environ,
                )  # fmt: skip
                total += 1
                problem = ground.verdict(any_run=True)
                if "Traceback" in done.stderr or "fault of perfharness" in done.stderr:
                    problem = done.stderr[-300:]
                if problem is not None:
                    wrong.append(f"{kind} {fault} at {at} (exit code {done.returncode}): {problem}")
    return total, wrong


def campaign(place: Path, most: int) -> int:
    shim = ctypes.CDLL(os.environ["SHIM"])
    import perfharness.cli.analyze
    import perfharness.report.run_folder  # noqa: F401 - before the forks
    import perfharness_launcher.staging  # noqa: F401

    ground = Ground(place)
    bad = total = 0
    for name, act in (("put a run in place", ground.finish_launch), ("analyze", ground.analyze)):
        counts = counted(shim, ground, act)
        for kind, count in enumerate(counts):
            places = sorted({1 + (count - 1) * step // max(1, most - 1) for step in range(most)}) if count else []
            wrong = []
            for fault, error in FAULTS.items():
                for at in places:
                    ground.reset()

                    def struck(
                        kind: int = kind, at: int = at, error: int = error, act: Callable[[], object] = act
                    ) -> None:
                        shim.fault_arm(str(ground.out).encode(), kind, ctypes.c_long(at), error)
                        act()

                    in_a_process(struck)
                    total += 1
                    if (problem := ground.verdict()) is not None:
                        wrong.append(f"{fault} at {at}: {problem}")
            bad += len(wrong)
            if places:
                print(
                    f"{'BAD' if wrong else 'ok'}  {name}: {KINDS[kind]}: "
                    f"{len(places) * len(FAULTS)} faults at {count} places  "
                    f"lost or partial: {len(wrong)} {wrong[:3] or ''}  (right: 0)",
                    flush=True,
                )
    struck, wrong = real_launches(ground, most)
    bad, total = bad + len(wrong), total + struck
    print(
        f"{'BAD' if wrong else 'ok'}  launch: {struck} faults  lost or partial: {len(wrong)} {wrong[:5] or ''}  "
        "(right: 0)"
    )
    print(f"faults: {total}; good results lost or partial states that no command finishes: {bad}")
    return 1 if bad else 0


def main() -> int:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    if "SHIM" in os.environ:
        return campaign(Path(os.environ["GROUND"]), most)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        shim = Path(folder) / "file_faults.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(HERE / "scripts" / "file_faults.c"), "-ldl"],
            check=True,
        )
        ground = Path(folder) / "ground"
        ground.mkdir()
        environ = {**os.environ, "SHIM": str(shim), "LD_PRELOAD": str(shim), "GROUND": str(ground)}
        environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        return subprocess.run([sys.executable, __file__, str(most)], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
