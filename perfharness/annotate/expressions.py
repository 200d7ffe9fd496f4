"""Expressions of an annotation file, and the functions that they belong to."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfharness.model.annotations import FunctionAnnotation, FunctionNote

Function = Callable[..., Any]
COUNTS = 1 << 63
_signature = functools.cache(inspect.signature)


class Expression:
    """An expression over one call: `len(args[1])`, `len(files)`, `result.count`, `self.batch_size`.

    Available names: `args`, `kwargs`, `self` (the first argument), `result`, the parameters and built-in functions.
    Raises `SyntaxError` if the text is not an expression.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        tree = ast.parse(text.strip(), "<annotation>", mode="eval")
        self._code = compile(tree, "<annotation>", "eval")
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self.uses_result = "result" in names
        self._uses_parameters = bool(names - {"args", "kwargs", "self", "result"} - {*vars(builtins)})

    def value(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], result: object = None) -> Any:
        """Evaluate for one call; raises any error of the expression."""
        names: dict[str, Any] = {"__builtins__": builtins}
        if self._uses_parameters:
            bound = _signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            names.update(bound.arguments)
        if args:
            names["self"] = args[0]
        names.update(args=args, kwargs=kwargs, result=result)
        return eval(self._code, names)


class Target:
    """An annotated function in a process."""

    def __init__(self, annotation: FunctionAnnotation) -> None:
        self.annotation = annotation
        self.note = FunctionNote(annotation.target)
        self.items = Expression(annotation.items) if isinstance(annotation.items, str) else None
        self.index = Expression(annotation.index) if annotation.index is not None else None
        self.indices = itertools.count()

    def count(self, what: str, expression: Expression, *call: Any) -> int | None:
        """Item count or index of a call; None and a note if it cannot be computed."""
        try:
            value = operator.index(expression.value(*call))
            if not (0 if what == "items" else -COUNTS) <= value < COUNTS:
                raise ValueError(f"{value} is not a count")
        except Exception as error:
            problem = f"{what} = {expression.text!r}: {type(error).__name__}: {error}"
            self.note.items_problem = self.note.items_problem or problem
            return None
        return value
