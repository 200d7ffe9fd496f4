"""A launch before its start: its headline, and the plan of a dry run."""

from __future__ import annotations

import shlex

from rich.console import Console

from perfharness.render.terminal.console import say
from perfharness_launcher.plan.launch_plan import LaunchPlan, explaining_pass
from perfharness_launcher.process import cpu_list, planned_command


def headline(plan: LaunchPlan) -> str:
    """The launch in one or two lines."""
    count = len(plan.processes)
    where = ", ".join(f"GPU {gpu.index}{' (MIG)' if gpu.mig else ''} {gpu.name or ''}".strip() for gpu in plan.gpus)
    where += f", {plan.options.gpus_per_process} each" if plan.options.gpus_per_process > 1 else ""
    tracer = f"{plan.tracer.kind} {plan.tracer.version or ''}".strip()
    passes = ", then the same again to explain the times" if plan.options.explain else ""
    passes = ", explaining pass" if plan.explaining else passes
    return (
        f"{count} process{'es' if count != 1 else ''} of {plan.options.script} on {where or 'the CPU'}{passes}\n"
        f"tracer: {tracer}{f' ({plan.tracer.reason})' if plan.tracer.reason else ''}"
    )


def print_plan(plan: LaunchPlan, console: Console) -> None:
    """Print the plan as shell commands, that of the explaining pass included."""
    _print_pass(plan, console)
    if plan.options.explain:
        say(console, "\nthen, to explain the times:")
        _print_pass(explaining_pass(plan), console)


def _print_pass(plan: LaunchPlan, console: Console) -> None:
    run_dir = plan.options.output_dir.absolute()
    lines = [headline(plan), f"output: {run_dir}", f"start barrier: {_barrier_line(plan)}"]
    lines.append(f"CPUs: --cpu-bind {plan.options.cpu_bind}, {plan.placement_reason}")
    if plan.options.cool_down_c is not None:
        lines.append(f"begins at {plan.options.cool_down_c:g} °C, or after {plan.options.cool_down_limit_s:g} s")
    if plan.options.maximize_clocks:
        lines.append("GPU clocks: at their maximum while it runs, then as before")
    for spec in plan.processes:
        lines.append(f"\n{spec.folder}" + "".join(f"  GPU {gpu.uuid}" for gpu in spec.gpus))
        lines += [f"  {name}={shlex.quote(value)}" for name, value in sorted(spec.environment_in(run_dir).items())]
        if spec.placement.cpus:
            lines.append(f"  CPUs {cpu_list(spec.placement.cpus)}: {spec.placement.how}")
        lines.append(f"  {shlex.join(planned_command(spec, plan.nsys, run_dir))}")
    for line in lines:
        say(console, line)


def _barrier_line(plan: LaunchPlan) -> str:
    if len(plan.processes) < 2:
        return "none, there is one process"
    if not plan.options.barrier:
        return "none (--no-barrier)"
    return f"before the first measured batch, for at most {plan.options.barrier_timeout_s:g} s"
