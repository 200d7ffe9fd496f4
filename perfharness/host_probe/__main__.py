"""`python -m perfharness.host_probe SCRIPT ARGUMENTS…`: run a script with the probe, where nothing else starts it."""

from __future__ import annotations

import sys

from perfharness import host_probe, script


def main() -> None:
    """Run the script of `sys.argv`; its exceptions pass through."""
    arguments = sys.argv[1:]
    if not arguments or arguments == ["-m"]:
        sys.exit("usage: python -m perfharness.host_probe [-m MODULE | SCRIPT.py] [arguments of the script]")
    end_by_sigint = script.ending_by_sigint()
    host_probe.start()
    script.run(arguments, end_by_sigint)


if __name__ == "__main__":
    main()
