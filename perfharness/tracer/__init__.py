"""The embedded tracer: records ranges and GPU work in the measured process, without nsys.

`start` starts it; `output.complete_traces` makes traces from the logs of a launch.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from perfharness.model import environment

if TYPE_CHECKING:
    from perfharness.tracer.session import Session


def start(gpu_modules: Collection[str] = (), *, leave_log: bool = False) -> None:
    """Record this process if the launch uses the embedded tracer; further calls add modules.

    Args:
        gpu_modules: modules that use CUDA; the import of the first starts recording GPU work.
        leave_log: make a log, and so a trace, even without ranges.
    """
    output_dir = os.environ.get(environment.OUTPUT_DIR)
    if output_dir and os.environ.get(environment.TRACER) in environment.LOGGING_TRACERS:
        from perfharness.tracer.session import Session

        folder = os.path.abspath(output_dir)  # noqa: PTH100 - pathlib costs start-up time
        session = Session.of_this_process(folder, write_trace)
        session.watch(gpu_modules)
        if leave_log:
            session.log.open()


def write_trace(session: Session) -> None:
    """Write the trace of a session at its end."""
    from perfharness.tracer import output  # needs NumPy, which a process without CUDA may lack

    output.write_trace(session)
