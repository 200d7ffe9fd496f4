"""GPU clocks at their maximum, and back to what they were.

Each GPU's clocks have one owner at a time: the process that holds the lock on the GPU's state folder, which the kernel
releases however the process ends. The state file in it holds what was there before each change, from before the change
until it is undone; without an owner it is what a killed run left, and the next owner restores that first. What
`clocks max` sets is held: it stays until `clocks restore`, and a launch meanwhile undoes only what it changed itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from perfharness.errors import ClockError, ResultError
from perfharness.files import locked, read_regular, replacing, sync
from perfharness.model.clocks import ClockStep, Outcome, Setting, StepAnswer
from perfharness.telemetry.clock_files import STATE_DIR, STATE_NAME, state_files
from perfharness.telemetry.clock_settings import BY_NAME, CLOCK_SETTINGS, ClockSetting, value_text
from perfharness.telemetry.nvml import Answer, Device, Nvml, Refusal

LOCK_PATIENCE_S = 1.0
MIG_REASON = "the clocks belong to the whole GPU, which is divided into MIG instances that others may be using"
RESTORE_COMMAND = "perfharness clocks restore"


class Change(BaseModel):
    """One setting that was changed, or was about to be."""

    setting: Setting
    before: list[int] | None
    wanted: list[int]


class ClockState(BaseModel):
    """What was changed about one GPU, in the order of the changes.

    Args:
        pid: of the last owner, to be named.
        held: `clocks max` was done; until then, and for a launch, the changes end with their owner.
    """

    pid: int = Field(default_factory=os.getpid)
    since: str = Field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    held: bool = False
    changes: list[Change] = Field(default_factory=list)


@dataclass(frozen=True)
class GpuClocks:
    """The state folder of one GPU's clocks, named by its UUID."""

    folder: Path

    @property
    def gpu_uuid(self) -> str:
        """Of the whole GPU."""
        return self.folder.name

    @property
    def path(self) -> Path:
        """The state file."""
        return self.folder / STATE_NAME

    def read(self) -> ClockState | None:
        """What was changed; None where that is nothing. Raises `ClockError` where the file cannot be read."""
        try:
            return ClockState.model_validate_json(read_regular(self.path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ClockError(f"{self.path}, which keeps what the clocks were, cannot be read: {error}") from error
        except ValidationError as error:
            raise ClockError(
                f"{self.path} is no state of clocks that this version can read ({error.error_count()} faults);"
                " restore the clocks with nvidia-smi (-rgc, -rmc, -rac, -pl, -pm), then remove the file"
            ) from error

    def write(self, state: ClockState) -> None:
        """Replace the file, or remove it where nothing is changed; it is on the disk when this returns.

        Raises:
            ClockError: it cannot be written.
        """
        try:
            if state.changes:
                with replacing(self.path, follow=False) as temporary:
                    temporary.write_text(state.model_dump_json(indent=1))
                    temporary.chmod(0o644)  # whatever root's umask: anybody's next command is to find it
            else:
                self.path.unlink(missing_ok=True)
            sync(self.folder)
        except (OSError, ResultError) as error:
            raise ClockError(f"what the clocks were before cannot be kept: {error}") from error

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Be the owner. Raises `BlockingIOError` where another process is, `ClockError` where nothing can be kept."""
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                for folder in (self.folder, self.folder.parent):
                    folder.chmod(0o755)
        except OSError as error:
            raise ClockError(
                f"what the clocks were before cannot be kept in {self.folder}: {error}; nothing was changed; "
                f"{STATE_DIR} names another folder"
            ) from error
        with locked(self.folder, LOCK_PATIENCE_S):
            yield

    def is_owned(self) -> bool:
        """Whether a running process owns them now."""
        try:
            with locked(self.folder):
                return False
        except OSError:  # held, or of a folder that this user may not open
            return True

    def unrestored(self) -> str | None:
        """What a killed run did not restore, in one line; None where there is nothing. Raises `ClockError`."""
        state = self.read()
        if state is None or state.held or self.is_owned():
            return None
        settings = ", ".join(dict.fromkeys(BY_NAME[change.setting].title for change in state.changes))
        what = f"a run that was killed may have left GPU {self.gpu_uuid} changed ({settings})"
        return f"{what}; `{RESTORE_COMMAND}` brings back what was before"


def changed_gpus(folders: Sequence[Path]) -> list[GpuClocks]:
    """The GPUs of which a state file is kept in these folders."""
    return [GpuClocks(path.parent) for path in state_files(folders)]


@dataclass(frozen=True)
class Restored:
    """The outcome of undoing one change."""

    gpu_uuid: str
    setting: Setting
    outcome: Outcome
    before: list[int] | None = None
    reason: str | None = None

    def __str__(self) -> str:
        """One line."""
        what = f"GPU {self.gpu_uuid}: {BY_NAME[self.setting].title}"
        back = value_text(self.setting, self.before) if self.before else "released"
        return {
            "restored": f"{what} restored: {back}",
            "nothing_to_do": f"{what}: {back} already",
            "left_to_others": f"{what} left as it is: {self.reason}",
            "changed_by_others": f"{what} left as it is: something else has changed it since",
            "failed": f"{what} could not be restored: {self.reason}",
        }[self.outcome]


@dataclass
class _Owned:
    clocks: GpuClocks
    state: ClockState
    first: int
    """Number of the first change that ends with this owner: those before are held."""


@dataclass
class ClockOwner:
    """Sets the clocks of some GPUs to their maximum, and restores them.

    Args:
        nvml: open.
        folder: where what they were before is kept.
        interrupted: asked before each step; once true, the others are not tried.
    """

    nvml: Nvml
    folder: Path
    interrupted: Callable[[], bool] = lambda: False
    steps: list[ClockStep] = field(default_factory=list)
    _owned: list[_Owned] = field(default_factory=list)
    _locks: ExitStack = field(default_factory=ExitStack)

    def maximize(self, gpu_uuids: Sequence[str]) -> list[ClockStep]:
        """Set everything; returns each step's answer.

        Raises:
            ClockError: what was before cannot be kept, or what an earlier run kept cannot be read. Whatever is raised,
                what was changed has been restored.
        """
        try:
            for uuid in gpu_uuids:
                self._maximize_gpu(uuid)
        except BaseException:
            self.restore()
            raise
        return self.steps

    def hold(self) -> None:
        """Leave the clocks as they are until `restore`, the function, is called; ends the ownership."""
        with self._locks:
            for owned in self._owned:
                owned.state.held = True
                owned.clocks.write(owned.state)
            self._owned.clear()

    def restore(self) -> list[Restored]:
        """Undo what this owner changed, the last change first; ends the ownership."""
        results = []
        with self._locks:
            while self._owned:
                owned = self._owned.pop()
                if owned.clocks.path.exists():  # else it was restored by force
                    results += _undo(self.nvml, owned.clocks, owned.state, owned.first)
        return results

    def _maximize_gpu(self, uuid: str) -> None:
        device = self.nvml.device(uuid)
        if device is None:
            return self._refuse(uuid, self.nvml.opened.reason or "there is no such GPU")
        if device.is_mig or device.is_mig_parent:
            return self._refuse(uuid, MIG_REASON)
        clocks = GpuClocks(self.folder / uuid)
        try:
            self._locks.enter_context(clocks.owned())
        except BlockingIOError:
            return self._refuse(uuid, _owner_text(clocks))
        state = clocks.read() or ClockState()
        if not state.held:  # what a killed run left
            _undo(self.nvml, clocks, state)
        state.pid = os.getpid()
        owned = _Owned(clocks, state, len(state.changes) if state.held else 0)
        self._owned.append(owned)
        for setting in CLOCK_SETTINGS:
            self.steps.append(self._maximize(device, setting, owned))
        if state.changes:
            clocks.write(state)
        return None

    def _refuse(self, uuid: str, reason: str) -> None:
        steps = (ClockStep(gpu_uuid=uuid, setting=one.name, answer="refused", reason=reason) for one in CLOCK_SETTINGS)
        self.steps.extend(steps)

    def _maximize(self, device: Device, setting: ClockSetting, owned: _Owned) -> ClockStep:
        before = setting.read(device) if setting.read else Answer()
        wanted = setting.maximum(device) if before.ok else before
        step = ClockStep(
            gpu_uuid=device.uuid, setting=setting.name, answer="not_tried", before=before.value, wanted=wanted.value
        )
        if not wanted.ok:
            return step.model_copy(update={"answer": _refusal(setting, wanted), "reason": wanted.reason})
        is_held = any(change.setting == setting.name for change in owned.state.changes)
        if before.value == wanted.value if setting.read else is_held:
            return step.model_copy(update={"answer": "already", "after": before.value})
        if self.interrupted():
            return step
        change = Change(setting=setting.name, before=before.value, wanted=wanted.value)
        owned.state.changes.append(change)
        owned.clocks.write(owned.state)
        answer = setting.put(device, change.wanted)
        if not answer.ok:
            owned.state.changes.remove(change)
            owned.clocks.write(owned.state)
            return step.model_copy(update={"answer": _refusal(setting, answer), "reason": answer.reason})
        after = setting.read(device).value if setting.read else None
        change.wanted = after or change.wanted  # a driver may round: else what it made of it would seem another's
        return step.model_copy(update={"answer": "set", "after": after})


def restore(nvml: Nvml, folders: Sequence[Path], *, force: bool = False) -> list[Restored]:
    """Undo every change kept in these folders, what `clocks max` holds included.

    Args:
        force: whether the changes of a launch that still runs are undone too.

    Returns:
        The outcome of each change, in the order in which they were undone; empty where there was none.

    Raises:
        ClockError: a state file cannot be read, or its folder not be used.
    """
    results = []
    for clocks in changed_gpus(folders):
        with ExitStack() as owning:
            try:
                owning.enter_context(clocks.owned())
            except BlockingIOError:
                if not force:
                    reason = _owner_text(clocks)
                    results += [
                        Restored(clocks.gpu_uuid, change.setting, "left_to_others", change.before, reason)
                        for change in reversed((clocks.read() or ClockState()).changes)
                    ]
                    continue
            if (state := clocks.read()) is not None:
                state.held = False  # from here on it is to be undone, also if this process does not live to do so
                clocks.write(state)
                results += _undo(nvml, clocks, state)
    return results


def _owner_text(clocks: GpuClocks) -> str:
    state = clocks.read()
    return f"a perfharness run is using its clocks{f' (pid {state.pid})' if state else ''}"


def _undo(nvml: Nvml, clocks: GpuClocks, state: ClockState, first: int = 0) -> list[Restored]:
    """Undo the changes from that one on, all of them, even if one or a write to the disk fails."""
    results = []
    for change in reversed(state.changes[first:]):
        try:
            outcome, reason = _put_back(nvml.device(clocks.gpu_uuid), change, nvml.opened)
        except Exception as error:
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
        if outcome != "failed":
            state.changes.remove(change)
            with contextlib.suppress(ClockError):  # then the next restore finds nothing to do
                clocks.write(state)
        results.append(Restored(clocks.gpu_uuid, change.setting, outcome, change.before, reason))
    return results


def _put_back(device: Device | None, change: Change, opened: Answer) -> tuple[Outcome, str | None]:
    if device is None:
        return "failed", opened.reason or "there is no such GPU (now, or in this container)"
    setting = BY_NAME[change.setting]
    if setting.clear is not None:
        answer = setting.clear(device)
    else:
        assert setting.read is not None  # only locks cannot be read
        answer = setting.read(device)
        if answer.ok and answer.value == change.before:
            return "nothing_to_do", None
        if answer.ok and answer.value != change.wanted:
            return "changed_by_others", None
        if answer.ok:
            answer = setting.put(device, change.before or change.wanted)
    return ("restored", None) if answer.ok else ("failed", answer.reason)


def _refusal(setting: ClockSetting, answer: Answer) -> StepAnswer:
    """Newer cards have no application clocks: that is no refusal."""
    is_absent = setting.name == "application_clocks_mhz" and answer.refusal is Refusal.NOT_SUPPORTED
    return "absent" if is_absent else "refused"
