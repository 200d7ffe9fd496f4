"""The script's own functions are annotated as they are defined: each gets a decorator in the script's syntax tree.

Line numbers, names and the results of `inspect` do not change. Python runs a script file itself, but a folder through
`runpy`, which asks a loader for the code. So a path hook presents the script as a folder; the frames of `runpy` in its
tracebacks are all that shows.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType
from typing import Any, cast

from perfharness.annotate.expressions import Target
from perfharness.annotate.functions import annotated
from perfharness.annotate.runtime import Runtime
from perfharness.model.annotations import MAIN

DECORATE = "__perfharness_annotate__"
AS_SCRIPT = "__perfharness_script__"
"""Names added to Python's built-in functions: the script's own names do not change."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Compile = Callable[[bytes, str], CodeType]
DESCRIPTORS = ("staticmethod", "classmethod", "property", "setter", "getter", "deleter")


def follow_script(runtime: Runtime) -> None:
    """Annotate the functions of `__main__`, also of one that `multiprocessing` imports again."""
    targets = {target.annotation.qualname: target for target in runtime.targets if target.annotation.module == MAIN}
    if not targets:
        return
    import runpy

    setattr(builtins, DECORATE, lambda qualname: lambda function: _decorated(function, targets[qualname], runtime))
    setattr(builtins, AS_SCRIPT, _present_as_script)
    module_of_runpy: Any = runpy
    find = module_of_runpy._get_module_details

    def find_annotated(name: str, error: type[Exception] = ImportError) -> tuple[str, ModuleSpec, CodeType]:
        module_of_runpy._get_module_details = find  # what runs later is not the script
        name, spec, code = find(name, error)
        loader: Any = spec.loader
        if not isinstance(loader, _ScriptLoader) and spec.origin is not None and hasattr(loader, "get_data"):
            code = _compile(loader.get_data(spec.origin), spec.origin, targets)
        return name, spec, code

    module_of_runpy._get_module_details = find_annotated
    sys.path_hooks.insert(0, lambda path: _ScriptFinder(path, targets))


def _decorated(function: Any, target: Target, runtime: Runtime) -> Any:
    try:
        wrapper = annotated(function, target, runtime)
    except TypeError as error:
        target.note.problem = str(error)
        return function
    target.note.found = True
    return wrapper


class _ScriptFinder:
    """Finds `__main__` in the script file."""

    def __init__(self, path: str, targets: dict[str, Target]) -> None:
        script = os.path.abspath(path)  # noqa: PTH100 - as Python computes __file__
        if script != os.path.abspath(sys.argv[0]) or not _is_source(script):  # noqa: PTH100
            raise ImportError(path)
        self._loader = _ScriptLoader(MAIN, script)
        self._loader.targets = targets

    def find_spec(self, name: str, _target: object = None) -> ModuleSpec | None:
        """Its spec."""
        return spec_from_file_location(name, self._loader.path, loader=self._loader) if name == MAIN else None


def _is_source(path: str) -> bool:
    """Whether the file is neither a folder nor an archive nor compiled."""
    try:
        with io.open_code(path) as file:
            return b"\0" not in file.read(1024)
    except OSError:
        return False


class _ScriptLoader(SourceFileLoader):
    targets: dict[str, Target]

    def get_code(self, fullname: str) -> CodeType:
        path = str(self.path)
        return _compile(self.get_data(path), path, self.targets, as_script=True)


def _present_as_script(names: dict[str, Any]) -> None:
    """Have `__main__` and `sys.path` look as they do in a script that Python runs itself."""
    path = names["__file__"]
    names.update(__loader__=SourceFileLoader(MAIN, path), __spec__=None)
    if names["__name__"] != MAIN:
        return  # in a worker of multiprocessing
    names.update(__package__=None, __cached__=None)
    if getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(path))  # noqa: PTH120


def _compile(source: bytes, path: str, targets: dict[str, Target], *, as_script: bool = False) -> CodeType:
    """Compile with a decorator on each annotated function."""
    tree = cast(ast.Module, compile(source, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True))
    for qualname, target in targets.items():
        target.note.imported = True
        found = definitions(tree.body, qualname.split("."))
        for definition in found:
            _decorate(definition, qualname)
        if not found:
            target.note.problem = "the script defines no function of that name"
    if as_script:
        place = 0
        while place < len(tree.body) and _comes_first(tree.body[place]):
            place += 1
        names = ast.Call(ast.Name("globals", ast.Load()), [], [])
        tree.body.insert(place, ast.Expr(ast.Call(ast.Name(AS_SCRIPT, ast.Load()), [names], [])))
        ast.fix_missing_locations(tree)
    return compile(tree, path, "exec", dont_inherit=True)


def _comes_first(statement: ast.stmt) -> bool:
    """Whether it is the docstring or an import from `__future__`."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def definitions(body: Iterable[ast.AST], path: Sequence[str]) -> list[Definition]:
    """The functions of that dotted name in any branch of a module or class."""
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


def _decorate(definition: Definition, qualname: str) -> None:
    """Add our decorator: outermost, but inside of those that make a descriptor."""
    decorators = definition.decorator_list
    position = 0
    while position < len(decorators) and _name(decorators[position]) in DESCRIPTORS:
        position += 1
    call = ast.Call(ast.Name(DECORATE, ast.Load()), [ast.Constant(qualname)], [])
    place = decorators[0] if decorators else definition  # a function begins at its first decorator
    call.lineno = call.end_lineno = place.lineno
    call.col_offset = call.end_col_offset = place.col_offset
    decorators.insert(position, ast.fix_missing_locations(call))


def _name(decorator: ast.expr) -> str:
    return getattr(decorator, "attr", getattr(decorator, "id", ""))
