"""Clocks at their maximum, and back: what was there is on disk before anything changes; only our changes are undone.

Several runs at once share one state: each is an owner, and a GPU is restored when its last owner has gone. An owner
that was killed counts as gone, so whoever restores next (a run that ends, or `clocks restore`) restores what it left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal

from perfharness.errors import ClockError
from perfharness.model.clocks import ClockStep, Outcome, Setting, StepAnswer
from perfharness.telemetry.clock_settings import BY_NAME, CLOCK_SETTINGS, ClockSetting
from perfharness.telemetry.clock_state import (
    Change,
    ClocksState,
    Owner,
    StateStore,
    pid_namespace,
    start_ticks,
)
from perfharness.telemetry.nvml import Answer, Device, Nvml, Refusal

MIG_REASON = "the clocks belong to the whole GPU, which is divided into MIG instances that others may be using"


@dataclass(frozen=True)
class Restored:
    """What became of one change."""

    gpu_uuid: str
    setting: Setting
    outcome: Outcome
    before: list[int] | None = None
    reason: str | None = None


def _never() -> bool:
    return False


@dataclass
class ClockTaker:
    """Sets the clocks of some GPUs to their maximum, as one owner.

    Args:
        nvml: open.
        owner: a launch, until its process ends or gives back; or a hold, until somebody restores.
        stop_on_refusal: leave the steps after the first refusal untried.
        interrupted: asked before each step; once true, the others are left untried.
    """

    nvml: Nvml
    store: StateStore
    owner: Owner
    stop_on_refusal: bool = False
    interrupted: Callable[[], bool] = _never
    steps: list[ClockStep] = field(default_factory=list)

    def take(self, gpu_uuids: Sequence[str]) -> list[ClockStep]:
        """Set everything; returns each step's answer.

        Raises:
            ClockError: the state cannot be kept; nothing was changed then. Anything else raised has been undone.
        """
        try:
            with self.store.locked():
                self._take(gpu_uuids)
        except BaseException:
            self.give_back()
            raise
        return self.steps

    def _take(self, gpu_uuids: Sequence[str]) -> None:
        state = self.store.read()
        if state is None or not state.is_of_this_boot:
            state = ClocksState()
        self._forget_own(state)
        owner = self.owner.model_copy(update={"gpus": list(gpu_uuids)})
        planned = [step for uuid in gpu_uuids for step in self._plan(uuid, state)]
        if not any(change for _, _, change in planned):
            self.steps = [step for step, _, _ in planned]
            changed = {change.gpu_uuid for other in self.store.machines() for change in other.changes}
            if state.changes or changed & {*gpu_uuids}:  # of others, which this run relies on from now on
                state.owners.append(owner)
                self._complete(owner, state)
            return
        state.owners.append(owner)
        self._write(state)
        for step, device, change in planned:
            self.steps.append(self._do(step, device, change, state))
        state.changes = [change for change in state.changes if change.phase != "planned"]
        self._complete(owner, state)

    def _complete(self, owner: Owner, state: ClocksState) -> None:
        """Everything is done; a second `clocks max` takes the place of the first, whose GPUs it goes on holding."""
        owner.complete = True
        if owner.kind == "hold":
            held = [other for other in state.owners if other.kind == "hold" and other.complete]
            owner.gpus = list(dict.fromkeys(uuid for other in held for uuid in other.gpus))
            state.owners = [other for other in state.owners if other is owner or other not in held]
        self._write(state)

    def _forget_own(self, state: ClocksState) -> None:
        """Owners that were killed do not count any more, nor does what this one wanted before."""
        state.owners = [owner for owner in state.owners if owner.lives and not _is_same(owner, self.owner)]

    def _write(self, state: ClocksState) -> None:
        try:
            self.store.write(state)
        except OSError as error:
            raise ClockError(f"what the clocks were before cannot be kept in {self.store.path}: {error}") from error

    def _plan(self, uuid: str, state: ClocksState) -> list[tuple[ClockStep, Device | None, Change | None]]:
        """Each setting's step, and the change that it takes; the changes are put into the state as planned."""
        device = self.nvml.device(uuid)
        if device is None:
            reason = self.nvml.opened.reason or "there is no such GPU"
            return [(_step(uuid, setting.name, "refused", reason=reason), None, None) for setting in CLOCK_SETTINGS]
        if device.is_mig or device.is_mig_parent:
            return [(_step(uuid, setting.name, "refused", reason=MIG_REASON), None, None) for setting in CLOCK_SETTINGS]
        return [self._plan_setting(device, setting, state) for setting in CLOCK_SETTINGS]

    def _plan_setting(
        self, device: Device, setting: ClockSetting, state: ClocksState
    ) -> tuple[ClockStep, Device | None, Change | None]:
        before = setting.read(device) if setting.read else Answer()
        wanted = setting.maximum(device) if before.ok else before
        if not wanted.ok:
            answer: StepAnswer = "absent" if _is_absent(setting, wanted) else "refused"
            return _step(device.uuid, setting.name, answer, before=before.value, reason=wanted.reason), None, None
        known = next((change for change in state.changes if _is_of(change, device, setting)), None)
        step = _step(device.uuid, setting.name, "not_tried", before=before.value, wanted=wanted.value)
        if setting.read and before.value == wanted.value:
            return step.model_copy(update={"answer": "already", "after": before.value}), None, None
        if known is None:
            known = Change(gpu_uuid=device.uuid, setting=setting.name, before=before.value, wanted=wanted.value)
            state.changes.append(known)
        elif setting.read:  # somebody changed it in the meantime: that is what comes back in the end
            known.before, known.wanted, known.phase = before.value, wanted.value, "planned"
        return step, device, known

    def _do(self, step: ClockStep, device: Device | None, change: Change | None, state: ClocksState) -> ClockStep:
        if device is None or change is None:
            return step
        if self.interrupted() or (self.stop_on_refusal and any(done.answer == "refused" for done in self.steps)):
            return step
        setting = BY_NAME[step.setting]
        is_new = change.phase == "planned"
        change.phase = "begun"
        self._write(state)
        answer = setting.put(device, change.wanted)
        if not answer.ok:
            if is_new:
                state.changes.remove(change)
            else:
                change.phase = "set"  # by another run, whose change it stays
            result: StepAnswer = "absent" if _is_absent(setting, answer) else "refused"
            return step.model_copy(update={"answer": result, "reason": answer.reason})
        change.phase = "set"
        after = setting.read(device).value if setting.read else None
        if after is not None:  # a driver may round: only what it became can be told from what others set
            change.wanted = after
        return step.model_copy(update={"answer": "set", "after": after})

    def give_back(self) -> list[Restored]:
        """Restore what no other owner wants; call once after `take`."""
        return restore(self.nvml, self.store, leaving=self.owner)


