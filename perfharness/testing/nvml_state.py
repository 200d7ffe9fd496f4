"""Changes by a replayed NVML's setters, on disk, so that all processes of a test share one machine."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class DeviceState(BaseModel):
    """The settings of one GPU; None where the card has no such setting, or where nothing is locked."""

    model_config = ConfigDict(extra="forbid")

    persistence_mode: int | None = None
    power_limit_mw: int | None = None
    locked_graphics_mhz: tuple[int, int] | None = None
    """Least and most; neither NVML nor the replay can read them back."""

    locked_memory_mhz: tuple[int, int] | None = None
    application_clocks_mhz: tuple[int, int] | None = None
    """Memory, graphics: in the order in which they are set."""


class NvmlState(BaseModel):
    """All GPUs by UUID, and when the replay began."""

    model_config = ConfigDict(extra="forbid")

    devices: dict[str, DeviceState] = Field(default_factory=dict)
    begin_monotonic_ns: int = 0
    begin_unix_ns: int = 0


class StateFile:
    """An `NvmlState` in a file that processes share.

    Args:
        initial: the state without a file.
    """

    def __init__(self, path: Path, initial: NvmlState) -> None:
        self._path = path
        with self.changing() as state:
            if not state.devices:
                state.devices = initial.devices
                state.begin_monotonic_ns = initial.begin_monotonic_ns
                state.begin_unix_ns = initial.begin_unix_ns

    def read(self) -> NvmlState:
        """The state now."""
        return NvmlState.model_validate_json(self._path.read_bytes())

    @contextmanager
    def changing(self) -> Iterator[NvmlState]:
        """Change the state; other processes wait."""
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read() if self._path.exists() else NvmlState()
            yield state
            whole = self._path.with_suffix(f".{os.getpid()}.new")
            whole.write_text(json.dumps(state.model_dump(mode="json"), indent=1))
            whole.replace(self._path)


class StateInMemory:
    """The same within one process."""

    def __init__(self, initial: NvmlState) -> None:
        self._state = initial

    def read(self) -> NvmlState:
        """The state now."""
        return self._state

    @contextmanager
    def changing(self) -> Iterator[NvmlState]:
        """Change the state."""
        yield self._state
