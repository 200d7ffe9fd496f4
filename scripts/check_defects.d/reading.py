"""Rows of the defect tables that concern traces, journals, stages, their names and depth."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCRIPTS = HERE / "scripts"
PYTHON_PATH = [str(ROOT), str(ROOT / "launcher")]
NSYS = ROOT / ".nsys/target-linux-x64/nsys"
NVTX_SITE = next((ROOT / ".nvtx").glob("0.2.11*"), None)

Row = tuple[bool, str, str, str]
"""Whether it is right, the row, what came out, what is right."""


class Launched:
    """One launch of a script of the tables."""

    def __init__(self, out: Path, script: str, *arguments: str, tracer: str = "embedded", warmup: int = 0) -> None:
        site = [str(NVTX_SITE)] if tracer == "nsys" else []
        command = [sys.executable, "-m", "perfharness", "launch", "--tracer", tracer, "-w", str(warmup), "-o", str(out)]
        command += ["--nsys", str(NSYS)] if tracer == "nsys" else []
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.done = subprocess.run(
            [*command, str(SCRIPTS / f"{script}.py"), *arguments], capture_output=True, text=True, timeout=600,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*site, *PYTHON_PATH]), "COLUMNS": "200"}, check=False,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.megabytes = after.ru_maxrss / 1024  # the largest child so far
        self.folder = out / "proc_0_gpu_0"

    def result(self) -> dict[str, object]:
        return json.loads((self.folder / "benchmark.json").read_text())

    def findings(self) -> list[str]:
        mean = json.loads((self.folder.parent / "benchmark_mean.json").read_text())
        return sorted({finding["code"] for finding in mean["meta"]["findings"]})

    def ranges(self) -> dict[int, int]:
        """Ranges by pid."""
        from perfharness import open_run

        counts: dict[int, int] = {}
        for pid in open_run(self.folder).ranges()["pid"].to_pylist():
            counts[pid] = counts.get(pid, 0) + 1
        return counts

    def line(self, text: str) -> str:
        return next((" ".join(line.split()) for line in self.done.stdout.splitlines() if text in line), "no line")


def forks(tmp: Path) -> Iterator[Row]:
    if not NSYS.exists() or NVTX_SITE is None:
        yield False, "forks under nsys", "no nsys here", "scripts/install_nsys"
        return
    for script, *arguments in (("forkrec",), ("forkown", "both")):
        run = Launched(tmp / script, script, *arguments, tracer="nsys", warmup=1)
        ranges = run.ranges()
        # nsys may lose the last event of a child that leaves by os._exit; a journal tells then, and the exit code is 3.
        right = len(ranges) == 3 and sum(ranges.values()) >= 311
        yield right, f"{script}.py --tracer nsys", f"exit {run.done.returncode}, {ranges}", "313 ranges in 3 pids"
    for tracer in ("nsys", "embedded"):
        run = Launched(tmp / f"forkmix-{tracer}", "forkmix", tracer=tracer)
        journals = [json.loads(path.read_text()) for path in run.folder.glob("recorder*.json")]
        counted = {one["pid"]: sum(record["ranges"] for record in one["recorders"]) for one in journals}
        there = run.ranges()
        lost = sum(max(count - there.get(pid, 0), 0) for pid, count in counted.items())
        right = (run.done.returncode == 3) == (lost > 0) and ("trace-missing-ranges" in run.findings()) == (lost > 0)
        yield right, f"forkmix.py --tracer {tracer}", f"exit {run.done.returncode}, {lost} lost", "0 lost, or exit 3"


def names(tmp: Path) -> Iterator[Row]:
    run = Launched(tmp / "collide", "collide")
    batch = run.result()["mean_data"]["toy"]["pipeline"]["batch"]  # type: ignore[index]
    times = {key: round(batch[key]["cpu_time"]) for key in ("tile", "tile (range)", "tile_0 (range)") if key in batch}
    right = list(times) == ["tile", "tile (range)", "tile_0 (range)"] and times["tile (range)"] >= 20
    yield right, "collide.py", str(times), "the batch of 1 ms, the stages of 20 and 10 ms"
    run = Launched(tmp / "p50", "stage_called_p50")
    rows = [text for text in run.done.stdout.splitlines() if text.strip().startswith(("detector/batch", "p50"))]
    yield len(rows) == 2, "stage_called_p50.py", f"{len(rows)} rows", "rows of the batch and of its stage p50"
    for script, stage in (("stage_in_thread_pool", "decode"), ("stage_in_gather", "fetch")):
        run = Launched(tmp / script, script)
        stages = {one["path"][-1]: one for one in run.result()["outside_batches"]}  # type: ignore[attr-defined]
        found = stages.get(stage, {"count": 0, "cpu_time": {"total": 0}})
        right = found["count"] == 80 and found["cpu_time"]["total"] > 300 and stage in run.done.stdout
        yield right, f"{script}.py", run.line(stage), "80 times, over 300 ms, in the table and in the files"
    run = Launched(tmp / "two", "two_recorders_table")
    rows = [run.line(name) for name in ("detector/", "classifier/")]
    yield "no line" not in rows, "two_recorders_table.py", str(rows), "rows name their recorder"
    run = Launched(tmp / "misnested", "misnested_table")
    rows = [line for line in run.done.stdout.splitlines() if line[:1] == " " and ("classi" in line or "detect" in line)]
    indents = [len(line) - len(line.lstrip()) for line in rows]
    yield len(set(indents)) == 1, "misnested_table.py", f"indents {indents}", "neither batch is in the other"


def depth(tmp: Path) -> Iterator[Row]:
    for kind, count in (
        ("deep", 5000), ("deepsame", 5000), ("deepbatch", 2000), ("distinct", 20_000), ("batches", 20_000),
    ):  # fmt: skip
        run = Launched(tmp / f"{kind}", "deep", kind, str(count))
        size = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file()) / 1e6
        out = f"exit {run.done.returncode}, {run.cpu_s:.0f} s, up to {run.megabytes:.0f} MB, {size:.0f} MB on disk"
        right = run.done.returncode == 0 and run.megabytes < 600 and size < 250
        yield right, f"deep.py {kind} {count}", out, "seconds, hundreds of MB"
    run = Launched(tmp / "unbal", "unbal_nvtx", "6000")
    out = f"exit {run.done.returncode}, {run.cpu_s:.0f} s, up to {run.megabytes:.0f} MB, {run.findings()}"
    yield run.done.returncode == 3 and "range-never-closed" in run.findings(), "unbal_nvtx.py 6000", out, "exit 3"


CASES: tuple[Callable[[Path], Iterator[Row]], ...] = (forks, names, depth)


def main() -> int:
    bad = 0
    sys.path[:0] = PYTHON_PATH
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            for right, row, out, wanted in case(Path(folder)):
                bad += not right
                print(f"{'ok ' if right else 'BAD'}  {row}  {out}  (right: {wanted})", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
