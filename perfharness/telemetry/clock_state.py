"""The file that says what was changed about the clocks: written before anything changes, gone when all is undone.

One per machine, so that any user's next command finds it: in `/var/lib/perfharness` (else `/run/perfharness`) for root,
who alone may lock clocks; for anybody else in their own state folder. `PERFHARNESS_STATE_DIR` names another: a folder
that containers on one machine share.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfharness.errors import ClockError
from perfharness.files import NOT_REGULAR
from perfharness.model.clocks import Setting

STATE_DIR = "PERFHARNESS_STATE_DIR"
"""Folder of the record of changed clocks; containers that share a GPU have to share it."""

STATE_NAME = "clocks.json"
LOCK_NAME = "clocks.lock"
STATE_VERSION = 2
FOR_ALL_TO_READ = 0o644
LOCK_PATIENCE_S = 30.0
LOCK_PERIOD_S = 0.05
SHARED_DIRS = (Path("/var/lib/perfharness"), Path("/run/perfharness"))


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Owner(_Model):
    """Who wants the clocks as they were set.

    Args:
        kind: a launch, until it ends; or `clocks max`, until `clocks restore`.
        start_ticks: when the process started, in the kernel's ticks since boot; with the pid it names one process.
        pid_namespace: pids mean nothing in another one (another container).
        complete: `clocks max` has done all it was to do; until then it counts as long as its process lives.
    """

    kind: Literal["launch", "hold"]
    pid: int
    start_ticks: int
    pid_namespace: str
    gpus: list[str]
    since: str
    uid: int = 0
    complete: bool = False

    @property
    def lives(self) -> bool:
        """Whether it still wants its clocks; one whose process cannot be looked at is taken to live."""
        if self.kind == "hold" and self.complete:
            return True
        if self.pid_namespace != pid_namespace():
            return True
        return start_ticks(self.pid) == self.start_ticks or is_hidden(self.pid)


class Change(_Model):
    """One setting that was changed, or was about to be.

    Args:
        phase: `planned`: nothing was done yet; `begun`: the call may have been made; `set`: it was.
    """

    gpu_uuid: str
    setting: Setting
    before: list[int] | None
    wanted: list[int]
    phase: Literal["planned", "begun", "set"] = "planned"


class ClocksState(_Model):
    """What was changed by one machine: a boot id, or, after a restart, a host's name, tells which."""

    boot_id: str = Field(default_factory=lambda: boot_id())
    machine: str = Field(default_factory=lambda: machine_name())
    written_unix_s: float = Field(default_factory=time.time)
    owners: list[Owner] = Field(default_factory=list)
    changes: list[Change] = Field(default_factory=list)

    @property
    def is_of_this_machine(self) -> bool:
        """False for a machine, or a container with a kernel of its own, that shares the folder."""
        return self.boot_id == boot_id() or self.machine == machine_name()

    @property
    def is_of_this_boot(self) -> bool:
        """A restart has undone every change: none of these settings outlives it.

        A boot id that differs is no proof, for some containers have their own; the machine must have started since.
        """
        return self.boot_id == boot_id() or not self.is_of_this_machine or self.written_unix_s >= boot_unix_s()

    @property
    def wanted_gpus(self) -> set[str]:
        """GPUs that somebody still wants as they are."""
        return {uuid for owner in self.owners if owner.lives for uuid in owner.gpus}

    @property
    def left_behind(self) -> list[Change]:
        """Changes that nobody wants any more, and that may have been made."""
        return [
            change for change in self.changes if change.gpu_uuid not in self.wanted_gpus and change.phase != "planned"
        ]


class _File(_Model):
    """The whole file."""

    version: int = STATE_VERSION
    machines: list[ClocksState]


def machine_name() -> str:
    """The same before and after a restart; of no use to tell containers apart that were made of one image."""
    try:
        machine_id = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        machine_id = ""
    return f"{socket.gethostname()}/{machine_id}"


