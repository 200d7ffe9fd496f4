"""Hold GPU clocks at their maximum during a launch (`-m`) or a `with` block."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from perfharness.errors import ClockError
from perfharness.files import locked
from perfharness.model.conditions import CLOCKS, ClocksRecord, ClockStep
from perfharness.model.findings import Finding, Severity
from perfharness.model.machines import gpu_name
from perfharness.telemetry.clocks import RESTORE_COMMAND, maximum_clocks, settings_left, step_lines
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.conditions import Run
from perfharness_launcher.gpus import choose_gpus, find_gpus

PERMISSION_HINT = "Drop -m. Locking clocks needs root and CAP_SYS_ADMIN; `perfharness doctor` says what is missing."
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def maximized_clocks(run: Run) -> Iterator[None]:
    """Hold the clocks of the run's GPUs at their maximum, then restore them.

    NVML stays open: without persistence mode an idle driver forgets the settings. Raises `ClockError` if another
    launch holds the clocks of one of them.
    """
    uuids = [gpu.uuid for gpu in run.gpus]
    with _locked_gpus(uuids), open_nvml() as nvml, maximum_clocks(nvml, uuids, run.interrupted) as steps:
        yield
    run.findings += _findings(steps, {gpu.uuid: gpu.title for gpu in run.gpus})
    run.records[CLOCKS] = ClocksRecord(steps=steps).model_dump(mode="json")


@contextmanager
def _locked_gpus(uuids: Sequence[str]) -> Iterator[None]:
    """Lock a folder per GPU, because one launch would restore the clocks during another."""
    with ExitStack() as stack:
        for uuid in uuids:
            folder = Path(tempfile.gettempdir()) / f"perfharness-clocks-{uuid}"
            folder.mkdir(exist_ok=True)
            try:
                stack.enter_context(locked(folder))
            except BlockingIOError:
                raise ClockError(
                    f"-m: another launch holds the clocks of GPU {uuid}; wait for it, or drop -m"
                ) from None
        yield


def _findings(steps: Sequence[ClockStep], titles: Mapping[str, str]) -> Iterator[Finding]:
    for line in step_lines([step for step in steps if step.answer == "refused"], titles):
        yield Finding("clocks-refused", Severity.WARNING, line, PERMISSION_HINT)
    for line in step_lines([step for step in steps if step.restored == "failed"], titles):
        yield Finding("clocks-not-restored", Severity.ERROR, line, RESTORE_COMMAND)


@contextmanager
def noted_clocks(run: Run) -> Iterator[None]:
    """Report clock settings of a killed launch or another program on the run's GPUs."""
    if run.gpus:
        with open_nvml() as nvml:
            for device in filter(None, (nvml.device(gpu.uuid) for gpu in run.gpus)):
                if left := settings_left(device):
                    hint = f"`{RESTORE_COMMAND}` restores the driver's defaults."
                    message = left_text(gpu_name(device.index, device.uuid), left)
                    run.findings.append(Finding("clocks-locked", Severity.WARNING, message, hint))
    yield


def left_text(gpu: str, left: Sequence[str]) -> str:
    """Describe settings that this launch did not make."""
    return f"{gpu} has clock settings of a killed launch or another program: {', '.join(left)}"


@contextmanager
def maximize_clocks(gpus: Sequence[str] = (), *, num_gpus: int = 1, gpu_offset: int = 0) -> Iterator[list[ClockStep]]:
    """Hold GPU clocks at their maximum while the block runs, as `perfharness launch -m` does.

    Restore them at the end, also after an exception, Ctrl-C, and (in the main thread) SIGTERM or SIGHUP.

    Args:
        gpus: UUIDs or indices (default: `num_gpus` visible ones from `gpu_offset` on).

    Yields:
        Each setting and NVML's answer. Refused settings stay unchanged.

    Raises:
        ClockError: the machine has no GPU, or a launch holds its clocks.
        UsageError: a GPU does not exist.
    """
    uuids = chosen_gpus(gpus, num_gpus, gpu_offset)
    with _ending_by_exception(), _locked_gpus(uuids), open_nvml() as nvml, maximum_clocks(nvml, uuids) as steps:
        yield steps


def chosen_gpus(names: Sequence[str], number: int, offset: int) -> list[str]:
    """UUIDs of the chosen GPUs, as for a launch. Raises `ClockError` without a GPU, and `UsageError`."""
    facts = find_gpus()
    if not facts.gpus:
        raise ClockError(f"no GPU found ({facts.problem})")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = choose_gpus(facts.gpus, names=names, number=number, offset=offset, visible_devices=visible)
    return [gpu.uuid for gpu in chosen]


@contextmanager
def _ending_by_exception() -> Iterator[None]:
    """Raise `SystemExit` on signals that end the process, so that blocks are left in order."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    with ExitStack() as restoring:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING_SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, end)
                    restoring.callback(signal.signal, number, signal.SIG_DFL)
        yield
