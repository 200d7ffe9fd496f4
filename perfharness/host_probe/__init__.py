"""Sample a process's threads from outside: Python stacks, open stages, CPU time, waits.

The measured process passes a read-only view of its memory and the layout of its interpreter to a sampler, which never
takes the interpreter lock or stops the process (docs/internals/embedded-tracer.md). Standard library only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perfharness.model import environment

if TYPE_CHECKING:
    from perfharness.host_probe.probe import HostProbe

MEASURED = 20_000_000, 1
EXPLAINING = 2_000_000, 25
"""Nanoseconds between samples, and per cent of a CPU to use at most, for the measured and the profiling pass."""

_probe: HostProbe | None = None


def start() -> None:
    """Start the probe of this process once, if the launch requests it (`PERFHARNESS_SAMPLING`)."""
    global _probe
    folder = os.environ.get(environment.OUTPUT_DIR)
    explains = os.environ.get(environment.EXPLAIN) == "1"
    if _probe is not None or not folder or not (explains or os.environ.get(environment.SAMPLING) == "1"):
        return
    from perfharness.host_probe.probe import HostProbe  # here, because some processes are not sampled

    rate = EXPLAINING if explains else MEASURED
    _probe = HostProbe(os.path.abspath(folder), *rate)  # noqa: PTH100 - pathlib costs start-up time
    _probe.start()


def follow(stack: Any, recorder: str) -> None:
    """Follow a recorder's stack (`Stack`) of the calling thread, if the process has a probe."""
    if _probe is not None:
        _probe.follow(stack, recorder)
