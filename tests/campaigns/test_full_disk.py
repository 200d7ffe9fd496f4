"""Launches onto disks with so much space left: each ends with a sentence, and the earlier results stay whole.

PERFHARNESS_TEST_DISK_SIZES: number of sizes (20).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launches import PATIENCE_S, environment, processes_naming, run_to_the_end

SIZES = int(os.environ.get("PERFHARNESS_TEST_DISK_SIZES", "20"))
LARGEST_BYTES = 6_000_000
"""Enough for a new run beside the old one."""

SCRIPT = """
import time
from perfharness import PerfRecorder
perf = PerfRecorder("toy")
with perf.range("pipeline"):
    for index in range(40):
        with perf.batch(index, total_items=2), perf.range("infer"):
            time.sleep(0.002)
perf.finalize()
"""
FILES = ("manifest.json", "benchmark_mean.json", "proc_0_gpu_0/benchmark.json", "proc_1_gpu_0/benchmark.json")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]


def launch(out: Path, script: Path) -> subprocess.CompletedProcess[str]:
    return run_to_the_end(("--tracer", "embedded", "-np", 2, "-w", 1, "-o", out, script), environment())


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a script and of its run `out`."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "script.py").write_text(SCRIPT)
    done = launch(folder / "out", folder / "script.py")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        problem = mounted.stderr.partition("\n")[0] if mounted.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        pytest.skip(f"a tmpfs cannot be mounted: {problem}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def run_id(path: Path) -> str:
    tree = json.loads(path.read_text())
    return str(tree.get("run_id") or tree["meta"]["run_id"])


@pytest.mark.parametrize("number", range(SIZES))
def test_a_full_disk_leaves_one_whole_run(disk: Path, good: Path, number: int) -> None:
    out = disk / "out"
    shutil.copytree(good / "out", out)
    old = run_id(out / "manifest.json")
    left_bytes = round(LARGEST_BYTES * (number / max(1, SIZES - 1)) ** 2)  # most of them small
    place = os.statvfs(disk)
    (disk / "filler").write_bytes(b"x" * max(0, place.f_bavail * place.f_frsize - left_bytes))

    begin = time.monotonic()
    done = launch(out, good / "script.py")
    took_s = time.monotonic() - begin

    assert processes_naming(str(disk)) == []
    (disk / "filler").unlink()
    (found,) = {run_id(out / name) for name in FILES}
    ending = next(iter(done.stderr.strip().splitlines()[-1:]), "")
    whose = "old" if found == old else "new"
    print(f"{left_bytes} bytes: exit {done.returncode}, {whose} run, {took_s:.0f} s: {ending}")
    assert done.returncode in ((1, 3) if found == old else (0, 1, 3)), done.stderr
    assert found == old or run_id(out / "previous" / "manifest.json") == old
    if number in (0, SIZES - 1):
        assert (found == old, done.returncode) == ((True, 1) if number == 0 else (False, 0)), done.stderr
    if done.returncode:
        assert "space" in done.stderr
    assert '"infer"' in (out / "benchmark_mean.json").read_text()
    assert "Traceback" not in done.stderr
    assert "bug in perfharness" not in done.stderr
