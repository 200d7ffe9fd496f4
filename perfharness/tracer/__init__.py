"""The embedded tracer: records ranges and GPU work inside the measured process, where there is no nsys."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perfharness.model import environment

if TYPE_CHECKING:
    from perfharness.tracer.session import Session


def start(*, uses_gpu: bool, launched: bool = False) -> None:
    """Record this process from now on, where the launch has the embedded tracer; a second call adds the GPU.

    Args:
        uses_gpu: a module that uses the GPU is about to be imported.
        launched: leave a trace even of a process that makes no range.
    """
    output_dir = os.environ.get(environment.OUTPUT_DIR)
    if not output_dir or os.environ.get(environment.TRACER) not in environment.LOGGING_TRACERS:
        return
    from perfharness.model.range_log import RangeAttributes
    from perfharness.tracer.session import Session

    path = os.path.abspath(output_dir)  # noqa: PTH100 - start-up time
    session = Session.current or Session.start(path, _write_trace)
    if launched:
        session.log.key(RangeAttributes(None, ""))  # has the file made
    if uses_gpu:
        session.start_gpu()


def _write_trace(session: Session) -> None:
    """Write it at the end of the process, for decoding takes NumPy."""
    from perfharness.tracer.output import write_trace

    write_trace(session)
