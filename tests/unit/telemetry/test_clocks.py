"""Clocks to their maximum and back, on a replayed machine: the whole state of the settings before and after."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perfharness.model.conditions import ClockStep
from perfharness.telemetry.clocks import (
    maximize,
    maximum_clocks,
    restore,
    restore_defaults,
    settings_left,
    step_lines,
)
from perfharness.telemetry.nvml import Nvml, open_nvml
from tests.support.nvml_cards import error, gpu_uuid, h100_machine, mig_uuid
from tests.support.nvml_record import NvmlRecord, device
from tests.support.nvml_settings import DeviceState
from tests.support.replayed_nvml import ReplayedNvml
from tests.support.steps import Fault, InjectedError, Steps

GPU, OTHER = gpu_uuid(0), gpu_uuid(1)
AT_MAXIMUM = DeviceState(
    persistence_mode=1,
    power_limit_mw=700_000,
    locked_graphics_mhz=(1980, 1980),
    locked_memory_mhz=(2619, 2619),
    application_clocks_mhz=(2619, 1980),
)
BEFORE = DeviceState(persistence_mode=0, power_limit_mw=650_000, application_clocks_mhz=(2619, 1755))
ONE_CARD = h100_machine()
CODES = (pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_GPU_IS_LOST)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for clocks that fall."""
    monkeypatch.setattr("perfharness.telemetry.clocks.AWAKE_S", 0.0)


class Machine:
    """A replayed machine, opened."""

    def __init__(self, record: NvmlRecord = ONE_CARD, state: Path | None = None) -> None:
        self.replay = ReplayedNvml(record, state_path=state, clock_ns=lambda: 0)

    @contextmanager
    def open(self, *faults: Fault) -> Iterator[Nvml]:
        self.replay.steps = Steps(list(faults))
        with open_nvml(self.replay) as nvml:
            yield nvml
        self.replay.steps = Steps()

    def settings(self, uuid: str = GPU) -> DeviceState:
        return self.replay.settings().devices[uuid].model_copy()


def test_everything_is_set_and_comes_back() -> None:
    machine = Machine(h100_machine(2))
    with machine.open() as nvml:
        with maximum_clocks(nvml, [GPU]) as steps:
            assert machine.settings() == AT_MAXIMUM
            assert machine.settings(OTHER) == BEFORE
            assert [(step.answer, step.setting, step.before, step.wanted, step.after) for step in steps] == [
                ("set", "persistence_mode", [0], [1], [1]),
                ("set", "power_limit_mw", [650_000], [700_000], [700_000]),
                ("set", "application_clocks_mhz", [2619, 1755], [2619, 1980], [2619, 1980]),
                ("set", "memory_clock_lock_mhz", None, [2619, 2619], None),
                ("set", "graphics_clock_lock_mhz", None, [1980, 1980], None),
            ]
        assert {step.restored for step in steps} == {"restored"}
        assert machine.settings() == BEFORE
        with pytest.raises(InjectedError), maximum_clocks(nvml, [GPU, OTHER]):
            raise InjectedError
    assert (machine.settings(), machine.settings(OTHER)) == (BEFORE, BEFORE)


def without_application_clocks() -> NvmlRecord:
    record = h100_machine()
    for kind in range(3):
        error(record, "nvmlDeviceGetApplicationsClock", device(GPU), kind, code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    return record


ONE_REFUSAL = Fault(name="nvmlDeviceSetPowerManagementLimit", error=4)
MIG = h100_machine(1, mig_instances={0: 2})
INTERRUPTED = {"interrupted": iter([False, False, *[True] * 3]).__next__}


@pytest.mark.parametrize(
    ("record", "faults", "options", "uuid", "expected", "lines"),
    [
        (ONE_CARD, [ONE_REFUSAL], {}, GPU, "set refused set set set", 1),
        (ONE_CARD, [Fault(name="nvmlDevice*Set*", error=4)], {}, GPU, "refused " * 5, 1),
        (ONE_CARD, [], INTERRUPTED, GPU, "set set" + 3 * " not_tried", 0),
        (without_application_clocks(), [], {}, GPU, "set set absent set set", 0),
        (MIG, [], {}, GPU, "refused " * 5, 1),
        (MIG, [], {}, mig_uuid(0, 0), "refused " * 5, 1),
        (ONE_CARD, [], {}, "GPU-other", "refused " * 5, 1),
    ],
)
def test_what_cannot_be_set_is_one_line_and_the_rest_comes_back(
    record: NvmlRecord, faults: list[Fault], options: Any, uuid: str, expected: str, lines: int
) -> None:
    machine = Machine(record)
    before = machine.settings()
    with machine.open(*faults) as nvml, maximum_clocks(nvml, [uuid], **options) as steps:
        assert [step.answer for step in steps] == expected.split()
        refusals = step_lines([step for step in steps if step.answer == "refused"])
        assert [uuid in line for line in refusals] == [True] * lines
    assert machine.settings() == before


def test_an_error_at_every_call_leaves_nothing_behind_that_is_not_reported() -> None:
    with Machine().open() as nvml:
        nvml.module.steps = counted = Steps()
        taken: list[ClockStep] = []
        maximize(nvml, [GPU], taken)
        taking = counted.count
        restore(nvml, taken)
        calls = counted.count
    for fault in (*({"error": code} for code in CODES), {"raises": True}):
        for number in range(1, calls + 1):
            machine = Machine()
            with machine.open() as nvml:
                machine.replay.steps = Steps([Fault(step=number, **fault)])
                steps: list[ClockStep] = []
                try:
                    maximize(nvml, [GPU], steps)
                except InjectedError:
                    assert number <= taking
                restore(nvml, steps)
                failed = [step.setting for step in steps if step.restored == "failed"]
                assert all(step.restored_reason for step in steps if step.restored == "failed")
            if machine.settings() != BEFORE:
                assert number > taking
                assert len(failed) == 1


def test_a_killed_process_leaves_what_is_seen_and_can_be_reset(tmp_path: Path) -> None:
    machine = Machine(ONE_CARD, tmp_path / "nvml.json")
    if (child := os.fork()) == 0:
        with machine.open() as nvml, maximum_clocks(nvml, [GPU]):
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert machine.settings() == AT_MAXIMUM
    with machine.open() as nvml:
        assert len(settings_left(nvml.gpus[0])) == 2
        steps = restore_defaults(nvml.gpus)
        assert {(step.setting, step.restored) for step in steps} == {
            (setting, "restored")
            for setting in (
                "power_limit_mw", "application_clocks_mhz", "memory_clock_lock_mhz", "graphics_clock_lock_mhz"
            )
        }  # fmt: skip
        assert machine.settings() == BEFORE.model_copy(update={"persistence_mode": 1})
        assert settings_left(nvml.gpus[0]) == []
    with machine.open(Fault(name="nvmlDeviceReset*", error=4)) as nvml:
        assert [step.restored for step in restore_defaults(nvml.gpus)].count("failed") == 3
