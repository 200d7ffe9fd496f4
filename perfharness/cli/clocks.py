"""`perfharness clocks max|restore|status`: lock GPU clocks at their maximum, or restore the driver's defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK, split_commas
from perfharness.cli.support.output import Output
from perfharness.cli.support.settings import with_settings
from perfharness.errors import ClockError
from perfharness.model.conditions import ClockStep
from perfharness.model.machines import gpu_name
from perfharness.model.settings import option
from perfharness.telemetry.clocks import (
    CLOCK_SETTINGS,
    RESTORE_COMMAND,
    maximize,
    restore,
    restore_defaults,
    settings_left,
    step_lines,
    value_text,
)
from perfharness.telemetry.nvml import Device, open_nvml
from perfharness_launcher.clocks import chosen_gpus, left_text
from perfharness_launcher.interrupts import noting_interrupts


class Gpus(BaseModel):
    """Options of `clocks restore`."""

    gpus: str | None = option("UUIDs or indices of the GPUs.", "", "GPU,…")


class ChosenGpus(Gpus):
    """Options of `clocks max`."""

    num_gpus: int = option("Number of GPUs.", flags="-ng --num-gpus", default=1)
    gpu_offset: int = option("Index of the first GPU.", flags="-go --gpu-offset", default=0)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    summary = "Lock GPU clocks at their maximum, or restore the driver's defaults."
    verb = typer.Typer(help=summary, context_settings=CONTEXT, rich_markup_mode=None)
    verb.command("max", cls=GroupedCommand)(maximize_verb)
    verb.command("restore", cls=GroupedCommand)(restore_verb)
    verb.command("status", cls=GroupedCommand)(status)
    app.add_typer(verb, name="clocks")


@with_settings()
def maximize_verb(*, chosen: ChosenGpus) -> None:
    """Lock the clocks at their maximum.

    Sets persistence mode and the largest power limit, and locks graphics and memory clocks. They stay locked until
    `clocks restore`, or until a launch with -m ends. Needs root.

    Exit codes: 0 all set; 1 nothing set; 3 some refused.
    """
    uuids = chosen_gpus(split_commas(chosen.gpus), chosen.num_gpus, chosen.gpu_offset)
    steps: list[ClockStep] = []
    with noting_interrupts() as interrupts, open_nvml() as nvml:
        try:
            maximize(nvml, uuids, steps, lambda: bool(interrupts))
        except BaseException:
            restore(nvml, steps)
            raise
        if interrupts:
            restore(nvml, steps)
    output = Output()
    for line in step_lines(steps):
        output.line(line)
    if interrupts:
        output.message("interrupted")
        raise typer.Exit(EXIT_FAILED)
    if any(step.answer == "set" for step in steps):
        output.line(f"To undo: {RESTORE_COMMAND}")
    raise typer.Exit(_code(steps))


def _code(steps: Sequence[ClockStep]) -> int:
    if not any(step.answer == "refused" for step in steps):
        return EXIT_OK
    return EXIT_CHECK_FAILED if any(step.answer in ("set", "already") for step in steps) else EXIT_FAILED


@with_settings()
def restore_verb(*, asked: Gpus) -> None:
    """Restore the driver's default clocks on all GPUs, or on those of --gpus.

    Unlocks graphics and memory clocks and sets the default power limit and application clocks, whoever changed them.
    Persistence mode stays as it is. Needs root.

    Exit codes: 0 restored; 1 something could not be restored.
    """
    uuids = chosen_gpus(split_commas(asked.gpus), 1, 0) if asked.gpus else None
    with noting_interrupts(), open_nvml() as nvml:
        steps = restore_defaults([gpu for gpu in nvml.gpus if uuids is None or gpu.uuid in uuids])
        if not nvml.gpus:
            raise ClockError(f"no GPU found ({nvml.opened.reason})")
    output = Output()
    for line in step_lines(steps):
        output.line(line)
    raise typer.Exit(EXIT_FAILED if any(step.restored == "failed" for step in steps) else EXIT_OK)


@with_settings()
def status(*, output: Output) -> None:
    """Show the clocks, and settings that a killed launch may have left."""
    with open_nvml() as nvml:
        gpus = [_gpu_status(gpu) for gpu in nvml.gpus]
    if output.is_json:
        output.json_document({"gpus": gpus})
        return
    if not nvml.opened.ok:
        output.line(f"no GPU: {nvml.opened.reason}")
    for gpu in gpus:
        _print_gpu(gpu, output)


def _gpu_status(gpu: Device) -> dict[str, Any]:
    settings = {}
    for setting in CLOCK_SETTINGS:
        now = setting.read(gpu)
        reason = "NVML does not report locks" if now.ok and now.value is None else now.reason
        settings[setting.name] = {"now": now.value, "maximum": setting.maximum(gpu).value, "reason": reason}
    clocks = {
        name: gpu.ask("nvmlDeviceGetClockInfo", kind).value
        for name, kind in (("graphics_mhz", gpu.nvml.NVML_CLOCK_GRAPHICS), ("memory_mhz", gpu.nvml.NVML_CLOCK_MEM))
    }
    names = {"uuid": gpu.uuid, "index": gpu.index}
    return {**names, "clocks_now": clocks, "settings": settings, "left": settings_left(gpu)}


def _print_gpu(gpu: dict[str, Any], output: Output) -> None:
    now = gpu["clocks_now"]
    output.line(f"GPU {gpu['index']} {gpu['uuid']}: {now['graphics_mhz']} MHz, memory {now['memory_mhz']} MHz now")
    for setting in CLOCK_SETTINGS:
        found = gpu["settings"][setting.name]
        value = value_text(setting.name, found["now"]) + ("" if found["now"] else f" ({found['reason']})")
        output.line(f"  {setting.title}: {value}; maximum {value_text(setting.name, found['maximum'])}")
    if gpu["left"]:
        text = left_text(gpu_name(gpu["index"], gpu["uuid"]), gpu["left"])
        output.line(f"{text}. To undo: {RESTORE_COMMAND}")
