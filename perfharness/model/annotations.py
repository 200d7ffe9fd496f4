"""Annotations from a file: what the launcher hands to the measured process, and what that reports at its end.

Standard library only: the measured process reads and writes these.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

MAIN = "__main__"  # the module name of the script itself
NOTES = "annotations_*.json"  # in the folder of the launched process, one per process: a list of `FunctionNote`
OWN_MODULES = (
    "gc",
    "io",
    "json",
    "os",
    "threading",
    "time",
)  # not annotated: ranges are made with them


def notes_name(pid: int) -> str:
    """The file of one process."""
    return NOTES.replace("*", str(pid))


@dataclass(frozen=True)
class FunctionAnnotation:
    """A function whose calls become ranges."""

    module: str  # as it is imported; `MAIN` for the script
    qualname: str  # `function`, `Class.method`
    name: str  # of the range
    is_batch: bool = False  # each call is a batch
    items: str | int | None = None  # of a batch: an expression over the call, or a number; None: not counted
    index: str | None = None  # of a batch: an expression; None: the calls are counted
    loop: bool = False  # the function gives an iterator; a batch is what the caller does with each element

    @property
    def target(self) -> str:
        """`module:qualname`."""
        return f"{self.module}:{self.qualname}"


@dataclass(frozen=True)
class Annotations:
    """All that is to be annotated in a process."""

    functions: tuple[FunctionAnnotation, ...] = ()
    recorder: str | None = None  # name of the results; None: as the script's own recorder, where it has one
    within: str | None = None  # record only while a range of this name is open; None: everything
    torch_depth: int | None = None  # PyTorch modules down to this depth become stages; None: none
    collectives: bool = False  # calls of `torch.distributed` become ranges of the category `communication`

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
    """The result of one annotation in one process."""

    function: str  # `module:qualname`, `torch` (its modules), or `torch.distributed` (its collectives)
    imported: bool = False  # its module was imported
    found: bool = False  # and replaced
    called: bool = False
    recorded: bool = False  # at least one call was a range
    compiled: bool = False  # torch.compile compiled a call of it, which nothing records
    problem: str | None = None  # why it was not found or could not be replaced
    items_problem: str | None = None  # the first problem in counting items or finding an index

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return asdict(self)