def restore(
    nvml: Nvml,
    store: StateStore,
    *,
    leaving: Owner | None = None,
    holds_end: bool = False,
    force: bool = False,
) -> list[Restored]:
    """Undo every change that nobody wants any more.

    Args:
        leaving: the owner that goes now, by pid and start.
        holds_end: whether what `clocks max` set goes too, as `clocks restore` has it.
        force: whether what running launches want goes too.

    Returns:
        What became of each change, in the order in which they were undone; empty where there was none.

    Raises:
        ClockError: the state cannot be read.
    """
    if not store.path.exists():
        return []
    with store.locked():
        machines = store.machines()
        for state in machines:
            state.owners = [
                owner
                for owner in state.owners
                if _still_wants(owner, state)
                and not (_is_here(owner, state, nvml) and _goes(owner, leaving, holds_end, force))
            ]
        wanted = {uuid for state in machines for owner in state.owners for uuid in owner.gpus}
        return [result for state in machines for result in _restore_machine(nvml, state, store, wanted)]


def _still_wants(owner: Owner, state: ClocksState) -> bool:
    """Whether it lives; one of another machine, whose processes cannot be looked at, is taken to live."""
    return not state.is_of_this_machine or (state.is_of_this_boot and owner.lives)


def _is_here(owner: Owner, state: ClocksState, nvml: Nvml) -> bool:
    """Whether it is for this machine to say that the owner goes: it is its own, or has only GPUs that are here."""
    return state.is_of_this_machine or all(nvml.device(uuid) is not None for uuid in owner.gpus)


