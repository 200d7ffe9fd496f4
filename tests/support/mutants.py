"""Changes of one line of a Python file that its tests should find: what scripts/mutate tries."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

OPERATORS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
OPERATORS |= {"in": "not in", "not in": "in", "and": "or", "or": "and"}
OPERATORS |= {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*"}

NO_TARGET_FIELDS = ("annotation", "returns", "decorator_list", "type_params")
NO_TARGET = re.compile(
    r"__all__|__slots__|if (TYPE_CHECKING|__name__)|(Literal|Annotated|Callable)\[|TypeVar\(|(help|strict|frozen)="
    r"|(log|logger|logging|warnings)\.|print\(|[rR]?[fF]['\"]"
)
"""Beginnings of code that stays as it is: it has no behaviour, or is a text for people."""


@dataclass(frozen=True)
class Mutant:
    """A change of the bytes `start` to `end` of a line.

    `statement`: the first line of its statement. `names`: None inside a function; else, for what runs when the module
    is imported, the names that are being defined.
    """

    file: str
    line: int
    start: int
    end: int
    new: str
    statement: int
    names: frozenset[str] | None

    def apply(self, text: str) -> str:
        """Return the text of the file with the change."""
        lines = text.encode().split(b"\n")
        old = lines[self.line - 1]
        lines[self.line - 1] = old[: self.start] + self.new.encode() + old[self.end :]
        return b"\n".join(lines).decode()


class Mutants:
    """All changes of a file, and the lines of its functions."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.lines = text.encode().split(b"\n")
        self.found: list[Mutant] = []
        self.function_lines: set[int] = set()
        self._visit(ast.parse(text), 0, frozenset())

    def _visit(self, node: ast.AST, statement: int, names: frozenset[str] | None) -> None:
        if isinstance(node, ast.stmt | ast.expr | ast.keyword) and NO_TARGET.match(self._source(node)):
            return
        if isinstance(node, ast.stmt):
            statement = node.lineno
            names = None if names is None else names | _defined_names(node)
        for line, start, end, new in self._changes(node):
            self.found.append(Mutant(self.file, line, start, end, new, statement, names))
        for field, value in ast.iter_fields(node):
            inner = names
            if field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = None
                self.function_lines.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in NO_TARGET_FIELDS:
                    self._visit(child, statement, inner)

    def _source(self, node: ast.stmt | ast.expr | ast.keyword) -> str:
        """Return a node's text in its first line."""
        end = node.end_col_offset if node.lineno == node.end_lineno else None
        return self.lines[node.lineno - 1][node.col_offset : end].decode()

    def _changes(self, node: ast.AST) -> list[tuple[int, int, int, str]]:
        """Return lines, first and last bytes, and new texts."""
        match node:
            case ast.Compare(left=left, comparators=others):
                return self._swaps([left, *others])
            case ast.BinOp(left=left, right=right):
                return self._swaps([left, right])
            case ast.BoolOp(values=values):
                return self._swaps(values)
            case ast.Constant(value=bool(value)):
                return self._replacement(node, str(not value))
            case ast.Constant(value=int(value) | float(value)):
                return self._replacement(node, str(value + 1)) + self._replacement(node, str(value - 1))
            case ast.Subscript(slice=ast.Constant(value=str(key)) as index):
                return self._replacement(index, repr(key + "_"))
            case ast.Dict(keys=[*keys]):
                names = [(key, key.value) for key in keys if isinstance(key, ast.Constant)]
                named = [(key, name) for key, name in names if isinstance(name, str)]
                return [change for key, name in named for change in self._replacement(key, repr(name + "_"))]
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
                return self._replacement(test, f"not ({self._source(test)})")
            case ast.Return(value=ast.expr() as returned) if not isinstance(returned, ast.Constant):
                return self._replacement(returned, "None")
            case (
                ast.Raise() | ast.AugAssign() | ast.Break() | ast.Continue() | ast.Expr(value=ast.Call() | ast.Await())
            ):
                return self._replacement(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                return self._replacement(node, "pass")
            case ast.ExceptHandler(body=[ast.Return() | ast.Assign() as handled]):
                return self._replacement(handled, "pass")
        return []

    def _swaps(self, operands: Sequence[ast.expr]) -> list[tuple[int, int, int, str]]:
        """Put another operator between two operands."""
        found = []
        for left, right in pairwise(operands):
            between = self.lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
            operator = between.strip(" ()")
            if left.end_lineno == right.lineno and operator in OPERATORS:
                start = (left.end_col_offset or 0) + between.index(operator)
                found.append((right.lineno, start, start + len(operator), OPERATORS[operator]))
        return found

    def _replacement(self, node: ast.stmt | ast.expr, new: str) -> list[tuple[int, int, int, str]]:
        """Put another text in the place of a node that is in one line."""
        if node.lineno != node.end_lineno:
            return []
        return [(node.lineno, node.col_offset, node.end_col_offset or 0, new)]


def _defined_names(statement: ast.stmt) -> frozenset[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return frozenset({name})
        case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
            return frozenset({name})
    return frozenset()
