"""The script itself: its functions are annotated as they are defined.

Its syntax tree gets a decorator, outermost, on each named function. Line numbers, names and the results of
`inspect` do not change, and the file is not modified.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, cast

from perfharness.annotate.runtime import Runtime
from perfharness.annotate.wrappers import annotate_callable
from perfharness.model.annotations import MAIN

DECORATE = "__perfharness_annotate__"
"""Name of the decorator, added to Python's built-in functions: the script's own names do not change."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef
PLAIN_DECORATORS = ("staticmethod", "classmethod", "property")


def script_compiler(runtime: Runtime) -> Callable[[bytes, str], CodeType]:
    """Source and path -> code, as Python compiles it, plus a decorator on each annotated function of the script."""
    targets = {target.annotation.qualname: target for target in runtime.targets if target.annotation.module == MAIN}

    def decorator(qualname: str) -> Callable[[Any], Any]:
        note = targets[qualname].note

        def decorate(function: Any) -> Any:
            try:
                annotated = annotate_callable(function, targets[qualname], runtime)
            except TypeError as error:
                note.problem = str(error)
                return function
            note.found = True
            return annotated

        return decorate

    def compile_script(source: bytes, path: str) -> CodeType:
        if not targets:
            return compile(source, path, "exec", dont_inherit=True)
        tree = cast(ast.Module, compile(source, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True))
        for qualname, target in targets.items():
            target.note.imported = True
            found = definitions(tree.body, qualname.split("."))
            for definition in found:
                _decorate(definition, qualname)
            if not found:
                target.note.problem = "the script defines no function of that name"
        setattr(builtins, DECORATE, decorator)
        return compile(tree, path, "exec", dont_inherit=True)

    return compile_script


def definitions(body: Iterable[ast.stmt], path: Sequence[str]) -> list[Definition]:
    """The functions of that name in any branch of a module or class."""
    found: list[Definition] = []
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if len(path) == 1 and statement.name == path[0]:
                found.append(statement)
        elif isinstance(statement, ast.ClassDef):
            if len(path) > 1 and statement.name == path[0]:
                found += definitions(statement.body, path[1:])
        else:
            found += definitions(_inner_statements(statement), path)
    return found


def _inner_statements(statement: ast.AST) -> list[ast.stmt]:
    """The statements in the branches of an `if`, `try`, `with`, `for`, `match`."""
    inner: list[ast.stmt] = []
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            inner.append(child)
        elif not isinstance(child, ast.expr):
            inner += _inner_statements(child)
    return inner


def _decorate(definition: Definition, qualname: str) -> None:
    """Add our decorator: outermost, but inside of those that make a descriptor."""
    decorators = definition.decorator_list
    position = 0
    while position < len(decorators) and _makes_a_descriptor(decorators[position]):
        position += 1
    call = ast.Call(ast.Name(DECORATE, ast.Load()), [ast.Constant(qualname)], [])
    place = decorators[0] if decorators else definition  # a function begins at its first decorator
    call.lineno, call.col_offset = place.lineno, place.col_offset
    ast.fix_missing_locations(ast.copy_location(call, place))
    call.end_lineno, call.end_col_offset = call.lineno, call.col_offset
    decorators.insert(position, call)


def _makes_a_descriptor(decorator: ast.expr) -> bool:
    """`@staticmethod`, `@property`, `@name.setter` and similar ones."""
    if isinstance(decorator, ast.Attribute):
        return decorator.attr in ("setter", "getter", "deleter")
    return isinstance(decorator, ast.Name) and decorator.id in PLAIN_DECORATORS