def _restore_machine(nvml: Nvml, state: ClocksState, store: StateStore, wanted: Collection[str]) -> list[Restored]:
    """Undo what one machine has changed; of another machine what it did to GPUs that are here."""
    if not state.is_of_this_boot:
        store.remove(state)
        return [
            Restored(change.gpu_uuid, change.setting, "gone_with_restart", change.before)
            for change in reversed(state.changes)
            if change.phase != "planned"
        ]
    changes = [
        change
        for change in reversed(state.changes)
        if state.is_of_this_machine or nvml.device(change.gpu_uuid) is not None
    ]
    if not changes and not state.is_of_this_machine:
        return []
    _note(state, store)  # from here on the changes are nobody's, also if this process does not live to undo them
    results = [result for change in changes for result in _undo_in_any_case(nvml, change, state, store, wanted)]
    if state.owners or state.changes:
        _note(state, store)
    else:
        store.remove(state)
    return results


def _note(state: ClocksState, store: StateStore) -> None:
    """Keep the state up to date while undoing; no fault, of a full disk say, may keep anything from being undone."""
    with contextlib.suppress(Exception):
        store.write(state)


def _goes(owner: Owner, leaving: Owner | None, holds_end: bool, force: bool) -> bool:
    is_leaving = leaving is not None and _is_same(owner, leaving)
    return force or is_leaving or (holds_end and owner.kind == "hold" and owner.complete)


def _is_same(owner: Owner, other: Owner) -> bool:
    return (owner.pid, owner.start_ticks, owner.pid_namespace) == (other.pid, other.start_ticks, other.pid_namespace)


def _undo_in_any_case(
    nvml: Nvml, change: Change, state: ClocksState, store: StateStore, wanted: Collection[str]
) -> list[Restored]:
    """Undo one change; a fault with it, ours or the disk's, must not keep the others from being undone."""
    try:
        return _undo(nvml, change, state, store, wanted)
    except Exception as error:
        if change not in state.changes:  # undone, only not noted on the disk: the next restore finds nothing to do
            return [Restored(change.gpu_uuid, change.setting, "restored", change.before)]
        reason = f"{type(error).__name__}: {error}"
        return [Restored(change.gpu_uuid, change.setting, "failed", change.before, reason)]


def _undo(nvml: Nvml, change: Change, state: ClocksState, store: StateStore, wanted: Collection[str]) -> list[Restored]:
    if change.gpu_uuid in wanted:
        return [Restored(change.gpu_uuid, change.setting, "left_to_others", change.before)]
    if change.phase == "planned":
        state.changes.remove(change)
        return []
    outcome, reason = _put_back(nvml.device(change.gpu_uuid), change, nvml.opened)
    if outcome != "failed":
        state.changes.remove(change)
        _note(state, store)
    return [Restored(change.gpu_uuid, change.setting, outcome, change.before, reason)]


def _put_back(device: Device | None, change: Change, opened: Answer) -> tuple[Outcome, str | None]:
    if device is None:
        return "failed", opened.reason or "there is no such GPU (now, or in this container)"
    setting = BY_NAME[change.setting]
    if setting.read is None or setting.clear is not None:
        cleared = setting.clear(device) if setting.clear else Answer()
        return ("restored", None) if cleared.ok else ("failed", cleared.reason)
    now = setting.read(device)
    if not now.ok:
        return "failed", now.reason
    if now.value == change.before:
        return "nothing_to_do", None
    if now.value != change.wanted:
        return "changed_by_others", None
    answer = setting.put(device, change.before or change.wanted)
    return ("restored", None) if answer.ok else ("failed", answer.reason)


def process_as_owner(kind: Literal["launch", "hold"], pid: int | None = None) -> Owner:
    """A process of this pid namespace as an owner; by default the one that runs this."""
    pid = pid or os.getpid()
    return Owner(
        kind=kind,
        pid=pid,
        start_ticks=start_ticks(pid) or 0,
        pid_namespace=pid_namespace(),
        gpus=[],
        since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        uid=os.geteuid(),
    )


def _is_of(change: Change, device: Device, setting: ClockSetting) -> bool:
    return change.gpu_uuid == device.uuid and change.setting == setting.name


def _is_absent(setting: ClockSetting, answer: Answer) -> bool:
    """Newer cards have no application clocks: that is no refusal."""
    return setting.name == "application_clocks_mhz" and answer.refusal is Refusal.NOT_SUPPORTED


def _step(
    uuid: str,
    name: Setting,
    answer: StepAnswer,
    *,
    before: list[int] | None = None,
    wanted: list[int] | None = None,
    reason: str | None = None,
) -> ClockStep:
    return ClockStep(gpu_uuid=uuid, setting=name, answer=answer, before=before, wanted=wanted, reason=reason)
