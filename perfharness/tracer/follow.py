"""In each process of a launch: the tracer, started with the first module that makes ranges or GPU work."""

from __future__ import annotations

import os
from collections.abc import Collection

from perfharness import tracer
from perfharness.model import environment


def start(gpu_modules: Collection[str] = ()) -> None:
    """Start the tracer and the host probe where the launch asks for them."""
    tracer.start(gpu_modules)
    if os.environ.get(environment.OUTPUT_DIR) and os.environ.get(environment.EXPLAIN) == "1":
        from perfharness import host_probe

        host_probe.start()
