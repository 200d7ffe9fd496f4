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

from perfharness.errors import ClockError
from perfharness.model.clocks import ClockStep
from perfharness.telemetry.clock_settings import refusal_lines
from perfharness.telemetry.clocks import ClockOwner, ClockState, GpuClocks, changed_gpus, restore
from perfharness.telemetry.nvml import Nvml, open_nvml
from tests.support.nvml_cards import error, gpu_uuid, h100_machine, mig_uuid
from tests.support.nvml_record import NvmlRecord, device, read_record
from tests.support.nvml_settings import DeviceState
from tests.support.replayed_nvml import ReplayedNvml
from tests.support.steps import Fault, Steps

GPU = gpu_uuid(0)
OTHER = gpu_uuid(1)
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the disk, nor for another owner."""
    monkeypatch.setattr("perfharness.files.os.fsync", lambda _: None)
    monkeypatch.setattr("perfharness.telemetry.clocks.LOCK_PATIENCE_S", 0.0)


class Machine:
    """A replayed machine, opened."""

    def __init__(self, record: NvmlRecord | None = None, state: Path | None = None) -> None:
        self.replay = ReplayedNvml(record or h100_machine(2), state_path=state)

    @contextmanager
    def open(self, *faults: Fault) -> Iterator[Nvml]:
        self.replay.steps = Steps(list(faults))
        with open_nvml(self.replay) as nvml:
            yield nvml
        self.replay.steps = Steps()

    def settings(self, uuid: str = GPU) -> DeviceState:
        return self.replay.settings().devices[uuid].model_copy()


def hold(nvml: Nvml, folder: Path, *gpu_uuids: str) -> list[ClockStep]:
    """`clocks max`."""
    owner = ClockOwner(nvml, folder)
    steps = owner.maximize(gpu_uuids or [GPU])
    owner.hold()
    return steps


def answers(steps: list[ClockStep]) -> list[str]:
    return [step.answer for step in steps]


def test_everything_is_set_and_comes_back(folder: Path) -> None:
    machine = Machine()
    with machine.open() as nvml:
        owner = ClockOwner(nvml, folder)
        steps = owner.maximize([GPU])
        assert machine.settings() == AT_MAXIMUM
        assert machine.settings(OTHER) == BEFORE
        assert [(step.answer, step.setting, step.before, step.wanted, step.after) for step in steps] == [
            ("set", "persistence_mode", [0], [1], [1]),
            ("set", "power_limit_mw", [650_000], [700_000], [700_000]),
            ("set", "application_clocks_mhz", [2619, 1755], [2619, 1980], [2619, 1980]),
            ("set", "memory_clock_lock_mhz", None, [2619, 2619], None),
            ("set", "graphics_clock_lock_mhz", None, [1980, 1980], None),
        ]
        restored = owner.restore()
    assert [(item.setting, item.outcome) for item in restored] == [
        (step.setting, "restored") for step in reversed(steps)
    ]
    assert machine.settings() == BEFORE
    assert not changed_gpus([folder])


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
    ],
)
def test_what_cannot_be_set_is_one_line_and_the_rest_comes_back(
    folder: Path, record: NvmlRecord, faults: list[Fault], options: Any, uuid: str, expected: str, lines: int
) -> None:
    machine = Machine(record)
    before = machine.settings()
    with machine.open(*faults) as nvml:
        owner = ClockOwner(nvml, folder, **options)
        steps = owner.maximize([uuid])
        assert answers(steps) == expected.split()
        assert len(refusal_lines(steps)) == lines
        assert all(uuid in line for line in refusal_lines(steps))
        kept = [
            change.setting for clocks in changed_gpus([folder]) for change in (clocks.read() or ClockState()).changes
        ]
        assert kept == [step.setting for step in steps if step.answer == "set"]
        owner.restore()
    assert machine.settings() == before
    assert not changed_gpus([folder])


class Noted(Steps):
    """Steps that are noted by name."""

    def before(self, name: str) -> int | None:
        self.names = [*getattr(self, "names", []), name]
        return super().before(name)


def test_an_error_at_every_step_of_taking_and_restoring(folder: Path) -> None:
    machine = Machine(ONE_CARD)
    with machine.open() as nvml:
        owner = ClockOwner(nvml, folder)
        machine.replay.steps = taking = Noted()
        owner.maximize([GPU])
        machine.replay.steps = restoring = Noted()
        owner.restore()
        for code in CODES:
            for number, name in enumerate(taking.names, 1):
                machine.replay.steps = Steps([Fault(step=number, error=code)])
                steps, result = owner.maximize([GPU]), owner.restore()
                owner.steps = []
                assert all(item.outcome in ("restored", "nothing_to_do") for item in result), (name, code, result)
                if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")):
                    [refused] = [step for step in steps if step.answer in ("refused", "absent")]
                    assert refused.reason
                assert (machine.settings(), changed_gpus([folder])) == (BEFORE, []), (name, code)
        for fault in (*({"error": code} for code in CODES), {"raises": True}):
            for number, name in enumerate(restoring.names, 1):
                machine.replay.steps = Steps()
                owner.maximize([GPU])
                machine.replay.steps = Steps([Fault(step=number, **fault)])
                [failed] = [item for item in owner.restore() if item.outcome == "failed"]
                assert failed.reason
                assert changed_gpus([folder])
                machine.replay.steps = Steps()
                assert [item.setting for item in restore(nvml, [folder])] == [failed.setting]
                assert (machine.settings(), changed_gpus([folder])) == (BEFORE, []), (name, fault)


def test_what_others_set_before_or_meanwhile_is_not_ours_to_undo(folder: Path) -> None:
    machine = Machine()
    with machine.open() as nvml:
        nvml.devices[0].ask("nvmlDeviceSetPersistenceMode", 1)
        owner = ClockOwner(nvml, folder)
        assert answers(owner.maximize([GPU])) == ["already", "set", "set", "set", "set"]
        nvml.devices[0].ask("nvmlDeviceSetPowerManagementLimit", 300_000)
        results = {item.setting: item for item in owner.restore()}
    assert results["power_limit_mw"].outcome == "changed_by_others"
    assert machine.settings() == BEFORE.model_copy(update={"persistence_mode": 1, "power_limit_mw": 300_000})
    assert not changed_gpus([folder])


def test_a_driver_that_rounds_is_not_taken_for_somebody_else(folder: Path) -> None:
    class Rounding(ReplayedNvml):
        def _set(self, name: str, handle: Any, *arguments: int) -> None:
            if name == "nvmlDeviceSetPowerManagementLimit" and arguments[0] == 700_000:
                arguments = (699_000,)
            super()._set(name, handle, *arguments)

    machine = Machine()
    machine.replay = Rounding(h100_machine())
    with machine.open() as nvml:
        owner = ClockOwner(nvml, folder)
        assert owner.maximize([GPU])[1].after == [699_000]
        owner.restore()
    assert machine.settings() == BEFORE


def set_and_restore(nvml: Nvml, folder: Path) -> None:
    owner = ClockOwner(nvml, folder)
    owner.maximize([GPU])
    owner.restore()


def hold_and_restore(nvml: Nvml, folder: Path) -> None:
    hold(nvml, folder)
    restore(nvml, [folder])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("commands", "next_command"), [(set_and_restore, "launch"), (hold_and_restore, "restore")])
def test_killed_at_every_step(tmp_path: Path, commands: Any, when: Any, next_command: str) -> None:
    """A forked process is killed before or after each call of NVML; then the next command restores what it left."""
    machine = Machine(ONE_CARD)
    with machine.open() as nvml:
        machine.replay.steps = counted = Steps()
        commands(nvml, tmp_path / "state")
    lefts = set()
    for number in range(1, counted.count):
        folder = tmp_path / f"state-{number}"
        machine = Machine(ONE_CARD, tmp_path / f"nvml-{number}.json")
        if (child := os.fork()) == 0:
            with machine.open() as nvml:
                machine.replay.steps = Steps([Fault(step=number, signal="SIGKILL", when=when)])
                commands(nvml, folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        left = sum(value != getattr(BEFORE, name) for name, value in machine.settings())
        kept = changed_gpus([folder])
        is_held = bool(kept) and (kept[0].read() or ClockState()).held
        assert is_held or not left or kept[0].unrestored()
        lefts.add(left)
        with machine.open() as nvml:
            if next_command == "launch":
                set_and_restore(nvml, folder)
            if next_command == "restore" or is_held:
                restore(nvml, [folder])
        assert (machine.settings(), changed_gpus([folder])) == (BEFORE, []), number
    assert lefts == set(range(6))  # the cases are what they say


def test_one_owner_at_a_time_and_a_restore_by_force_under_it(folder: Path) -> None:
    machine = Machine()
    with machine.open() as nvml:
        first, second = ClockOwner(nvml, folder), ClockOwner(nvml, folder)
        first.maximize([GPU])
        steps = second.maximize([GPU, OTHER])
        assert answers(steps) == ["refused"] * 5 + ["set"] * 5
        assert str(os.getpid()) in (steps[0].reason or "")
        assert {item.outcome for item in restore(nvml, [folder])} == {"left_to_others"}
        first.restore()
        assert (machine.settings(), machine.settings(OTHER)) == (BEFORE, AT_MAXIMUM)
        assert {item.outcome for item in restore(nvml, [folder], force=True)} == {"restored"}
        assert machine.settings(OTHER) == BEFORE
        assert second.restore() == []
    assert machine.settings(OTHER) == BEFORE
    assert not changed_gpus([folder])


def test_a_launch_under_a_hold_undoes_only_its_own_changes(folder: Path) -> None:
    machine = Machine()
    with machine.open() as nvml:
        hold(nvml, folder)
        nvml.devices[0].ask("nvmlDeviceSetPowerManagementLimit", 300_000)
        owner = ClockOwner(nvml, folder)
        steps = owner.maximize([GPU])
        assert answers(steps) == ["already", "set", "already", "already", "already"]
        assert [step.wanted for step in steps[3:]] == [[2619, 2619], [1980, 1980]]
        owner.restore()
        assert machine.settings() == AT_MAXIMUM.model_copy(update={"power_limit_mw": 300_000})
        outcomes = {item.setting: item.outcome for item in restore(nvml, [folder])}
        assert outcomes.pop("power_limit_mw") == "changed_by_others"
        assert set(outcomes.values()) == {"restored"}
    assert machine.settings() == BEFORE.model_copy(update={"power_limit_mw": 300_000})


def test_a_gpu_that_is_not_there_keeps_its_state(folder: Path) -> None:
    machine = Machine()
    with machine.open() as nvml:
        hold(nvml, folder, OTHER)
    with Machine(h100_machine(1)).open() as nvml:
        assert {item.outcome for item in restore(nvml, [folder])} == {"failed"}
    [clocks] = changed_gpus([folder])
    assert clocks.unrestored()
    with machine.open() as nvml:
        assert {item.outcome for item in restore(nvml, [folder])} == {"restored"}
    assert machine.settings(OTHER) == BEFORE


@pytest.mark.parametrize("text", ["", "{", '{"changes": [{"setting": "fan"}]}', "null", None])
def test_a_state_that_cannot_be_read_stops_everything(folder: Path, text: str | None) -> None:
    machine = Machine()
    clocks = GpuClocks(folder / GPU)
    clocks.folder.mkdir(parents=True)
    if text is None:  # opening a FIFO would wait for ever
        os.mkfifo(clocks.path)
    else:
        clocks.path.write_text(text)
    with machine.open() as nvml:
        with pytest.raises(ClockError, match=str(clocks.path)):
            ClockOwner(nvml, folder).maximize([GPU])
        with pytest.raises(ClockError, match=str(clocks.path)):
            restore(nvml, [folder])
    assert machine.settings() == BEFORE
    assert clocks.path.exists()


def test_where_no_state_can_be_kept_nothing_is_changed(tmp_path: Path) -> None:
    machine = Machine()
    (tmp_path / "file").write_text("")
    with machine.open() as nvml, pytest.raises(ClockError):
        ClockOwner(nvml, tmp_path / "file" / "state").maximize([GPU])
    assert machine.settings() == BEFORE


def test_a_full_disk_stops_it_and_keeps_nothing_from_being_undone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine()
    write = GpuClocks.write
    for after in range(5):
        writes = iter([True] * after)

        def full(clocks: GpuClocks, state: ClockState, writes: Iterator[bool] = writes) -> None:
            if state.changes and not next(writes, False):
                raise ClockError("No space left on device")
            write(clocks, state)

        monkeypatch.setattr(GpuClocks, "write", full)
        with machine.open() as nvml, pytest.raises(ClockError):
            ClockOwner(nvml, folder).maximize([GPU])
        assert machine.settings() == BEFORE
        assert not changed_gpus([folder])


def test_on_a_recorded_h200(folder: Path) -> None:
    """As it was found: persistence mode on, power limit and application clocks at their maxima, nothing locked."""
    machine = Machine(read_record(Path(__file__).parents[2] / "nvml" / "h200.json.gz"))
    before = machine.settings()
    with machine.open() as nvml:
        owner = ClockOwner(nvml, folder)
        assert [(step.answer, step.wanted) for step in owner.maximize([GPU])] == [
            ("already", [1]),
            ("already", [700_000]),
            ("already", [3201, 1980]),
            ("set", [3201, 3201]),
            ("set", [1980, 1980]),
        ]
        assert nvml.devices[0].ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM).value == 1980
        assert {item.outcome for item in owner.restore()} == {"restored"}
    assert machine.settings() == before
