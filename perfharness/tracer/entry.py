"""From the command line to the script: start the tracer, then run the script as Python itself would.

Imports only what must run before the script; modules that decode and write are imported after it.
"""

from __future__ import annotations

import os
import sys

from perfharness import host_probe, script, tracer
from perfharness.model import environment
from perfharness.tracer.session import Session

USAGE = "usage: python -m perfharness.tracer [-m MODULE | SCRIPT.py] [arguments of the script]"


def main(compile_script: script.Compile = script.compile_plainly) -> None:
    """Run the script of `sys.argv` under the tracer; its exceptions pass through."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.exit(USAGE)
    if not os.environ.get(environment.OUTPUT_DIR):
        sys.exit(
            f"perfharness.tracer: {environment.OUTPUT_DIR} is not set: it is the folder of trace.sqlite; "
            "set it, or use `perfharness launch --tracer embedded`"
        )
    on_interrupt = script.ending_by_sigint()
    tracer.start()
    if Session.current is not None:
        Session.current.log.open()
    host_probe.start()
    script.run(arguments, on_interrupt, compile_script)
