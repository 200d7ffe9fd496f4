"""Finds named functions without importing their modules: `python -m perfharness.annotate.lookup SCRIPT [-m]`.

Reads a JSON list of names (`module:function`, or dotted) and writes a `Found` for each. It runs in the script's
interpreter, whose modules it has to find. Modules are found but not executed, sources are parsed but not run.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from perfharness.annotate.main_module import Definition, definitions
from perfharness.model.annotations import MAIN
from perfharness.script import is_safe_path

CHANGES_PATH = ("sys.path", "addsitedir")
"""A script with one of these may import modules that cannot be found beforehand."""

DYNAMIC_NAMES = frozenset({"globals", "locals", "vars", "exec", "setattr", "__dict__", "_convert_", "modules"})
"""A module that uses one of these may have names that its source does not show: `globals()[…]`, enums."""


@dataclass(frozen=True)
class Found:
    """A function as known before the run.

    Args:
        problem: why there is no such function, one sentence; None: it exists, or only the run can show it.
        parameters: names of its parameters; None where they are not known.
    """

    module: str
    qualname: str
    problem: str | None = None
    parameters: list[str] | None = field(default=None)


def look_up(function: str, script: Path) -> Found:
    """Find a function by its name in the file."""
    module, colon, qualname = function.partition(":")
    if not colon:
        return _look_up_dotted(function, script)
    if module == MAIN:
        return _look_up_in_script(qualname, script)
    spec = _find_module(module)
    if spec is None:
        return Found(module, qualname, _no_module(module, script))
    return _look_up_in_module(spec, module, qualname, script)


def _look_up_dotted(function: str, script: Path) -> Found:
    parts = function.split(".")
    if parts[0] == MAIN:
        return _look_up_in_script(".".join(parts[1:]), script)
    for count in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:count])
        spec = _find_module(module)
        if spec is not None:
            return _look_up_in_module(spec, module, ".".join(parts[count:]), script)
    problem = _no_module(parts[0], script)
    if problem is None:
        problem = f"where its module ends is unknown before {script} runs; write it as module:function"
    return Found(parts[0], ".".join(parts[1:]), problem)


def _no_module(module: str, script: Path) -> str | None:
    if _made_by_its_parent(module):
        return None
    text = script.read_text(encoding="utf-8", errors="replace")
    if any(word in text for word in CHANGES_PATH):
        return None
    hint = f"; for a function of the script itself write {MAIN}:" if module == script.stem else ""
    return f"{sys.executable} finds no module {module} (nor is it next to the script){hint}"


def _made_by_its_parent(module: str) -> bool:
    """Whether an existing package may make the module itself, as `os` does with `os.path`."""
    parent = module.rpartition(".")[0]
    spec = _find_module(parent) if parent else None
    if spec is None:
        return False
    tree = _tree(spec, parent)
    return tree is None or any(isinstance(node, ast.Attribute) and node.attr == "modules" for node in ast.walk(tree))


def _find_module(name: str) -> ModuleSpec | None:
    """The spec of a module; its packages are not imported, which `importlib.util.find_spec` would do."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for position in range(len(rest)):
            if spec is None or spec.submodule_search_locations is None:
                return None
            full = ".".join([top, *rest[: position + 1]])
            spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    except (ImportError, ValueError):
        return None
    return spec


def _look_up_in_script(qualname: str, script: Path) -> Found:
    try:
        tree = ast.parse(script.read_bytes())
    except SyntaxError:
        return Found(MAIN, qualname)  # Python itself will report it
    found = definitions(tree.body, qualname.split("."))
    if found:
        return Found(MAIN, qualname, parameters=_parameters(found))
    first, *_ = qualname.split(".")
    name = f"{script} defines no function {qualname}"
    if _class_of(tree, qualname):
        return Found(MAIN, qualname, f"{name}: it is a class; name one of its methods (__init__, __call__)")
    if first in _imported(tree):
        return Found(MAIN, qualname, f"{name}: it imports {first}; name it in the module that defines it")
    return Found(MAIN, qualname, name + _suggestion(tree, qualname))


