"""Find launches whose own threads compete for the CPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import ProcessRecord
from perfharness_launcher.plan import LaunchPlan

CPU_CONTENTION = "cpu-contention"
LEAST_READY_SHARE = 0.2
"""Of the time in which threads wanted a CPU. Below, the loss is within what launches differ by."""

TOLERANCE = 0.25
"""By how much the number of runnable threads may exceed a whole number."""

TIMES = "\N{MULTIPLICATION SIGN}"

LIBRARIES = {
    "onnxruntime": "ONNX Runtime: intra_op_num_threads={}",
    "torch": "PyTorch: torch.set_num_threads({}) or OMP_NUM_THREADS={}",
}
"""How to set the number of threads, by the library that starts them."""


def contention_findings(plan: LaunchPlan, processes: Sequence[ProcessRecord]) -> list[Finding]:
    """Report that threads were ready without a CPU because the launch has more of them than CPUs."""
    sampled = [one for one in processes if one.cpu_ready_s is not None and one.cpu_run_s is not None]
    ready_s, run_s = sum(one.cpu_ready_s or 0.0 for one in sampled), sum(one.cpu_run_s or 0.0 for one in sampled)
    if not sampled or ready_s < LEAST_READY_SHARE * (ready_s + run_s):
        return []
    count = len(sampled)
    placed = {one.placement.cpus if one.placement else None: one.cpus_allowed or 0 for one in sampled}
    cpus = sum(placed.values())
    threads = max(1, math.ceil(sum(one.runnable_threads or 0.0 for one in sampled) / count - TOLERANCE))
    if not 0 < cpus < count * threads:
        return []  # other programs take the CPUs
    counts = f"{_number(count, 'process', 'processes')} {TIMES} {_number(threads, 'thread', 'threads')}"
    share = f"ready without a CPU {100 * ready_s / (ready_s + run_s):.0f} % of the time"
    message = f"CPU contention: {counts} on {_number(cpus, 'CPU', 'CPUs')}; {share}."
    hint = f"Try {' or '.join(_steps(plan, count, threads, cpus))}."
    return [Finding(CPU_CONTENTION, Severity.WARNING, message, hint)]


def _steps(plan: LaunchPlan, count: int, threads: int, cpus: int) -> list[str]:
    steps = []
    each = max(1, cpus // count)
    if each < threads:
        ways = [LIBRARIES[name] for name in _libraries(plan)] or ["OMP_NUM_THREADS={}"]
        how = "; ".join(ways).replace("{}", str(each))
        steps.append(f"{'one thread' if each == 1 else f'{each} threads'} per process ({how})")
    fewer = max(1, cpus // threads)
    if len(plan.gpus) <= 1 and fewer < count:
        steps.append(f"-np {fewer}")
    return steps or ["fewer processes"]


def _libraries(plan: LaunchPlan) -> list[str]:
    """The libraries that the script names, else those that are installed."""
    script = plan.facts.program.script
    path = None if script is None or script.is_module else Path(script.target)
    text = path.read_text(errors="replace") if path is not None and path.is_file() else ""
    named = [name for name in LIBRARIES if re.search(rf"\b{name}\b", text)]
    return named or [name for name in LIBRARIES if any(one.startswith(name) for one in plan.facts.environment.packages)]


def _number(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"
