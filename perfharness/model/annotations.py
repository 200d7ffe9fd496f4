"""Annotations that come from a file instead of the code: what the launcher hands to the measured process, and what
that process reports about them at its end.

Standard library only: the measured process reads and writes these.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

MAIN = "__main__"
"""The module name of the script itself."""

NOTES = "annotations_*.json"
"""Files in the folder of the launched process, one per process: a list of `FunctionNote`."""

OWN_MODULES = ("gc", "io", "json", "os", "threading", "time")
"""Modules that perfharness itself calls while it makes a range, so that their functions cannot be annotated."""


def notes_name(pid: int) -> str:
    """The file of one process."""
    return NOTES.replace("*", str(pid))


@dataclass(frozen=True)
class FunctionAnnotation:
    """A function whose calls become ranges.

    Args:
        module: as it is imported; `MAIN` for the script.
        qualname: inside the module: `function`, `Class.method`.
        name: of the range.
        is_batch: each call is a batch.
        items: of a batch: an expression over the call, or a number; None: not counted.
        index: of a batch: an expression; None: the calls are counted.
        loop: of a batch: the function gives an iterator, and the batch is what the caller does with each element.
    """

    module: str
    qualname: str
    name: str
    is_batch: bool = False
    items: str | int | None = None
    index: str | None = None
    loop: bool = False

    @property
    def target(self) -> str:
        """`module:qualname`."""
        return f"{self.module}:{self.qualname}"


@dataclass(frozen=True)
class Annotations:
    """All that is to be annotated in a process.

    Args:
        recorder: what the results are called; None: as the script's own recorder, where it has one.
        within: only what happens while a range of this name is open is recorded; None: everything.
        torch_depth: PyTorch modules down to this depth become stages; None: none do.
        collectives: calls of `torch.distributed` become ranges of the category `communication`.
    """

    functions: tuple[FunctionAnnotation, ...] = ()
    recorder: str | None = None
    within: str | None = None
    torch_depth: int | None = None
    collectives: bool = False

    def to_json(self) -> str:
        """For the environment of the process."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Annotations:
        """The inverse of `to_json`."""
        content = json.loads(text)
        functions = tuple(FunctionAnnotation(**function) for function in content.pop("functions"))
        return Annotations(functions, **content)


@dataclass
class FunctionNote:
    """The result of one annotation in one process.

    Args:
        function: `module:qualname`, `torch` for the modules of PyTorch, or `torch.distributed` for its collectives.
        imported: its module was imported.
        found: it was there, and was replaced.
        called: it was called at least once.
        recorded: at least one call was a range.
        compiled: torch.compile compiled a call of it, and nothing records that.
        problem: why it was not found or could not be replaced.
        items_problem: what went wrong when items were counted or an index was asked for, the first time.
    """

    function: str
    imported: bool = False
    found: bool = False
    called: bool = False
    recorded: bool = False
    compiled: bool = False
    problem: str | None = None
    items_problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return asdict(self)
