"""GPU work of the children of a launched process: each child's own, the same number of kernels under both tracers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from perfharness import open_run
from tests.integration.launches import environment, run_to_the_end

pytestmark = pytest.mark.gpu

PRODUCTS = 7

SCRIPT = f"""
import multiprocessing as mp, os, sys, time
import torch
from perfharness import PerfRecorder

perf = PerfRecorder("app")


def work(products):
    matrix = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    with perf.batch(0, total_items=1):
        for _ in range(products):
            matrix @ matrix
        torch.cuda.synchronize()


if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    workers = [context.Process(target=work, args=({PRODUCTS} * number,)) for number in (1, 2)]
    [one.start() for one in workers], [one.join() for one in workers]
    if sys.argv[1] == "spawn":
        work({PRODUCTS} * 3)  # in a forked child CUDA works only where its parent has not used it
    perf.finalize()
"""


def kernels(folder: Path, method: str, tracer: str) -> tuple[int, list[int], set[str]]:
    """Exit code, kernels inside the batch of each process, and codes of findings."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    out = folder / f"{method}_{tracer}"
    done = run_to_the_end(("-w", "0", "--tracer", tracer, "-o", out, script, method), environment())
    counts = []
    for process in open_run(out).processes:
        rows = process.table("kernels").to_pylist()
        counts.append(sum(row["batch_index"] == 0 for row in rows))
        assert process.measured is not None
        assert process.measured.gpus
    mean = json.loads((out / "benchmark_mean.json").read_text())
    return done.returncode, sorted(counts), {finding["code"] for finding in mean["meta"]["findings"]}


TRACERS = [
    "embedded",
    pytest.param("nsys", marks=pytest.mark.skipif(shutil.which("nsys") is None, reason="there is no nsys")),
]


@pytest.mark.parametrize("tracer", TRACERS)
def test_kernels_of_spawned_workers(tmp_path: Path, tracer: str) -> None:
    code, counts, codes = kernels(tmp_path, "spawn", tracer)
    assert code == 0, codes
    assert counts == [PRODUCTS, 2 * PRODUCTS, 3 * PRODUCTS]


@pytest.mark.parametrize("tracer", TRACERS)
def test_kernels_of_forked_workers_are_there_or_said_to_be_missing(tmp_path: Path, tracer: str) -> None:
    code, counts, codes = kernels(tmp_path, "fork", tracer)
    if counts != [PRODUCTS, 2 * PRODUCTS]:
        assert code == 3 or codes & {"gpu-not-traced", "tracer-diagnostic", "gpu-work-not-traced"}, (counts, codes)
