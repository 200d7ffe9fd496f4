"""Run the command `perfharness` as `python -m perfharness`."""

import os
import sys

if __name__ == "__main__":
    here = os.getcwd()  # noqa: PTH109 - nothing is imported before the path is corrected
    if sys.path[0] == here and not __file__.startswith(here + os.sep):
        del sys.path[0]  # the current folder, added by `-m`

    from perfharness.cli.main import main

    main()
