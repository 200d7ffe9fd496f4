"""Fault injection: every NVML call of a process is a numbered step.

The plan travels in the environment, so that the command under test is the real one in a real process.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

STEP_FAULTS = "PERFHARNESS_STEP_FAULTS"
"""JSON list of `Fault`s, as `faults_to_json` writes it."""


class InjectedError(Exception):
    """An unexpected exception, injected at a step."""


@dataclass(frozen=True)
class Fault:
    """A fault at a step.

    Args:
        step: number of the step in its process, from 1; None: at any.
        name: shell pattern of the step's name (`nvmlDeviceSet*`).
        error: NVML error code to return instead of the call.
        signal: name of a signal that the process sends to itself.
        raises: whether an `InjectedError` is raised.
        when: before the step is done, or after.
    """

    step: int | None = None
    name: str = "*"
    error: int | None = None
    signal: str | None = None
    raises: bool = False
    when: Literal["before", "after"] = "before"


def faults_to_json(*faults: Fault) -> str:
    """The value of `PERFHARNESS_STEP_FAULTS`."""
    return json.dumps([asdict(fault) for fault in faults])


@dataclass
class Steps:
    """Counts the steps of a process and injects planned faults."""

    faults: list[Fault] = field(default_factory=list)
    count: int = 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Steps:
        """Faults of the environment variable; none without it."""
        return cls([Fault(**fault) for fault in json.loads(environ.get(STEP_FAULTS) or "[]")])

    def before(self, name: str) -> int | None:
        """A step begins; returns the NVML error code that it is to fail with, or None."""
        self.count += 1
        return self._apply_faults(name, "before")

    def after(self, name: str) -> None:
        """The latest step is done."""
        self._apply_faults(name, "after")

    def _apply_faults(self, name: str, when: str) -> int | None:
        for fault in self.faults:
            if fault.when != when or fault.step not in (None, self.count) or not fnmatchcase(name, fault.name):
                continue
            if fault.signal is not None:
                os.kill(os.getpid(), signal.Signals[fault.signal])
            if fault.raises:
                raise InjectedError(f"{when} step {self.count}, {name}")
            if fault.error is not None:
                return fault.error
        return None
