"""Annotate the script's own functions by adding decorators to its syntax tree.

Line numbers, names and results of `inspect` do not change. Python runs script files itself, but folders through
`runpy`, which asks a loader for the code. So a path hook presents the script as a folder, visible only as frames of
`runpy` in tracebacks.
"""

from __future__ import annotations

import ast
import builtins
import functools
import io
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType
from typing import Any

from perfharness.annotate.expressions import Target
from perfharness.annotate.functions import annotated
from perfharness.annotate.runtime import Runtime
from perfharness.model.annotations import MAIN

DECORATE = "__perfharness_annotate__"
RUN = "__perfharness_run__"
"""Names added to Python's built-ins, so that the script's own names do not change."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def follow_script(runtime: Runtime) -> None:
    """Annotate the functions of `__main__`, including the one imported again by `multiprocessing`."""
    targets = {target.annotation.qualname: target for target in runtime.targets if target.annotation.module == MAIN}
    if not targets:
        return
    import runpy

    setattr(builtins, DECORATE, lambda qualname: lambda function: _decorated(function, targets[qualname], runtime))
    module_of_runpy: Any = runpy
    find = module_of_runpy._get_module_details

    def find_annotated(name: str, error: type[Exception] = ImportError) -> tuple[str, ModuleSpec, CodeType]:
        module_of_runpy._get_module_details = find  # later modules are not the script
        name, spec, code = find(name, error)
        if spec.origin is not None and hasattr(spec.loader, "get_data"):  # with -m
            code = _compile(spec.loader.get_data(spec.origin), spec.origin, targets)
        return name, spec, code

    module_of_runpy._get_module_details = find_annotated
    sys.path_hooks.insert(0, lambda path: _Script(path, targets))


def _decorated(function: Any, target: Target, runtime: Runtime) -> Any:
    try:
        wrapper = annotated(function, target, runtime)
    except TypeError as error:
        target.note.problem = str(error)
        return function
    target.note.found = True
    return wrapper


class _Script:
    """Finds and loads `__main__` from the script file.

    Raises `ImportError` for another path, or if it is not source code, which Python handles itself.
    """

    def __init__(self, path: str, targets: dict[str, Target]) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100 - as Python computes __file__
        if self._path != os.path.abspath(sys.argv[0]):  # noqa: PTH100
            raise ImportError(path)
        try:
            with io.open_code(self._path) as file:
                self._code = _compile(file.read(), self._path, targets)
        except (OSError, SyntaxError, ValueError) as error:
            raise ImportError(path) from error

    def find_spec(self, name: str, _target: object = None) -> ModuleSpec | None:
        """Module spec of the script."""
        loader: Any = self
        return ModuleSpec(name, loader, origin=self._path) if name == MAIN else None

    def get_code(self, _name: str) -> CodeType:
        """Code that runs the script's code."""
        setattr(builtins, RUN, functools.partial(_run_as_script, self._code))
        return compile(f"{RUN}(globals())", self._path, "exec")


def _run_as_script(code: CodeType, names: dict[str, Any]) -> None:
    """Run the script with `__main__` and `sys.path` as set up by Python for script files."""
    path = names["__file__"]
    names.update(__loader__=SourceFileLoader(MAIN, path), __spec__=None)
    if names["__name__"] == MAIN:  # False in a worker of multiprocessing
        names.update(__package__=None, __cached__=None)
        if getattr(sys.flags, "safe_path", False):
            del sys.path[0]
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    exec(code, names)


def _compile(source: bytes, path: str, targets: dict[str, Target]) -> CodeType:
    """Compile with a decorator on each annotated function."""
    tree = ast.parse(source, path)
    for qualname, target in targets.items():
        target.note.imported = True
        found = definitions(tree.body, qualname.split("."))
        if not found:
            target.note.problem = "the script defines no function of this name"
        for definition in found:
            call = ast.Call(ast.Name(DECORATE, ast.Load()), [ast.Constant(qualname)], [])
            place = (*definition.decorator_list, definition)[0]  # a function begins at its first decorator
            definition.decorator_list.insert(0, ast.fix_missing_locations(ast.copy_location(call, place)))
    return compile(tree, path, "exec", dont_inherit=True)


def definitions(body: Iterable[ast.AST], path: Sequence[str]) -> list[Definition]:
    """Functions with this dotted name in any branch of a module or class."""
    found: list[Definition] = []
    for node in body:
        if isinstance(node, Definition):
            if [node.name] == [*path]:
                found.append(node)
        elif isinstance(node, ast.ClassDef):
            if len(path) > 1 and node.name == path[0]:
                found += definitions(node.body, path[1:])
        elif not isinstance(node, ast.expr):
            found += definitions(ast.iter_child_nodes(node), path)
    return found
