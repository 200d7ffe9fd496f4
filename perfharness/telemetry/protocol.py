"""Messages between the sampler and its parent: one line of JSON each. Needs no numeric library."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from perfharness.model.telemetry import FailureRecord, TelemetryMeta, process_subject

SPOOL_NAME = ".telemetry.spool"
"""What the sampler writes while it runs, next to the file that is made of it."""


class SamplerOptions(BaseModel):
    """What a sampler is started with, as JSON in its only argument."""

    model_config = ConfigDict(frozen=True)

    spool: Path
    target: Path
    """The Parquet file that the spool becomes."""

    period_ns: int
    gpu_uuids: list[str] = Field(default_factory=list)
    idle_ns: int = 0
    """How long the GPUs are watched before the sampler is ready, nothing of the run's being on them."""

    cpus: list[int] = Field(default_factory=list)
    """CPUs to stay on, those that no measured process has; empty: any."""


class FollowedProcess(BaseModel):
    """A measured process that has begun. `pid` is in the namespace that the sampler shares with its parent."""

    folder: str
    pid: int
    gpu_uuids: list[str] = Field(default_factory=list)

    @property
    def subject(self) -> str:
        """Of its readings."""
        return process_subject(self.folder)


class Command(BaseModel):
    """To the sampler."""

    follow: FollowedProcess | None = None
    stop: bool = False


class Ready(BaseModel):
    """Every source has been read for the first time."""

    problems: dict[str, str] = Field(default_factory=dict)
    """Sources that gave up, and why."""

    nvml_problem: str | None = None


class Done(BaseModel):
    """The file is written."""

    meta: TelemetryMeta
    sampled: dict[str, list[str]] = Field(default_factory=dict)
    """Metrics of each subject that were read at least once; the cores together as `cores`."""

    unread: list[FailureRecord] = Field(default_factory=list)
    """Metrics that were never read."""

    asked: bool = False
    """Whether the sampler ended on request."""


class Answer(BaseModel):
    """From the sampler: `ready` first, `done` last."""

    ready: Ready | None = None
    done: Done | None = None


_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from perfharness.telemetry.sampler import main; sys.exit(main(sys.argv[1:]))"
)


def sampler_command(options: SamplerOptions, python: str = sys.executable, path: Sequence[str] = ()) -> list[str]:
    """The command line of a sampler that finds what this process finds, whatever lies in the folder it starts in."""
    found = [os.path.abspath(entry) for entry in (path or sys.path)]  # noqa: PTH100 - "" is the current folder
    return [python, "-I", "-c", _BOOT, json.dumps(found), options.model_dump_json()]
