"""Energy, clocks and memory for people: one line each, and a table of the stages' energy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console

from perfharness.model.result import Tree, last_key
from perfharness.render.terminal.console import Column, fixed, print_table, say
from perfharness.render.text import NOT_MEASURED

MIB = 1 << 20


def print_machine(console: Console, tree: Tree) -> None:
    """Print a run's telemetry results; nothing where the run was not sampled or has no GPU."""
    metrics = tree.get("gpu_metrics", {}).get("gpus", [])
    if "energy" in tree and tree["energy"]["gpus"]:
        say(console, _energy_line(tree["energy"]))
        for gpu in tree["energy"]["gpus"]:
            index = next((one["gpu_index"] for one in metrics if one["uuid"] == gpu["uuid"]), None)
            whose = gpu_name(index, gpu["uuid"])
            if any(one["energy_j"] for one in gpu["stages"]):
                say(console, f"Energy by stage, {whose}")
                print_stage_energy(console, gpu["stages"])
            elif reason := gpu["stages_reason"] or next(
                (one["reason"] for one in gpu["stages"] if one["reason"]), None
            ):
                say(console, f"Energy by stage, {whose}: not measured ({reason})")
    for gpu in metrics:
        if gpu["processes"]:
            say(console, _gpu_line(gpu))


def _energy_line(energy: Tree) -> str:
    if energy["energy_j"] is None:
        reason = f"of the measured window not known ({energy['reason'] or 'see the results'})"
        if energy["energy_run_j"] is None:
            return f"Energy: {reason}"
        return f"Energy: {energy['energy_run_j']:.1f} J from the first process's start to the last one's end; {reason}"
    parts = [f"{energy['energy_j']:.1f} ± {energy['error_j']:.1f} J measured"]
    per_item = energy["energy_per_item_j"]
    if energy["energy_per_batch_j"] is not None:
        parts.append(f"{energy['energy_per_batch_j']:.4g} J/batch")
    if per_item is not None:
        parts.append(f"{per_item:.4g} J/item")
    idle = [gpu["idle"]["power_mean_w"] for gpu in energy["gpus"]]
    idle_texts = [f"{watts:.1f} W" for watts in idle if watts is not None]
    parts.append(f"idle before the run {', '.join(idle_texts)}" if idle_texts else "idle power not known")
    return f"Energy: {'; '.join(parts)}"


def print_stage_energy(console: Console, stages: list[Tree]) -> None:
    """Print stages with their energy and its bounds."""
    columns = [
        Column("stage", is_text=True), Column("busy s", drop=3), Column("J"), Column("from to", drop=1),
        Column("W", drop=4), Column("J/batch", drop=2),
    ]  # fmt: skip
    names = _short_names([one["stage"] for one in stages])
    rows = [
        [
            names[one["stage"]], f"{one['busy_s']:.3f}", fixed(one["energy_j"], 1), _interval(one),
            fixed(one["power_mean_w"], 1), fixed(one["energy_per_batch_j"]),
        ]
        for one in stages if one["busy_s"]
    ]  # fmt: skip
    print_table(console, columns, rows)


def _interval(one: Tree) -> str:
    if one["energy_j_low"] is None or one["energy_j_high"] is None:
        return NOT_MEASURED
    return f"{one['energy_j_low']:.1f} to {one['energy_j_high']:.1f}"


def _short_names(paths: list[str]) -> dict[str, str]:
    """Each stage's last path component where that is unique, else its whole path."""
    short = {path: last_key(path) for path in paths}
    last = Counter(short[path] for path in paths)
    return {path: name if last[name] == 1 else path for path, name in short.items()}


def _gpu_line(gpu: Tree) -> str:
    return (
        f"{gpu_name(gpu['gpu_index'], gpu['uuid'])}: "
        + (", ".join(_figures_of(gpu)) or "nothing was measured")
        + (" (over the whole run)" if gpu["window"] == "run" else "")
    )


def gpu_name(index: int | None, uuid: str) -> str:
    """`GPU 0`; of one whose index is not known, its UUID."""
    return f"GPU {uuid if index is None else index}"


def _figures_of(gpu: Tree) -> Iterator[str]:
    power = next(
        (gpu["figures"][name] for name in ("power_sample_w", "power_instant_w", "power_average_w")
         if gpu["figures"][name]["mean"] is not None), None,
    )  # fmt: skip
    if power is not None:
        yield f"{power['mean']:.0f} W (up to {power['max']:.0f})"
    if gpu["busy_share"] is not None:
        yield f"busy {gpu['busy_share']:.0%}"
    for name, text in (("sm_clock_mhz", "{:.0f} MHz"), ("temperature_c", "{:.0f} °C")):
        if gpu["figures"][name]["mean"] is not None:
            yield text.format(gpu["figures"][name]["mean"])
    memory = gpu["figures"]["memory_used_bytes"]["max"]
    if memory is not None:
        yield f"memory up to {memory / MIB:.0f} MiB"
    if gpu["throttled_batches"]:
        yield f"{gpu['throttled_batches']} batches throttled"
