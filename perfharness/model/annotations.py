"""Annotations from a file, passed from launcher to measured process, and its report at the end.

Standard library only, because the measured process uses this module.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

MAIN = "__main__"  # module name of the script
NOTES = "annotations_*.json"  # one file per process in the launched process's folder: a list of `FunctionNote`
OWN_MODULES = (
    "gc",
    "io",
    "json",
    "os",
    "threading",
    "time",
)  # never annotated, because making ranges uses them


def notes_name(pid: int) -> str:
    """File name for one process."""
    return NOTES.replace("*", str(pid))


@dataclass(frozen=True)
class FunctionAnnotation:
    """A function whose calls become ranges."""

    module: str  # import name; `MAIN` for the script
    qualname: str  # `function`, `Class.method`
    name: str  # of the range
    is_batch: bool = False  # each call is a batch
    items: str | int | None = None  # per batch: an expression over the call, or a number; None if not counted
    index: str | None = None  # of a batch: an expression; None to number the calls
    loop: bool = False  # the function returns an iterator; a batch is the caller's work on one element

    @property
    def target(self) -> str:
        """`module:qualname`."""
        return f"{self.module}:{self.qualname}"


@dataclass(frozen=True)
class Annotations:
    """All annotations for a process."""

    functions: tuple[FunctionAnnotation, ...] = ()
    recorder: str | None = None  # name of the results; None for the script's own recorder, if it has one
    within: str | None = None  # record only inside ranges of this name; None for everything
    torch_depth: int | None = None  # PyTorch modules down to this depth become stages; None for none
    collectives: bool = False  # calls of `torch.distributed` become ranges of category `communication`

    def to_json(self) -> str:
        """Serialise for the environment of the process."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Annotations:
        """Parse the output of `to_json`."""
        content = json.loads(text)
        functions = tuple(FunctionAnnotation(**function) for function in content.pop("functions"))
        return Annotations(functions, **content)


@dataclass
class FunctionNote:
    """Outcome of one annotation in one process."""

    function: str  # `module:qualname`, `torch` (its modules), or `torch.distributed` (its collectives)
    imported: bool = False  # its module was imported
    found: bool = False  # and the function was replaced
    called: bool = False
    recorded: bool = False  # at least one call became a range
    compiled: bool = False  # torch.compile compiled a call, which is not recorded
    problem: str | None = None  # why it was not found or not replaced
    items_problem: str | None = None  # first problem with the item count or index

    def to_json(self) -> dict[str, Any]:
        """The entry for the file."""
        return asdict(self)