def boot_unix_s() -> float:
    """When this machine started."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """What the kernel calls this run of the machine; the same in all its containers."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """The pid namespace of this process."""
    return str(Path("/proc/self/ns/pid").readlink())


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot (field 22 of /proc/PID/stat); None where none runs, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_hidden(pid: int) -> bool:
    """Whether there is a process that this user cannot look at (/proc mounted with hidepid)."""
    if Path(f"/proc/{pid}").exists():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True)
class StateStore:
    """The state in one folder."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file itself."""
        return self.folder / STATE_NAME

    def read(self) -> ClocksState | None:
        """What this machine has changed; None where that is nothing. Raises `ClockError`, as `machines` does."""
        own = [state for state in self.machines() if state.is_of_this_machine]
        return min(own, key=lambda state: state.boot_id != boot_id(), default=None)

    def machines(self) -> list[ClocksState]:
        """What each machine has changed that shares the folder.

        Raises:
            ClockError: the file is there and cannot be read.
        """
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):  # opening a FIFO would wait for ever
                raise OSError(NOT_REGULAR)
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ClockError(
                f"{self.path}, which says what was changed about the clocks, cannot be read: {error}"
            ) from error
        try:
            file = _File.model_validate_json(data)
        except ValidationError as error:
            raise ClockError(
                f"{self.path} is no state of clocks that this version can read ({error.error_count()} faults);"
                " put the clocks right with nvidia-smi (-rgc, -rmc, -rac, -pl, -pm), then remove the file"
            ) from error
        if file.version > STATE_VERSION:
            raise ClockError(f"{self.path} was written by a newer perfharness; restore the clocks with that one")
        return file.machines

    def _others(self, state: ClocksState) -> list[ClocksState]:
        """What the file holds beside this, of machines that may still want it."""
        key = (state.machine, state.boot_id)
        return [one for one in self.machines() if (one.machine, one.boot_id) != key and one.is_of_this_boot]

    def write(self, state: ClocksState) -> None:
        """Put what a machine has changed into the file, in place of what was there of it."""
        self._replace([state.model_copy(update={"written_unix_s": time.time()}), *self._others(state)])

    def remove(self, state: ClocksState) -> None:
        """Nothing of this is changed any more. Without any other, the file goes."""
        if others := self._others(state):
            self._replace(others)
            return
        os.unlink(self.path)  # noqa: PTH108 - by the name that tests of kills look for
        self._sync_folder()

    def _replace(self, machines: list[ClocksState]) -> None:
        """Replace the file as a whole, and be sure that it is on the disk."""
        new = self.folder / f"{STATE_NAME}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FOR_ALL_TO_READ)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(_File(machines=machines).model_dump_json(indent=1).encode())
            os.fchmod(descriptor, FOR_ALL_TO_READ)  # whatever root's umask: anybody's next command is to find it
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(new, self.path)  # noqa: PTH105 - by the name that tests of kills look for
        self._sync_folder()

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
        """Keep every other perfharness of this machine from reading and changing meanwhile.

        Raises:
            ClockError: the folder cannot be used, or another holds the lock too long.
        """
        try:
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                self.folder.chmod(0o755)
            descriptor = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ClockError(
                f"what the clocks were before cannot be kept in {self.folder}: {error}; nothing was changed; "
                f"{STATE_DIR} names another folder"
            ) from error
        try:
            _wait_for(descriptor, self.folder / LOCK_NAME, patience_s)
            yield
        finally:
            os.close(descriptor)


def _wait_for(descriptor: int, path: Path, patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise ClockError(
                    f"another perfharness has been changing clocks for {patience_s:g} s (it holds {path}); try again"
                ) from None
        time.sleep(LOCK_PERIOD_S)


def own_store(environ: Mapping[str, str] | None = None) -> StateStore:
    """Where this user's changes are kept."""
    return StateStore(_folders(os.environ if environ is None else environ)[0])


def all_stores(environ: Mapping[str, str] | None = None) -> list[StateStore]:
    """Where this user's next command looks: one's own place first, then root's."""
    return [StateStore(folder) for folder in _folders(os.environ if environ is None else environ)]


def _folders(environ: Mapping[str, str]) -> list[Path]:
    if named := environ.get(STATE_DIR):
        return [Path(named)]
    if os.geteuid() == 0:
        lasting, passing = SHARED_DIRS
        return [lasting, passing] if os.access(_first_that_exists(lasting), os.W_OK) else [passing, lasting]
    state_home = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or "/") / ".local" / "state"
    return [Path(state_home) / "perfharness", *SHARED_DIRS]


def _first_that_exists(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
