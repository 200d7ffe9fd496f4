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
        from perfharness.tracer.session import Session

        folder = os.path.abspath(output_dir)  # noqa: PTH100 - pathlib costs start-up time
        session = Session.of_this_process(folder, _write_trace)
        session.watch(gpu_modules)
        if leave_log:
            session.log.open()


def _write_trace(session: Session) -> None:
    from perfharness.tracer.output import write_trace  # NumPy is not imported before the end

    write_trace(session)
