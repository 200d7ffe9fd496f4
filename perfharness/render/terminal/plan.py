"""Print what a launch will do."""

from __future__ import annotations

import shlex

from rich.console import Console

from perfharness.render.terminal.console import say
from perfharness_launcher.plan import LaunchPlan, explaining_pass
from perfharness_launcher.process import cpu_list, planned_command


def headline(plan: LaunchPlan) -> str:
    """Say what is launched, in two lines."""
    count = len(plan.processes)
    where = ", ".join(f"GPU {gpu.index}{' (MIG)' if gpu.mig else ''} {gpu.name or ''}".strip() for gpu in plan.gpus)
    where += f", {plan.options.gpus_per_process} each" if plan.options.gpus_per_process > 1 else ""
    passes = " (profiling pass)" if plan.explaining else "; then a profiling pass" if plan.options.explain else ""
    tracer = f"{plan.tracer.kind} {plan.tracer.version or ''}".strip()
    return (
        f"{count} process{'es' if count != 1 else ''} of {plan.options.script} on {where or 'the CPU'}{passes}\n"
        f"tracer: {tracer}{f' ({plan.tracer.reason})' if plan.tracer.reason else ''}"
    )


def print_plan(plan: LaunchPlan, console: Console) -> None:
    """Print the plan as shell commands, with that of the profiling pass."""
    _print_pass(plan, console)
    if plan.options.explain:
        say(console, "")
        _print_pass(explaining_pass(plan), console)


def _print_pass(plan: LaunchPlan, console: Console) -> None:
    options, run_dir = plan.options, plan.options.output_dir.absolute()
    lines = [headline(plan), f"output: {run_dir}"]
    if options.barrier and len(plan.processes) > 1:
        lines.append(f"start barrier: at the first measured batch, for at most {options.barrier_timeout_s:g} s")
    if options.cool_down_c is not None:
        lines.append(f"cool-down: to {options.cool_down_c:g} °C, for at most {options.cool_down_limit_s:g} s")
    if options.maximize_clocks:
        lines.append("GPU clocks: locked at maximum during the run")
    is_bound = any(spec.cpus for spec in plan.processes)
    lines.append(f"CPUs: {'near the GPUs' if is_bound else 'not bound'} ({plan.placement_reason})")
    for spec in plan.processes:
        lines.append(f"\n{spec.folder}" + "".join(f"  GPU {gpu.uuid}" for gpu in spec.gpus))
        lines += [f"  {name}={shlex.quote(value)}" for name, value in sorted(spec.environment_in(run_dir).items())]
        if spec.cpus:
            lines.append(f"  CPUs {cpu_list(spec.cpus)}: near its GPUs")
        lines.append(f"  {shlex.join(planned_command(spec, plan.nsys, run_dir))}")
    for line in lines:
        say(console, line)
