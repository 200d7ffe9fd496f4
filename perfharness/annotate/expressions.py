"""The expressions of an annotation file: `len(args[1])`, `len(files)`, `result.count`, `self.batch_size`."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfharness.model.annotations import FunctionAnnotation, FunctionNote

CALL_NAMES = frozenset({"args", "kwargs", "self", "result"})
"""Names that every expression may use; `self` is the first argument."""


class Expression:
    """An expression over one call of a function.

    Besides `CALL_NAMES` and Python's built-in functions it may use the parameters of the function by name.

    Raises:
        SyntaxError: the text is no expression.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        tree = ast.parse(text.strip(), "<annotation>", mode="eval")
        self._code = compile(tree, "<annotation>", "eval")
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        bound = {node.id for node in nodes if not isinstance(node.ctx, ast.Load)}  # by a comprehension or `:=`
        bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        names = {node.id for node in nodes} - bound
        self.uses_result = "result" in names
        self.parameters = frozenset(name for name in names - CALL_NAMES if not hasattr(builtins, name))
        """Names that have to be parameters of the function."""

        self._signature: inspect.Signature | None = None

    def value(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: object = None
    ) -> Any:
        """Its value for one call; raises whatever the expression raises."""
        names: dict[str, Any] = {"__builtins__": builtins, "args": args, "kwargs": kwargs, "result": result}
        if args:
            names["self"] = args[0]
        if self.parameters:
            if self._signature is None:
                self._signature = inspect.signature(function)
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            names.update((name, bound.arguments[name]) for name in self.parameters if name in bound.arguments)
        return eval(self._code, names)


class Target:
    """One annotated function, in one process."""

    def __init__(self, annotation: FunctionAnnotation) -> None:
        self.annotation = annotation
        self.note = FunctionNote(annotation.target)
        self.items = _expression(annotation.items)
        self.index = _expression(annotation.index)
        self.fixed_items = annotation.items if isinstance(annotation.items, int) else None
        self.indices = itertools.count()


def _expression(text: str | int | None) -> Expression | None:
    return Expression(text) if isinstance(text, str) else None
