"""`perfharness clocks max|restore|status`: GPU clocks at their maximum, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import (
    CONTEXT,
    EXIT_CHECK_FAILED,
    EXIT_FAILED,
    EXIT_OK,
    split_commas,
)
from perfharness.cli.support.settings import with_settings
from perfharness.errors import ClockError
from perfharness.model.clocks import ClockStep
from perfharness.model.settings import Option
from perfharness.model.text import safe
from perfharness.telemetry.clock_files import state_dirs
from perfharness.telemetry.clock_settings import CLOCK_SETTINGS, step_lines, value_text
from perfharness.telemetry.clocks import (
    RESTORE_COMMAND,
    ClockOwner,
    ClockState,
    GpuClocks,
    Restored,
    changed_gpus,
    restore,
)
from perfharness.telemetry.nvml import Device, open_nvml
from perfharness_launcher.gpus import choose_gpus, find_gpus
from perfharness_launcher.interrupts import noting_interrupts


class ChosenGpus(BaseModel):
    """Whose clocks are set."""

    num_gpus: Annotated[int, Option(("-ng", "--num-gpus"), "", "How many GPUs.")] = 1
    gpu_offset: Annotated[int, Option(("-go", "--gpu-offset"), "", "Number of the first GPU.")] = 0
    gpus: Annotated[str | None, Option(("--gpus",), "", "The GPUs: UUID or INDEX.", metavar="GPU,…")] = None


class RestoreSettings(BaseModel):
    """What is restored."""

    force: Annotated[bool, Option(("--force",), "", "Also what launches that still run have set.")] = False


class StatusSettings(BaseModel):
    """How it is printed."""

    json_format: Annotated[bool, Option(("--json",), "", "Print JSON.")] = False


def _echo(text: str, *, err: bool = False) -> None:
    typer.echo(safe(text), err=err)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    summary = "GPU clocks at their maximum, and back to what they were."
    verb = typer.Typer(help=summary, context_settings=CONTEXT, rich_markup_mode=None)
    verb.command("max", cls=GroupedCommand)(maximize)
    verb.command("restore", cls=GroupedCommand)(restore_verb)
    verb.command("status", cls=GroupedCommand)(status)
    app.add_typer(verb, name="clocks")


@with_settings()
def maximize(*, chosen: ChosenGpus) -> None:
    """Lock the clocks at their maximum.

    Persistence mode, the largest power limit, graphics and memory clocks locked at their maxima; until restored. What
    was there before is kept on disk first. Locks cannot be read back from the driver: one that another program had set
    before is released by `clocks restore`, not set again. Takes root.

    Exit codes: 0 all set; 3 some refused; 1 nothing set.
    """
    uuids = _choose(chosen)
    with noting_interrupts() as interrupts, open_nvml() as nvml:
        owner = ClockOwner(nvml, state_dirs()[0], lambda: bool(interrupts))
        steps = owner.maximize(uuids)
        for line in step_lines(steps):
            _echo(line)
        if interrupts:
            _print_restored(owner.restore())
            _echo("interrupted", err=True)
            raise typer.Exit(EXIT_FAILED)
        owner.hold()
    if any(step.answer == "set" for step in steps):
        _echo(f"until `{RESTORE_COMMAND}`")
    raise typer.Exit(_code(steps))


def _choose(chosen: ChosenGpus) -> list[str]:
    """UUIDs of the GPUs chosen, as for a launch."""
    facts = find_gpus()
    if not facts.gpus:
        raise ClockError(f"there is no GPU whose clocks could be set ({facts.problem})")
    gpus = choose_gpus(
        facts.gpus,
        names=split_commas(chosen.gpus),
        number=chosen.num_gpus,
        offset=chosen.gpu_offset,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    return [gpu.uuid for gpu in gpus]


def _code(steps: Sequence[ClockStep]) -> int:
    if not any(step.answer == "refused" for step in steps):
        return EXIT_OK
    return EXIT_CHECK_FAILED if any(step.answer in ("set", "already") for step in steps) else EXIT_FAILED


@with_settings()
def restore_verb(*, asked: RestoreSettings) -> None:
    """Set the clocks back.

    To what was there before `clocks max`, or before a launch that was killed. Only what perfharness changed, and only
    where nothing else has changed it since.

    Exit codes: 0 done, or nothing to do; 1 something could not be restored.
    """
    folders = [folder for folder in state_dirs() if folder.exists()]
    writable = [folder for folder in folders if os.access(folder, os.W_OK)]
    with noting_interrupts(), open_nvml() as nvml:
        results = restore(nvml, writable, force=asked.force)
    _print_restored(results)
    if of_others := changed_gpus([folder for folder in folders if folder not in writable]):
        names = ", ".join(str(clocks.path) for clocks in of_others)
        raise ClockError(f"{names} is another user's; run `{RESTORE_COMMAND}` as that user, or as root")
    if not results:
        _echo("nothing to restore")
    raise typer.Exit(EXIT_FAILED if any(item.outcome == "failed" for item in results) else EXIT_OK)


def _print_restored(results: Sequence[Restored]) -> None:
    for item in results:
        _echo(str(item), err=item.outcome == "failed")


@with_settings()
def status(*, asked: StatusSettings) -> None:
    """Show the clocks.

    As they are now, what perfharness has changed about them, and for whom. Changes nothing.
    """
    with open_nvml() as nvml:
        gpus = [_gpu_status(gpu) for gpu in nvml.gpus]
        states = [(clocks, state) for clocks in changed_gpus(state_dirs()) if (state := clocks.read())]
        if asked.json_format:
            _echo(json.dumps({"gpus": gpus, "states": [_state(*one) for one in states]}, indent=2))
            return
        if not nvml.opened.ok:
            _echo(f"no GPU: {nvml.opened.reason}")
        for gpu in gpus:
            _print_gpu(gpu)
        for clocks, state in states:
            _print_state(clocks, state)
        if not states:
            _echo("perfharness has changed nothing")


def _gpu_status(gpu: Device) -> dict[str, Any]:
    settings = {}
    for setting in CLOCK_SETTINGS:
        now = setting.read(gpu) if setting.read else None
        largest = setting.maximum(gpu)
        settings[setting.name] = {
            "now": now.value if now else None,
            "maximum": largest.value,
            "reason": now.reason if now else "NVML does not report locks",
        }
    clocks = {
        name: gpu.ask("nvmlDeviceGetClockInfo", kind).value
        for name, kind in (("graphics_mhz", gpu.nvml.NVML_CLOCK_GRAPHICS), ("memory_mhz", gpu.nvml.NVML_CLOCK_MEM))
    }
    return {"uuid": gpu.uuid, "index": gpu.index, "clocks_now": clocks, "settings": settings}


def _print_gpu(gpu: dict[str, Any]) -> None:
    now = gpu["clocks_now"]
    _echo(f"GPU {gpu['index']} {gpu['uuid']}: {now['graphics_mhz']} MHz, memory {now['memory_mhz']} MHz now")
    for setting in CLOCK_SETTINGS:
        found = gpu["settings"][setting.name]
        value = value_text(setting.name, found["now"]) + ("" if found["now"] else f" ({found['reason']})")
        _echo(f"  {setting.title}: {value}; maximum {value_text(setting.name, found['maximum'])}")


def _owner(clocks: GpuClocks, state: ClockState) -> str | None:
    """`launch` or `hold`; None where a killed run left the changes."""
    if state.held:
        return "hold"
    return "launch" if clocks.is_owned() else None


def _state(clocks: GpuClocks, state: ClockState) -> dict[str, Any]:
    head = {"file": str(clocks.path), "gpu_uuid": clocks.gpu_uuid, "owner": _owner(clocks, state)}
    return {**head, **state.model_dump(exclude={"held"})}


def _print_state(clocks: GpuClocks, state: ClockState) -> None:
    for change in state.changes:
        what = f"GPU {clocks.gpu_uuid}: {change.setting}: before {value_text(change.setting, change.before)}"
        _echo(f"changed: {what}, set to {value_text(change.setting, change.wanted)}")
    who = {"hold": "`clocks max`", "launch": f"a launch (pid {state.pid})"}
    _echo(f"for: {who.get(_owner(clocks, state) or '', 'a run that was killed')}, since {state.since}")
    if line := clocks.unrestored():
        _echo(line)


def notice() -> str | None:
    """What a killed run has left behind, in one line, for every other verb to print; None where there is nothing."""
    try:
        return next((line for clocks in changed_gpus(state_dirs()) if (line := clocks.unrestored())), None)
    except ClockError as error:
        return str(error)
