"""GPU work of the children of a launched process: each child's own, the same number of kernels under both tracers."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from perfharness import open_run
from tests.integration.launches import environment, run_to_the_end

pytestmark = pytest.mark.gpu

PRODUCTS = 7
TIMEOUT_S = 30
STACKS_S = 20
"""A process that still runs then has its stacks in stderr.log."""

SCRIPT = f"""
import faulthandler, multiprocessing as mp, os, sys, time
import torch
from perfharness import PerfRecorder

perf = PerfRecorder("app")


def work(products):
    faulthandler.dump_traceback_later({STACKS_S})
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


def kernels(folder: Path, method: str, tracer: str) -> tuple[int, list[int], dict[str, list[str]]]:
    """Exit code, kernels inside the batch of each process, and processes and messages of findings by their code.

    All that is known of the launch is printed, for one that fails.
    """
    script = folder / "script.py"
    script.write_text(SCRIPT)
    out = folder / f"{method}_{tracer}"
    launch = ("--timeout", TIMEOUT_S, "-w", "0", "--tracer", tracer, "-o", out, script, method)
    try:
        done = run_to_the_end(launch, environment(), timeout_s=3 * TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        print(error.stdout, error.stderr, sep="\n")
        raise
    else:
        print(done.returncode, done.stdout, done.stderr, sep="\n")
    finally:
        left = folder.rglob("*")
        print(*(f"{path.relative_to(folder)}: {path.stat().st_size}" for path in left if path.is_file()), sep="\n")
        for pattern in ("stderr.log", "tracer.log", "recorder*.json", "manifest.json"):
            for path in out.rglob(pattern):
                print(f"--- {path.relative_to(folder)}", path.read_text(errors="replace"), sep="\n")
    counts = []
    for process in open_run(out).processes:
        rows = process.table("kernels").to_pylist()
        counts.append(sum(row["batch_index"] == 0 for row in rows))
        assert process.measured is not None
        print(process.name, process.measured, counts[-1])
    mean = json.loads((out / "benchmark_mean.json").read_text())
    findings: dict[str, list[str]] = {}
    for finding in mean["meta"]["findings"]:
        findings.setdefault(finding["code"], []).append(f"{finding.get('process')}: {finding['message']}")
    print(json.dumps(findings, indent=1))
    return done.returncode, sorted(counts), findings


TRACERS = [
    "embedded",
    pytest.param("nsys", marks=pytest.mark.skipif(shutil.which("nsys") is None, reason="there is no nsys")),
]


@pytest.mark.parametrize("tracer", TRACERS)
def test_kernels_of_spawned_workers(tmp_path: Path, tracer: str) -> None:
    code, counts, findings = kernels(tmp_path, "spawn", tracer)
    assert code == 0, findings
    assert counts == [PRODUCTS, 2 * PRODUCTS, 3 * PRODUCTS]


@pytest.mark.parametrize("tracer", TRACERS)
def test_kernels_of_forked_workers_are_there_or_said_to_be_missing(tmp_path: Path, tracer: str) -> None:
    code, counts, findings = kernels(tmp_path, "fork", tracer)
    if counts != [PRODUCTS, 2 * PRODUCTS]:
        assert code == 3, (counts, findings)
        assert findings.keys() & {"gpu-not-traced", "trace-incomplete"}, (counts, findings)
