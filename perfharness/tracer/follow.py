"""In each process of a launch: the tracer, started with the first module that makes ranges or GPU work."""

from __future__ import annotations

import os
from collections.abc import Collection

from perfharness.model import environment
from perfharness.tracer.session import Session
from perfharness.tracer.session import start as start_session


def followed(output_dir: str, gpu_modules: Collection[str] = ()) -> Session:
    """The session of this process, started where there is none yet."""
    return start_session(output_dir, gpu_modules)


def start(gpu_modules: Collection[str]) -> None:
    """Start the tracer and the host probe where the launch asks for them."""
    output_dir = os.environ.get(environment.OUTPUT_DIR)
    if not output_dir:
        return
    if os.environ.get(environment.TRACER) in environment.LOGGING_TRACERS:
        followed(os.path.abspath(output_dir), gpu_modules)  # noqa: PTH100 - start-up time
    if os.environ.get(environment.EXPLAIN) == "1":
        from perfharness import host_probe

        host_probe.start()
