"""Interpreters that the script starts and the tracer cannot follow: they ignore the environment, or get another one."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from perfharness.import_hook import ImportHook
from perfharness.model import environment

FOLLOW = "/perfharness/boot/follow"
"""How the folder ends that a launch puts on PYTHONPATH (`perfharness.boot.FOLLOW`, which costs start-up time)."""

PYTHON = re.compile(r"python(\d+(\.\d+)*t?)?")
IGNORE = {"-E": "E", "-I": "I", "-S": "S"}
"""Options of Python with which it reads no PYTHONPATH, or imports no `sitecustomize`."""


def watch(diagnose: Callable[[str], None]) -> None:
    """Call it with a sentence for each way in which the script starts an interpreter that cannot be followed."""

    def patch(module: ModuleType, _name: str) -> None:
        original = module.Popen.__init__

        @functools.wraps(original)
        def start(self: Any, args: Any, *more: Any, **options: Any) -> None:
            try:
                reason = why_not(args, options.get("env"))
            except Exception:
                reason = None
            if reason is not None:
                diagnose(f"A Python was started {reason}: its NVTX ranges and its GPU work are not in the results.")
            original(self, args, *more, **options)

        module.Popen.__init__ = start

    ImportHook({"subprocess"}, patch).install()


def why_not(command: object, environ: Mapping[Any, Any] | None) -> str | None:
    """Why an interpreter that is started by this command and environment cannot be followed; None: it can, or the
    command is none.
    """
    if isinstance(command, (str, bytes)) or not isinstance(command, Sequence) or not command:
        return None
    words = [os.fsdecode(word) for word in command]
    if not PYTHON.fullmatch(os.path.basename(words[0])):  # noqa: PTH119 - as in the rest of what runs in the script
        return None
    for word in words[1:]:
        if not word.startswith("-") or word in ("-", "-c", "-m") or word.startswith("--"):
            break
        letters = word[1:].partition("c")[0].partition("m")[0].partition("X")[0].partition("W")[0]
        for option, letter in IGNORE.items():
            if letter in letters:
                return f"with {option}"
    if environ is not None:
        given = {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
        if environment.OUTPUT_DIR not in given or FOLLOW not in given.get("PYTHONPATH", ""):
            return "with an environment without the variables of the launch"
    return None
