"""A launch onto disks with so much space left: the old run stays whole, unless the new one is. Root, for tmpfs.

full_disk.py [SIZES]     how many sizes, from none to enough (35)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOY = HERE / "scripts" / "toy.py"
FILES = ("manifest.json", "benchmark_mean.json", "proc_0_gpu_0/benchmark.json", "proc_1_gpu_0/benchmark.json")


def launch(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfharness", "launch", "--tracer", "embedded", "-np", "2", "-w", "1"]
    return subprocess.run(
        [*command, "-o", str(out), str(TOY), "40"], capture_output=True, text=True, check=False, timeout=300
    )


def run_id(path: Path) -> str:
    try:
        tree = json.loads(path.read_text())
        return str(tree.get("run_id") or tree["meta"]["run_id"])
    except (OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}"


def main() -> int:
    sizes = int(sys.argv[1]) if len(sys.argv) > 1 else 35
    bad = kept = replaced = 0
    with tempfile.TemporaryDirectory(prefix="full-disk-") as folder:
        disk = Path(folder) / "disk"
        disk.mkdir()
        for number in range(sizes):
            left = round(1_300_000 * (number / max(1, sizes - 1)) ** 2)  # most of them small
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], check=True)
            try:
                out = disk / "out"
                first = launch(out)
                assert first.returncode == 0, first.stderr
                old = run_id(out / "manifest.json")
                free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
                (disk / "filler").write_bytes(b"x" * max(0, free - left))
                done = launch(out)
                (disk / "filler").unlink()
                found = {run_id(out / name) for name in FILES}
                new = found - {old}
                whole = len(found) == 1 and "Error" not in next(iter(found))
                told = done.returncode in (1, 3) if found == {old} else done.returncode in (0, 1, 3)
                clean = "Traceback" not in done.stderr and "fault of perfharness" not in done.stderr
                numbers = '"infer"' in (out / "benchmark_mean.json").read_text() if whole else False
                ok = whole and told and clean and numbers
                bad += not ok
                kept += found == {old}
                replaced += bool(new) and whole
                if not ok:
                    last = (done.stderr.strip().splitlines() or [""])[-1]
                    print(f"BAD  {left >> 10} KiB left: {sorted(found)}, exit code {done.returncode}: {last}")
            finally:
                subprocess.run(["umount", str(disk)], check=True)
    print(
        f"{'BAD' if bad else 'ok'}  {sizes} full disks: the old run stayed {kept} times, a whole new one came "
        f"{replaced} times, lost or partial {bad}  (right: 0)"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
