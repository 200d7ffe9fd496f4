"""Plan of a launch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from perfharness.cluster import find_node
from perfharness.render.blocks import Block, Paragraph
from perfharness_launcher.plan import LaunchPlan, explaining_pass
from perfharness_launcher.process import cpu_list, planned_command


def headline(plan: LaunchPlan) -> str:
    """One-line summary of a launch."""
    count = len(plan.processes)
    where = ", ".join(f"GPU {gpu.index}{' (MIG)' if gpu.mig else ''} {gpu.name or ''}".strip() for gpu in plan.gpus)
    where += f", {plan.options.gpus_per_process} each" if plan.options.gpus_per_process > 1 else ""
    passes = " (profiling pass)" if plan.explaining else "; then a profiling pass" if plan.options.explain else ""
    processes = f"{count} process{'es' if count != 1 else ''} of {plan.options.script} on {where or 'the CPU'}"
    return f"{processes}, tracer {plan.tracer.kind}{passes}"


def plan_view(plan: LaunchPlan) -> list[Block]:
    """Plan as shell commands, profiling pass included."""
    lines = list(_lines(plan))
    if plan.options.explain:
        lines += ["", *_lines(explaining_pass(plan))]
    return [Paragraph(line) for line in lines]


def _lines(plan: LaunchPlan) -> Iterator[str]:
    options, run_dir = plan.options, plan.options.output_dir.absolute()
    yield headline(plan)
    reason = f" ({plan.tracer.reason})" if plan.tracer.reason else ""
    yield f"tracer: {plan.tracer.kind} {plan.tracer.version or ''}".strip() + reason
    yield f"output: {run_dir}"
    if options.nodes:
        node = find_node(os.environ)
        yield f"node {node.rank} of {node.count}"
    if options.barrier and (len(plan.processes) > 1 or options.nodes):
        yield f"start barrier: at the first measured batch, for at most {options.barrier_timeout_s:g} s"
    if options.cool_down_c is not None:
        yield f"cool-down: to {options.cool_down_c:g} °C, for at most {options.cool_down_limit_s:g} s"
    if options.maximize_clocks:
        yield "GPU clocks: locked at maximum during the run"
    is_bound = any(spec.cpus for spec in plan.processes)
    yield f"CPUs: {'near the GPUs' if is_bound else 'not bound'} ({plan.placement_reason})"
    for spec in plan.processes:
        yield f"\n{spec.folder}" + "".join(f"  GPU {gpu.uuid}" for gpu in spec.gpus)
        for name, value in sorted(spec.environment_in(run_dir).items()):
            yield f"  {name}={shlex.quote(value)}"
        if spec.cpus:
            yield f"  CPUs {cpu_list(spec.cpus)}: near its GPUs"
        yield f"  {shlex.join(planned_command(spec, plan.nsys, run_dir))}"
