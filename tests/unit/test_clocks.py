"""Clocks to their maximum and back, on a replayed machine: the whole state of the settings before and after."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perfharness.errors import ClockError
from perfharness.model.clocks import ClockStep
from perfharness.telemetry import clock_state
from perfharness.telemetry.clock_state import ClocksState, Owner, StateStore, start_ticks
from perfharness.telemetry.clock_words import left_behind_in_words, restored_in_words, steps_in_words
from perfharness.telemetry.clocks import MIG_REASON, ClockTaker, process_as_owner, restore
from perfharness.telemetry.nvml import Nvml, open_nvml
from perfharness.testing.nvml_cards import error, gpu_uuid, h100_machine, mig_uuid
from perfharness.testing.nvml_record import NvmlRecord, read_record
from perfharness.testing.nvml_state import DeviceState
from perfharness.testing.nvml_values import device
from perfharness.testing.replayed_nvml import ReplayedNvml
from perfharness.testing.steps import Fault, InjectedError, Steps

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
CODES = [getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "state")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfharness.telemetry.clock_state.os.fsync", lambda _: None)


class Machine:
    """A replayed machine, opened."""

    def __init__(self, record: NvmlRecord | None = None) -> None:
        self.replay = ReplayedNvml(record or h100_machine(2))

    @contextmanager
    def open(self, *faults: Fault) -> Iterator[Nvml]:
        self.replay.steps = Steps(list(faults))
        with open_nvml(self.replay) as nvml:
            yield nvml
        self.replay.steps = Steps()

    def settings(self, uuid: str = GPU) -> DeviceState:
        return self.replay.settings().devices[uuid].model_copy()


def owner(kind: Any = "launch", pid: int | None = None) -> Owner:
    return process_as_owner(kind, pid)


def answers(steps: list[ClockStep]) -> list[str]:
    return [step.answer for step in steps]


def test_everything_is_set_and_comes_back(store: StateStore) -> None:
    machine = Machine()
    with machine.open() as nvml:
        taker = ClockTaker(nvml, store, owner())
        steps = taker.take([GPU])
        assert answers(steps) == ["set"] * 5
        assert machine.settings() == AT_MAXIMUM
        assert machine.settings(OTHER) == BEFORE
        assert [(step.setting, step.before, step.wanted, step.after) for step in steps] == [
            ("persistence_mode", [0], [1], [1]),
            ("power_limit_mw", [650_000], [700_000], [700_000]),
            ("application_clocks_mhz", [2619, 1755], [2619, 1980], [2619, 1980]),
            ("memory_clock_lock_mhz", None, [2619, 2619], None),
            ("graphics_clock_lock_mhz", None, [1980, 1980], None),
        ]
        restored = taker.give_back()
    assert [item.setting for item in restored] == [step.setting for step in reversed(steps)]
    assert {item.outcome for item in restored} == {"restored"}
    assert machine.settings() == BEFORE
    assert not store.path.exists()


def test_what_was_there_is_on_disk_before_each_change(store: StateStore) -> None:
    seen: list[tuple[str, Any]] = []

    class Watched(ReplayedNvml):
        def _set(self, name: str, handle: Any, *arguments: int) -> None:
            state = store.read()
            assert state is not None
            seen.append((name, {change.setting: (change.before, change.phase) for change in state.changes}))
            super()._set(name, handle, *arguments)

    machine = Machine()
    machine.replay = Watched(h100_machine())
    with machine.open() as nvml:
        ClockTaker(nvml, store, owner()).take([GPU])
    assert [name for name, _ in seen] == [
        "nvmlDeviceSetPersistenceMode",
        "nvmlDeviceSetPowerManagementLimit",
        "nvmlDeviceSetApplicationsClocks",
        "nvmlDeviceSetMemoryLockedClocks",
        "nvmlDeviceSetGpuLockedClocks",
    ]
    for position, (_, changes) in enumerate(seen):
        assert changes["power_limit_mw"][0] == [650_000]
        assert [phase for _, phase in changes.values()] == ["set"] * position + ["begun"] + ["planned"] * (4 - position)


def test_a_refusal_is_one_line_and_the_others_go_on(store: StateStore) -> None:
    machine = Machine()
    with machine.open(Fault(name="nvmlDeviceSetPowerManagementLimit", error=4)) as nvml:
        taker = ClockTaker(nvml, store, owner())
        steps = taker.take([GPU])
        assert answers(steps) == ["set", "refused", "set", "set", "set"]
        lines = [line for step, line in steps_in_words(steps) if step.answer == "refused"]
        assert lines == [f"GPU {GPU}: power limit not changed: no permission; it takes root"]
        state = store.read()
        assert state is not None
        assert "power_limit_mw" not in [change.setting for change in state.changes]
        taker.give_back()
    assert machine.settings() == BEFORE


def test_a_refusal_may_stop_it(store: StateStore) -> None:
    machine = Machine()
    with machine.open(Fault(name="nvmlDeviceSetPowerManagementLimit", error=4)) as nvml:
        taker = ClockTaker(nvml, store, owner(), stop_on_refusal=True)
        assert answers(taker.take([GPU])) == ["set", "refused", "not_tried", "not_tried", "not_tried"]
        taker.give_back()
    assert machine.settings() == BEFORE
    assert not store.path.exists()


def test_a_user_without_any_permission_leaves_nothing_behind(store: StateStore) -> None:
    machine = Machine()
    with machine.open(Fault(name="nvmlDevice*Set*", error=4), Fault(name="nvmlDeviceSet*", error=4)) as nvml:
        taker = ClockTaker(nvml, store, owner())
        steps = taker.take([GPU])
        assert answers(steps) == ["refused"] * 5
        assert len(steps_in_words(steps)) == 1  # all for one reason
        assert taker.give_back() == []
    assert not store.path.exists()


def step_names(store: StateStore) -> list[str]:
    """The calls of taking and giving back when nothing goes wrong."""
    names: list[str] = []

    class Noted(Steps):
        def before(self, name: str) -> int | None:
            names.append(name)
            return super().before(name)

    machine = Machine(ONE_CARD)
    with machine.open() as nvml:
        machine.replay.steps = Noted()
        taker = ClockTaker(nvml, store, owner())
        taker.take([GPU])
        names.append("-")
        taker.give_back()
        given_back = len(names)
    return names[:given_back]


def test_every_error_code_at_every_step_of_taking(store: StateStore) -> None:
    names = step_names(store)
    for number, name in enumerate(names[: names.index("-")], 1):
        for code in CODES:
            machine = Machine(ONE_CARD)
            with machine.open() as nvml:
                machine.replay.steps = Steps([Fault(step=number, error=code)])
                taker = ClockTaker(nvml, store, owner())
                steps = taker.take([GPU])
                result = taker.give_back()
            assert machine.settings() == BEFORE, (name, code)
            assert not store.path.exists(), (name, code)
            assert all(item.outcome in ("restored", "nothing_to_do") for item in result), (name, code, result)
            if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")):
                refused = [step for step in steps if step.answer in ("refused", "absent")]
                assert len(refused) == 1, (name, code)
                assert refused[0].reason


def test_every_error_code_at_every_step_of_restoring(store: StateStore) -> None:
    names = step_names(store)
    for number, name in enumerate(names[names.index("-") + 1 :], 1):
        for code in CODES:
            machine = Machine(ONE_CARD)
            with machine.open() as nvml:
                taker = ClockTaker(nvml, store, owner())
                taker.take([GPU])
                machine.replay.steps = Steps([Fault(step=number, error=code)])
                result = taker.give_back()
                failed = [item for item in result if item.outcome == "failed"]
                assert len(failed) == 1, (name, code)
                assert failed[0].reason
                assert store.path.exists()
                machine.replay.steps = Steps()
                again = restore(nvml, store)
            assert [item.setting for item in again] == [failed[0].setting]
            assert machine.settings() == BEFORE, (name, code)
            assert not store.path.exists()


@pytest.mark.parametrize("name", ["nvmlDeviceSetPersistenceMode", "nvmlDeviceSetGpuLockedClocks"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_exception_in_between_undoes_what_was_done(store: StateStore, name: str, when: Any) -> None:
    machine = Machine()
    with machine.open(Fault(name=name, raises=True, when=when)) as nvml, pytest.raises(InjectedError):
        ClockTaker(nvml, store, owner()).take([GPU])
    assert machine.settings() == BEFORE


def test_an_interrupt_leaves_the_rest_untried(store: StateStore) -> None:
    machine = Machine()
    asked = iter([False, False, True, True, True])
    with machine.open() as nvml:
        taker = ClockTaker(nvml, store, owner(), interrupted=lambda: next(asked))
        assert answers(taker.take([GPU])) == ["set", "set", "not_tried", "not_tried", "not_tried"]
        taker.give_back()
    assert machine.settings() == BEFORE


def test_a_card_without_application_clocks(store: StateStore) -> None:
    record = h100_machine()
    for kind in range(3):
        error(record, "nvmlDeviceGetApplicationsClock", device(GPU), kind, code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    machine = Machine(record)
    with machine.open() as nvml:
        taker = ClockTaker(nvml, store, owner(), stop_on_refusal=True)
        assert answers(taker.take([GPU])) == ["set", "set", "absent", "set", "set"]
        taker.give_back()
    assert machine.settings().locked_graphics_mhz is None


@pytest.mark.parametrize("uuid", [mig_uuid(0, 0), GPU])
def test_a_gpu_divided_by_mig_is_left_alone(store: StateStore, uuid: str) -> None:
    machine = Machine(h100_machine(1, mig_instances={0: 2}))
    with machine.open() as nvml:
        steps = ClockTaker(nvml, store, owner()).take([uuid])
    assert set(answers(steps)) == {"refused"}
    assert [line for _, line in steps_in_words(steps)] == [f"GPU {uuid}: clocks not changed: {MIG_REASON}"]
    assert machine.settings() == BEFORE
    assert not store.path.exists()


def test_what_is_at_its_maximum_already_is_not_ours_to_undo(store: StateStore) -> None:
    machine = Machine()
    with machine.open() as nvml:
        nvml.devices[0].ask("nvmlDeviceSetPersistenceMode", 1)
        before = machine.settings()
        taker = ClockTaker(nvml, store, owner())
        assert answers(taker.take([GPU])) == ["already", "set", "set", "set", "set"]
        taker.give_back()
    assert machine.settings() == before


def test_what_others_changed_meanwhile_is_not_overwritten(store: StateStore) -> None:
    machine = Machine()
    with machine.open() as nvml:
        taker = ClockTaker(nvml, store, owner())
        taker.take([GPU])
        nvml.devices[0].ask("nvmlDeviceSetPowerManagementLimit", 300_000)
        results = {item.setting: item for item in taker.give_back()}
    assert results["power_limit_mw"].outcome == "changed_by_others"
    assert "somebody else has changed it since" in restored_in_words(results["power_limit_mw"])
    assert machine.settings() == BEFORE.model_copy(update={"power_limit_mw": 300_000})
    assert not store.path.exists()


def test_a_driver_that_rounds_is_not_taken_for_somebody_else(store: StateStore) -> None:
    class Rounding(ReplayedNvml):
        def _set(self, name: str, handle: Any, *arguments: int) -> None:
            if name == "nvmlDeviceSetPowerManagementLimit" and arguments[0] == 700_000:
                arguments = (699_000,)
            super()._set(name, handle, *arguments)

    machine = Machine()
    machine.replay = Rounding(h100_machine())
    with machine.open() as nvml:
        taker = ClockTaker(nvml, store, owner())
        assert taker.take([GPU])[1].after == [699_000]
        taker.give_back()
    assert machine.settings() == BEFORE


def interleavings(*lengths: int) -> list[tuple[int, ...]]:
    """Every order of the steps of several runs, each run's own steps in order."""
    return sorted(set(itertools.permutations([run for run, length in enumerate(lengths) for _ in range(length)])))


