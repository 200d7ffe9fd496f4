"""Questions to the interpreter that will run the script."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from perfharness.boot import ASK_INTERPRETER

TIMEOUT_S = 60


def ask(python: Sequence[str], question: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer of `perfharness_ask_interpreter.py`; None: it does not behave like a Python interpreter.

    Args:
        python: the interpreter and its own options.
    """
    try:
        done = subprocess.run(
            [*python, str(ASK_INTERPRETER), json.dumps(question)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return answer