def _look_up_in_module(spec: ModuleSpec, module: str, qualname: str, script: Path) -> Found:
    if spec.origin is not None and Path(spec.origin).exists() and Path(spec.origin).samefile(script):
        return Found(module, qualname, f"{module} is the script itself; write {MAIN}:{qualname}")
    if not qualname:
        return Found(module, qualname, f"{module} is a module; name a function of it")
    tree = _tree(spec, module)
    if tree is None:
        return Found(module, qualname)  # not written in Python
    found = definitions(tree.body, qualname.split("."))
    if found:
        return Found(module, qualname, parameters=_parameters(found))
    if _class_of(tree, qualname):
        return Found(module, qualname, f"{qualname} is a class; name one of its methods (__init__, __call__)")
    if _may_appear(tree, qualname.split(".")):
        return Found(module, qualname)
    return Found(module, qualname, f"{spec.origin} has no {qualname}{_suggestion(tree, qualname)}")


def _tree(spec: ModuleSpec, module: str) -> ast.Module | None:
    """The module's syntax tree; None where it is not written in Python, or has no source."""
    loader: Any = spec.loader
    try:
        source = loader.get_source(module)
        return None if source is None else _parsed(source)
    except (AttributeError, ImportError, SyntaxError, OSError):
        return None


_parsed = functools.lru_cache(maxsize=None)(ast.parse)
"""A module is parsed once for all of its functions."""


def _parameters(found: Sequence[Definition]) -> list[str] | None:
    """The parameters of a function that is defined once and not decorated."""
    if len(found) != 1 or found[0].decorator_list:
        return None
    arguments = found[0].args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [argument.arg for argument in [*named, *starred]]


# ---- what a source may define ----


def _class_of(tree: ast.Module | ast.ClassDef, qualname: str) -> ast.ClassDef | None:
    """The class of that name in any branch of the module; the last of several."""
    first, _, rest = qualname.partition(".")
    found = [node for node in _outer_nodes(tree) if isinstance(node, ast.ClassDef) and node.name == first]
    if not found:
        return None
    return _class_of(found[-1], rest) if rest else found[-1]


def _may_appear(tree: ast.Module, path: Sequence[str]) -> bool:
    """Whether the name may exist at run time: bound otherwise than by `def`, inherited, or made by code."""
    if len(path) == 1:
        return path[0] in _bound(tree) or _is_dynamic(tree)
    owner = _class_of(tree, ".".join(path[:-1]))
    if owner is None:
        return path[0] in _bound(tree) or _is_dynamic(tree)
    inherits = any(not (isinstance(base, ast.Name) and base.id == "object") for base in owner.bases)
    return inherits or bool(owner.keywords or owner.decorator_list) or path[-1] in _bound(owner) or _is_dynamic(tree)


def _outer_nodes(tree: ast.AST) -> list[ast.AST]:
    """The nodes of a module or class, without those of functions and classes in it."""
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        nodes.append(child)
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            nodes += _outer_nodes(child)
    return nodes


def _bound(tree: ast.AST) -> set[str]:
    """Names that are assigned, imported or defined."""
    names = _imported(tree)
    for node in _outer_nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def _imported(tree: ast.AST) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in _outer_nodes(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def _is_dynamic(tree: ast.Module) -> bool:
    """Whether the module may get names that its source does not show."""
    return (
        "*" in _imported(tree)
        or "__getattr__" in _bound(tree)
        or any(isinstance(node, ast.Name) and node.id in DYNAMIC_NAMES for node in ast.walk(tree))
        or any(isinstance(node, ast.Attribute) and node.attr in DYNAMIC_NAMES for node in ast.walk(tree))
    )


def _suggestion(tree: ast.Module, qualname: str) -> str:
    known = _function_names(tree, "")
    close = difflib.get_close_matches(qualname, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _function_names(tree: ast.AST, prefix: str) -> list[str]:
    names = []
    for node in _outer_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.append(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            names += _function_names(node, f"{prefix}{node.name}.")
    return names


def main() -> None:
    """Look up the names on standard input."""
    script, *how = Path(sys.argv[1]), *sys.argv[2:]
    if not is_safe_path():  # as Python itself does for a module and for a script
        sys.path[0] = os.getcwd() if how == ["-m"] else os.path.dirname(os.path.realpath(script))  # noqa: PTH109, PTH120
    answers = [asdict(look_up(name, script)) for name in json.load(sys.stdin)]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
