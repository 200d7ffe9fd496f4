"""What a process's threads do, sampled from beside it: Python stacks, open stages, CPU time, waits.

A process that is explained hands a sampler, a child of its own, a read-only view of its memory and the layout of its
interpreter; the sampler never takes the interpreter lock (docs/internals/host-probe.md). Standard library only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perfharness.model import environment

if TYPE_CHECKING:
    from perfharness.host_probe.probe import HostProbe

_probe: HostProbe | None = None


def start() -> None:
    """Start the probe of this process, once, where a launch asks for it (`PERFHARNESS_EXPLAIN`)."""
    global _probe
    folder = os.environ.get(environment.OUTPUT_DIR)
    if _probe is not None or not folder or os.environ.get(environment.EXPLAIN) != "1":
        return
    from perfharness.host_probe.probe import HostProbe  # here, for most processes are not explained

    _probe = HostProbe(os.path.abspath(folder))  # noqa: PTH100 - pathlib costs start-up time
    _probe.start()


def follow(stack: Any, recorder: str) -> None:
    """Have a recorder's stack (`Stack`) of the calling thread followed, where the process has a probe."""
    if _probe is not None:
        _probe.follow(stack, recorder)
