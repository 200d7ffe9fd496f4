"""A launch onto disks with so much space left: the old run stays whole, unless a whole new one takes its place."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launches import environment, run_to_the_end

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
SIZES = 10
LARGEST_BYTES = 2_000_000
"""Enough for a new run beside the old one."""


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


def launch(out: Path) -> subprocess.CompletedProcess[str]:
    options = ("--tracer", "embedded", "-np", 2, "-w", 1, "-o", out, out.parent.parent / "script.py")
    return run_to_the_end(options, environment())


def run_id(path: Path) -> str:
    tree = json.loads(path.read_text())
    return str(tree.get("run_id") or tree["meta"]["run_id"])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SIZES))
def test_a_full_disk_leaves_one_whole_run(disk: Path, number: int) -> None:
    (disk.parent / "script.py").write_text(SCRIPT)
    out = disk / "out"
    first = launch(out)
    assert first.returncode == 0, first.stderr
    old = run_id(out / "manifest.json")
    left_bytes = round(LARGEST_BYTES * (number / (SIZES - 1)) ** 2)  # most of them small
    place = os.statvfs(disk)
    (disk / "filler").write_bytes(b"x" * max(0, place.f_bavail * place.f_frsize - left_bytes))

    done = launch(out)

    (disk / "filler").unlink()
    (found,) = {run_id(out / name) for name in FILES}
    assert done.returncode in ((1, 3) if found == old else (0, 1, 3)), done.stderr
    if number in (0, SIZES - 1):
        assert (found == old) == (number == 0)
    assert '"infer"' in (out / "benchmark_mean.json").read_text()
    assert "Traceback" not in done.stderr
    assert "fault of perfharness" not in done.stderr