@pytest.mark.parametrize("order", interleavings(2, 2, 2))
@pytest.mark.parametrize("gpus", [([GPU], [GPU], [GPU]), ([GPU], [GPU, OTHER], [OTHER])])
def test_runs_at_once_do_not_undo_each_other(store: StateStore, order: tuple[int, ...], gpus: Any) -> None:
    """Two launches and a `clocks max` … `clocks restore`, interleaved in every order."""
    machine = Machine()
    owners = [owner("launch", os.getpid()), owner("launch", os.getppid()), owner("hold", 1)]
    wanting: set[int] = set()
    with machine.open() as nvml:
        takers = [ClockTaker(nvml, store, each) for each in owners]
        for run in order:
            if run not in wanting:
                assert {"set", "already"} >= set(answers(takers[run].take(gpus[run])))
                wanting.add(run)
            else:
                wanting.discard(run)
                results = restore(nvml, store, holds_end=True) if run == 2 else takers[run].give_back()
                assert not [item for item in results if item.outcome in ("failed", "changed_by_others")]
            for uuid in (GPU, OTHER):
                is_wanted = any(uuid in gpus[each] for each in wanting)
                assert machine.settings(uuid) == (AT_MAXIMUM if is_wanted else BEFORE), (order, run)
    assert not store.path.exists()


