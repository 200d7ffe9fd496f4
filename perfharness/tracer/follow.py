"""In a process that a launched one started: the tracer, begun with the first module that makes ranges or GPU work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perfharness.model import environment

if TYPE_CHECKING:
    from perfharness.tracer.session import Session


def followed(output_dir: str) -> Session:
    """The session of this process, begun where there is none yet."""
    from perfharness.tracer.ending import write
    from perfharness.tracer.session import Session

    return Session.current or Session.follow(output_dir, write)


def start(*, uses_gpu: bool) -> None:
    """Begin, where this process does not record yet; `uses_gpu`: the module that is about to be imported does."""
    output_dir = os.environ.get(environment.OUTPUT_DIR)
    if not output_dir:
        return
    if os.environ.get(environment.TRACER) in environment.LOGGING_TRACERS:
        session = followed(os.path.abspath(output_dir))  # noqa: PTH100 - start-up time
        if uses_gpu:
            session.start_gpu()
    if os.environ.get(environment.EXPLAIN) == "1":
        from perfharness import host_probe

        host_probe.start()
