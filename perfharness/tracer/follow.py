"""In a process that a launched one started: the tracer, begun with the first module that makes ranges or GPU work."""

from __future__ import annotations

import os

from perfharness.model import environment


def start(*, uses_gpu: bool) -> None:
    """Begin, where this process does not record yet; `uses_gpu`: the module that is about to be imported does."""
    output_dir = os.environ.get(environment.OUTPUT_DIR)
    if not output_dir:
        return
    if os.environ.get(environment.TRACER) in environment.LOGGING_TRACERS:
        from perfharness.tracer.ending import write
        from perfharness.tracer.session import Session

        session = Session.current or Session.follow(os.path.abspath(output_dir), write)  # noqa: PTH100 - start-up time
        if uses_gpu:
            session.start_gpu()
    if os.environ.get(environment.EXPLAIN) == "1":
        from perfharness import host_probe

        host_probe.start()
