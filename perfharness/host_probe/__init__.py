"""What a process's threads do, sampled from beside it: Python stacks, open stages, CPU time, waits.

A measured process hands a sampler a read-only view of its memory and the layout of its interpreter; the sampler never
takes the interpreter lock and never stops the process (docs/internals/embedded-tracer.md). Standard library only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perfharness.model import environment

if TYPE_CHECKING:
    from perfharness.host_probe.probe import HostProbe

MEASURED = 20_000_000, 1
EXPLAINING = 2_000_000, 25
"""In the measured pass and in the profiling pass: nanoseconds between samples, and per cent of a CPU they may take."""

_probe: HostProbe | None = None


def start() -> None:
    """Start the probe of this process, once, where a launch asks for it (`PERFHARNESS_SAMPLING`)."""
    global _probe
    folder = os.environ.get(environment.OUTPUT_DIR)
    explains = os.environ.get(environment.EXPLAIN) == "1"
    if _probe is not None or not folder or not (explains or os.environ.get(environment.SAMPLING) == "1"):
        return
    from perfharness.host_probe.probe import HostProbe  # here, for some processes are not sampled

    rate = EXPLAINING if explains else MEASURED
    _probe = HostProbe(os.path.abspath(folder), *rate)  # noqa: PTH100 - pathlib costs start-up time
    _probe.start()


def follow(stack: Any, recorder: str) -> None:
    """Have a recorder's stack (`Stack`) of the calling thread followed, where the process has a probe."""
    if _probe is not None:
        _probe.follow(stack, recorder)
