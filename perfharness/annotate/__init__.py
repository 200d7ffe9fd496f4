"""Annotation from outside: functions named in a file become ranges, in every process of a launch.

The start-up hook calls `start`. Standard library only; the recorder is imported with the first range.
"""

from __future__ import annotations

import os

from perfharness.model import environment


def start() -> None:
    """Annotate the requested functions when they are imported."""
    text, folder = os.environ.get(environment.ANNOTATIONS), os.environ.get(environment.OUTPUT_DIR)
    if not text or not folder:
        return
    from perfharness.annotate.imports import follow_imports
    from perfharness.annotate.runtime import Runtime
    from perfharness.annotate.script_functions import follow_script
    from perfharness.model.annotations import Annotations

    runtime = Runtime(Annotations.from_json(text), os.path.abspath(folder))  # noqa: PTH100 - start-up time
    follow_imports(runtime)
    follow_script(runtime)
