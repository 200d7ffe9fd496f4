"""From the command line to the script: watch for the named functions, then hand the process over."""

from __future__ import annotations

import os
import sys

from perfharness import host_probe, script
from perfharness.annotate.main_module import script_compiler
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.watch import watch_imports
from perfharness.model import environment
from perfharness.model.annotations import Annotations

USAGE = "usage: python -m perfharness.annotate [-m MODULE | SCRIPT.py] [arguments of the script]"


def main() -> None:
    """Run the script of `sys.argv`, annotated; its exceptions pass through."""
    arguments = sys.argv[1:]
    text, folder = os.environ.get(environment.ANNOTATIONS), os.environ.get(environment.OUTPUT_DIR)
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.exit(USAGE)
    if not text or not folder:
        sys.exit(
            f"perfharness.annotate: {environment.ANNOTATIONS} or {environment.OUTPUT_DIR} is not set; "
            "use `perfharness launch --annotate FILE.toml`"
        )
    end_by_sigint = script.ending_by_sigint()
    is_child = os.environ.get(environment.CHILD_PID) == str(os.getpid())
    folder = os.path.abspath(folder)  # noqa: PTH100 - as the tracer does
    runtime = Runtime(Annotations.from_json(text), folder, is_child=is_child)
    watch_imports(runtime)
    compile_script = script_compiler(runtime)
    logs = os.environ.get(environment.TRACER) in environment.LOGGING_TRACERS
    if logs and is_child:
        from perfharness import tracer

        tracer.start()
        host_probe.start()
        script.run(arguments, end_by_sigint, compile_script)
    elif logs:
        from perfharness.tracer import entry

        entry.main(compile_script)
    else:
        host_probe.start()
        script.run(arguments, end_by_sigint, compile_script)
