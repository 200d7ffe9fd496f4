"""The embedded tracer: records ranges and GPU work inside the measured process, where there is no nsys.

`start` starts it; `output.complete_traces` makes traces of what the processes of a launch left.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from perfharness.model import environment

if TYPE_CHECKING:
    from perfharness.tracer.session import Session


def start(gpu_modules: Collection[str] = (), *, leave_log: bool = False) -> None:
    """Record this process from now on, where the launch has the embedded tracer; again: add modules.

    Args:
        gpu_modules: names of modules that use CUDA; with the first of them, GPU work is recorded.
        leave_log: leave a log, and so a trace, even of a process that makes no range.
    """
    output_dir = os.environ.get(environment.OUTPUT_DIR)
    if output_dir and os.environ.get(environment.TRACER) in environment.LOGGING_TRACERS:
        from perfharness.tracer import session

        path = os.path.abspath(output_dir)  # noqa: PTH100 - pathlib costs start-up time
        session.start(path, _write_trace, gpu_modules)
        if leave_log and session.Session.current is not None:
            session.Session.current.log.open()


def _write_trace(session: Session) -> None:
    """Write the trace at the end of the process; decoding takes NumPy."""
    from perfharness.tracer.output import write_trace

    write_trace(session)
