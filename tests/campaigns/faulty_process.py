"""One action on a run folder, over and over, each time with a fault at another file operation.

python -m tests.campaigns.faulty_process LIBRARY PLACE ACTION PLACES, with LIBRARY preloaded, prints the result.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import perfharness.cli.analyze
import perfharness.runs.analyze  # noqa: F401
from perfharness.cli.main import run
from perfharness.errors import PerfHarnessError
from perfharness.runs.files.run_folder import analyze_run, read_manifest
from perfharness_launcher.staging import Staging

KINDS = ("open", "write", "rename", "unlink", "mkdir", "rmdir", "fsync", "chmod", "link", "truncate")
"""In the order of file_faults.c."""
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES, "killed": 0}
TOY = """
from perfharness import PerfRecorder
perf = PerfRecorder("toy")
with perf.range("pipeline"):
    for index in range(6):
        with perf.batch(index, total_items=2), perf.range("infer"):
            pass
perf.finalize()
"""
FILES = ("manifest.json", "benchmark_mean.json", "proc_0_gpu_0/benchmark.json", "proc_1_gpu_0/benchmark.json")


def run_of(out: Path) -> tuple[set[str], set[object], list[str]]:
    """Ids of the runs that the files are of, their warm-ups, and what cannot be read."""
    ids, warmups, missing = set(), set(), []
    for name in FILES:
        try:
            tree = json.loads((out / name).read_text())
            ids.add(str(tree.get("run_id") or tree["meta"]["run_id"]))
            if "meta" in tree:
                warmups.add(tree["meta"]["warmup_batches"])
        except (OSError, ValueError, KeyError) as error:  # noqa: PERF203 - each file on its own
            missing.append(f"{name}: {error}")
    return ids, warmups, missing


class Ground:
    """`out`: an old run, and a new one in its staging folder, as a launch has it after measuring."""

    def __init__(self, place: Path) -> None:
        self.old, self.new, self.out = (place / name for name in ("old", "new", "out"))
        (self.old_id,), _, _ = run_of(self.old)
        (self.new_id,), _, _ = run_of(self.new)

    def reset(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(self.old, self.out)
        staged = self.out / f".perfharness-run-{self.new_id}"
        shutil.copytree(self.new, staged)
        for result in staged.rglob("benchmark*.json"):
            result.unlink()

    def finish_launch(self) -> None:
        stage = Staging(self.out, self.new_id)
        manifest = read_manifest(stage.path)
        whole = False
        try:
            stage.write_manifest(manifest)
            whole = analyze_run(stage.path, manifest).not_written is None
        finally:
            stage.finish(whole=whole)

    def analyze(self) -> None:
        run(["analyze", "-w", "2", str(self.out)])

    def problem(self, *, any_run: bool = False) -> str | None:
        """The problem that the next command finds, or None."""
        try:
            read_manifest(self.out)
        except PerfHarnessError as error:
            return f"the next command: {error}"
        ids, warmups, missing = run_of(self.out)
        if missing or len(ids) != 1 or len(warmups) != 1:
            return f"runs {sorted(ids)}, warm-ups {warmups}, missing {missing}"
        return None if any_run or ids <= {self.old_id, self.new_id} else f"neither run: {ids}"


def in_a_process(act: Callable[[], object]) -> None:
    """Fork, act without output, and wait."""
    pid = os.fork()
    if not pid:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.waitpid(pid, 0)


def count_operations(library: ctypes.CDLL, ground: Ground, act: Callable[[], object]) -> list[int]:
    """How many there are of each kind."""
    reader, writer = os.pipe()

    def counting() -> None:
        library.fault_arm(os.fsencode(ground.out), -1, ctypes.c_long(0), 0)
        act()
        os.write(writer, json.dumps([library.fault_count(kind) for kind in range(len(KINDS))]).encode())

    ground.reset()
    in_a_process(counting)
    os.close(writer)
    counts: list[int] = json.loads(os.read(reader, 4096))
    os.close(reader)
    return counts


def main() -> None:
    library, ground = ctypes.CDLL(sys.argv[1]), Ground(Path(sys.argv[2]))
    act: Callable[[], object] = getattr(ground, sys.argv[3])
    most = int(sys.argv[4])
    counts = count_operations(library, ground, act)
    faults, wrong = 0, []
    for kind, count in enumerate(counts):
        places = sorted({1 + (count - 1) * step // max(1, most - 1) for step in range(most)}) if count else []
        for name, error in ERRORS.items():
            for at in places:
                ground.reset()

                def struck(kind: int = kind, at: int = at, error: int = error) -> None:
                    library.fault_arm(os.fsencode(ground.out), kind, ctypes.c_long(at), error)
                    act()

                in_a_process(struck)
                faults += 1
                if (problem := ground.problem()) is not None:
                    wrong.append(f"{KINDS[kind]} {name} at {at} of {count}: {problem}")
    print(json.dumps({"operations": dict(zip(KINDS, counts, strict=True)), "faults": faults, "wrong": wrong}))


if __name__ == "__main__":
    main()
