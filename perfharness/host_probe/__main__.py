"""`python -m perfharness.host_probe SCRIPT ARGUMENTS…`: run a script with the probe, where nothing else starts it."""

from __future__ import annotations

import atexit
import signal
import sys

from perfharness import host_probe, script


def main() -> None:
    """Run the script of `sys.argv`; its exceptions pass through."""
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit("usage: python -m perfharness.host_probe SCRIPT.py [arguments of the script]")
    interrupts: list[int] = []

    def end_as_interrupted() -> None:
        """End by SIGINT after all exit functions, as Python does after a KeyboardInterrupt."""
        if interrupts:
            script.end_by_signal(signal.SIGINT)

    atexit.register(end_as_interrupted)  # registered before the script's, so it runs last
    host_probe.start()
    script.run_path(arguments[0], arguments, lambda: interrupts.append(signal.SIGINT))


if __name__ == "__main__":
    main()
