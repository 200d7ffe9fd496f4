"""What a process writes at its end. Modules that decode and write are imported then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perfharness.model import environment
from perfharness.tracer.cuda_use import maps_cuda

if TYPE_CHECKING:
    from perfharness.tracer.session import Session


def write(session: Session) -> None:
    """Write the trace, or what the launch makes it of."""
    session.log.restore()
    if session.is_launched:
        _write_launched(session)
    else:
        _write_followed(session)


def _write_launched(session: Session) -> None:
    """Of ranges alone the launcher makes the trace, so that the process ends as it would without a tracer."""
    only_ranges = os.environ.get(environment.TRACER) == environment.ONLY_RANGES
    if only_ranges and session.log_name in os.listdir(session.output_dir) and not session.diagnostics:  # noqa: PTH208
        return
    from perfharness.tracer.output import write_trace

    write_trace(session)


def _write_followed(session: Session) -> None:
    """Of a process that did not use the GPU the launch makes the trace: it ends as it would without a tracer."""
    used = session.gpu_present and maps_cuda()
    if used:
        from perfharness.tracer.gpu import cuda_was_used

        used = cuda_was_used()
    if used and session.gpu is not None:
        from perfharness.tracer.output import write_trace

        write_trace(session)
    else:
        reason = session.gpu_reason or "CUDA was used by a library that the tracer does not know"
        session.log.note_end(cuda_used=used, gpu_reason=reason)