def test_what_a_killed_run_left_is_restored_by_the_next_that_ends(store: StateStore) -> None:
    machine = Machine()
    gone = owner("launch").model_copy(update={"start_ticks": 1})
    with machine.open() as nvml:
        ClockTaker(nvml, store, gone).take([GPU])
        state = store.read()
        assert state is not None
        assert "1 GPU" in (line := left_behind_in_words(store, state) or "") or GPU in line
        taker = ClockTaker(nvml, store, owner())
        taker.take([GPU])
        assert machine.settings() == AT_MAXIMUM
        taker.give_back()
    assert machine.settings() == BEFORE
    assert not store.path.exists()


def test_an_owner_in_another_pid_namespace_is_taken_to_live(store: StateStore) -> None:
    machine = Machine()
    foreign = owner("launch").model_copy(update={"start_ticks": 1, "pid_namespace": "pid:[1]"})
    with machine.open() as nvml:
        ClockTaker(nvml, store, foreign).take([GPU])
        assert {item.outcome for item in restore(nvml, store, holds_end=True)} == {"left_to_others"}
        assert machine.settings() == AT_MAXIMUM
        assert {item.outcome for item in restore(nvml, store, force=True)} == {"restored"}
    assert machine.settings() == BEFORE


def test_after_a_restart_there_is_nothing_to_restore(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    with machine.open() as nvml:
        ClockTaker(nvml, store, owner("hold")).take([GPU])
    monkeypatch.setattr(clock_state, "boot_id", lambda: "a later one")
    monkeypatch.setattr(clock_state, "boot_unix_s", lambda: time.time() + 60)
    machine = Machine()  # restarted
    with machine.open() as nvml:
        results = restore(nvml, store, holds_end=True)
    assert [item.outcome for item in results] == ["gone_with_restart"] * 5
    assert machine.settings() == BEFORE
    assert not store.path.exists()


def elsewhere(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From here on this is another machine, or a container with a kernel of its own."""
    monkeypatch.setattr(clock_state, "boot_id", lambda: f"boot of {name}")
    monkeypatch.setattr(clock_state, "machine_name", lambda: name)


@pytest.mark.parametrize("kind", ["launch", "hold"])
def test_machines_that_share_a_folder_keep_their_records(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    one, two = Machine(h100_machine(1)), Machine(h100_machine(2))  # the second has OTHER, which the first has not
    elsewhere(monkeypatch, "two")
    with two.open() as nvml:
        second = ClockTaker(nvml, store, owner("hold"))
        second.take([OTHER])
    elsewhere(monkeypatch, "one")
    with one.open() as nvml:
        first = ClockTaker(nvml, store, owner(kind))
        first.take([GPU])
        assert len(store.machines()) == 2
        assert {item.outcome for item in restore(nvml, store, leaving=first.owner, holds_end=True)} == {"restored"}
    assert one.settings() == BEFORE
    assert two.settings(OTHER) == AT_MAXIMUM
    elsewhere(monkeypatch, "two")
    with two.open() as nvml:
        assert {item.outcome for item in restore(nvml, store, holds_end=True)} == {"restored"}
    assert two.settings(OTHER) == BEFORE
    assert not store.path.exists()


@pytest.mark.parametrize("same_name", [True, False])
def test_a_container_with_a_boot_id_of_its_own_restores_the_gpu(
    store: StateStore, monkeypatch: pytest.MonkeyPatch, same_name: bool
) -> None:
    """The GPU is one, so what another container left is restored, and what it still wants is left."""
    machine = Machine()
    with machine.open() as nvml:
        ClockTaker(nvml, store, owner("hold")).take([GPU])
        if same_name:
            monkeypatch.setattr(clock_state, "boot_id", lambda: "another")
        else:
            elsewhere(monkeypatch, "container")
        launch = ClockTaker(nvml, store, owner("launch", os.getppid()))
        assert set(answers(launch.take([GPU]))) <= {"set", "already"}
        launch.give_back()
        assert machine.settings() == AT_MAXIMUM
        restore(nvml, store, holds_end=True)
    assert machine.settings() == BEFORE
    assert not store.path.exists()


def test_a_state_that_is_a_fifo_is_not_waited_for(store: StateStore) -> None:
    store.folder.mkdir()
    os.mkfifo(store.path)
    with pytest.raises(ClockError):
        store.read()


def test_a_gpu_that_is_not_there_is_kept_in_mind(store: StateStore) -> None:
    machine = Machine()
    with machine.open() as nvml:
        ClockTaker(nvml, store, owner("hold")).take([OTHER])
    with Machine(h100_machine(1)).open() as nvml:
        assert {item.outcome for item in restore(nvml, store, holds_end=True)} == {"failed"}
    assert store.path.exists()
    with machine.open() as nvml:
        assert {item.outcome for item in restore(nvml, store, holds_end=True)} == {"restored"}
    assert machine.settings(OTHER) == BEFORE


def test_a_second_clocks_max_holds_both(store: StateStore) -> None:
    machine = Machine()
    with machine.open() as nvml:
        ClockTaker(nvml, store, owner("hold")).take([GPU])
        ClockTaker(nvml, store, owner("hold", os.getppid())).take([OTHER])
        state = store.read()
        assert state is not None
        assert [each.gpus for each in state.owners] == [[GPU, OTHER]]
        restore(nvml, store, holds_end=True)
    assert (machine.settings(), machine.settings(OTHER)) == (BEFORE, BEFORE)


@pytest.mark.parametrize("text", ["", "{", '{"version": 99, "boot_id": "x"}', '{"version": 1}', "null"])
def test_a_state_that_cannot_be_read_stops_everything(store: StateStore, text: str) -> None:
    machine = Machine()
    store.folder.mkdir()
    store.path.write_text(text)
    with machine.open() as nvml:
        with pytest.raises(ClockError, match=str(store.path)):
            ClockTaker(nvml, store, owner()).take([GPU])
        with pytest.raises(ClockError, match=str(store.path)):
            restore(nvml, store)
    assert machine.settings() == BEFORE
    assert store.path.read_text() == text


def test_where_no_state_can_be_kept_nothing_is_changed(tmp_path: Path) -> None:
    machine = Machine()
    (tmp_path / "file").write_text("")
    with machine.open() as nvml, pytest.raises(ClockError, match="nothing was changed"):
        ClockTaker(nvml, StateStore(tmp_path / "file" / "state"), owner()).take([GPU])
    assert machine.settings() == BEFORE


def test_a_full_disk_stops_it_before_anything_changes(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_store: StateStore, _state: ClocksState) -> None:
        raise OSError(28, "No space left on device")

    machine = Machine()
    monkeypatch.setattr(StateStore, "write", full)
    with machine.open() as nvml, pytest.raises(ClockError, match="No space left"):
        ClockTaker(nvml, store, owner()).take([GPU])
    assert machine.settings() == BEFORE


def test_another_that_holds_the_lock_is_waited_for_and_named(store: StateStore) -> None:
    with store.locked(), pytest.raises(ClockError, match=r"clocks\.lock"), store.locked(patience_s=0):
        pass


def test_a_process_is_known_by_its_start() -> None:
    assert start_ticks(os.getpid()) is not None
    assert start_ticks(2**22 + 1) is None
    assert owner().lives
    assert not owner().model_copy(update={"start_ticks": 1}).lives


def test_on_a_recorded_h200(store: StateStore) -> None:
    """As it was found: persistence mode on, power limit and application clocks at their maxima, nothing locked."""
    machine = Machine(read_record(Path(__file__).parents[1] / "nvml" / "h200.json.gz"))
    before = machine.settings()
    with machine.open() as nvml:
        taker = ClockTaker(nvml, store, owner())
        assert [(step.answer, step.wanted) for step in taker.take([GPU])] == [
            ("already", [1]),
            ("already", [700_000]),
            ("already", [3201, 1980]),
            ("set", [3201, 3201]),
            ("set", [1980, 1980]),
        ]
        assert nvml.devices[0].ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM).value == 1980
        assert {item.outcome for item in taker.give_back()} == {"restored"}
    assert machine.settings() == before


@pytest.mark.parametrize(("fault", "lives"), [(PermissionError(), True), (ProcessLookupError(), False)])
def test_a_process_that_proc_hides_is_taken_to_live(
    monkeypatch: pytest.MonkeyPatch, fault: OSError, lives: bool
) -> None:
    def kill(_pid: int, _number: int) -> None:
        raise fault

    monkeypatch.setattr("perfharness.telemetry.clock_state.os.kill", kill)
    assert owner().model_copy(update={"pid": 2**22 + 1}).lives is lives
