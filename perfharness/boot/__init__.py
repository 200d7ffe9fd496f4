"""Start a module of perfharness in another process, without the current folder on its path.

`python -m` puts the current folder first, so any `json.py` or `perfharness/` in it would be run. A file is
started instead, whose folder Python then puts first; nothing in there has the name of another module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FOLLOW = FOLDER / "follow"
"""First on the PYTHONPATH of what a launch starts: its `sitecustomize` has the tracer follow children."""

RUN_MODULE = FOLDER / "perfharness_run_module.py"
ASK_INTERPRETER = FOLDER / "perfharness_ask_interpreter.py"


def without_current_folder(command: Sequence[str]) -> list[str]:
    """The command line for `python [options] -m perfharness.… ARGUMENTS`; any other command unchanged."""
    place = command.index("-m") if "-m" in command else len(command)
    if "".join(command[place + 1 : place + 2]).partition(".")[0] == "perfharness":
        return [*command[:place], str(RUN_MODULE), *command[place + 1 :]]
    return list(command)
