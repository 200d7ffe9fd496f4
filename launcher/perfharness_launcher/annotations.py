"""Read and check an annotation file before anything starts."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StrictBool, StrictInt, StrictStr, ValidationError

from perfharness.annotate.expressions import Expression
from perfharness.annotate.script_functions import definitions
from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.annotations import MAIN, OWN_MODULES, Annotations, FunctionAnnotation
from perfharness.model.conventions import printable

MAX_BYTES = 100_000
"""Linux allows 128 KiB per environment variable."""

WORDS = {
    "list_type": "write double brackets, [[range]] or [[batch]]",
    "extra_forbidden": "is not known",
    "missing": "is missing",
}

Locate = Callable[[Sequence[str]], list[dict[str, Any]]]
"""Find the modules of functions in the script's interpreter (`perfharness_ask_interpreter.py`)."""


def _function(name: str) -> str:
    parts = name.replace(":", ".", 1).split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError("must be module:function, module:Class.method or dotted names")
    if parts[0] in OWN_MODULES:
        raise ValueError(f"perfharness itself uses {parts[0]}; annotate the caller of this function")
    return name


def _expression(text: str) -> str:
    try:
        Expression(text)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"is not a Python expression ({getattr(error, 'msg', error)}): {text!r}") from error
    return text


def _index(text: str) -> str:
    if Expression(_expression(text)).uses_result:
        raise ValueError("is evaluated before the call, so it cannot use `result`")
    return text


Name = Annotated[StrictStr, Field(pattern=r"^[^\x00]+$")]


class _Range(BaseModel, extra="forbid", defer_build=True):
    function: Annotated[StrictStr, AfterValidator(_function)]
    name: Name | None = None


class _Batch(_Range):
    items: Annotated[StrictInt, Field(ge=0)] | Annotated[StrictStr, AfterValidator(_expression)] | None = None
    index: Annotated[StrictStr, AfterValidator(_index)] | None = None
    loop: StrictBool = False


class _Recorder(BaseModel, extra="forbid"):
    name: Name | None = None
    within: Name | None = None


class _File(BaseModel, extra="forbid"):
    recorder: _Recorder = _Recorder()
    range: list[_Range] = []
    batch: list[_Batch] = []


def read_annotations(
    path: Path, asked: Annotations, script: Path, locate: Locate
) -> tuple[Annotations | None, list[str]]:
    """Read an annotation file, and check that its functions exist; return the annotations, and a sentence per mistake.

    Args:
        asked: annotations by other options.
        script: file of `__main__`.
    """
    try:
        file = _File.model_validate(read_toml(path, "--annotate"))
    except UsageError as error:
        return None, [str(error)]
    except ValidationError as error:
        return None, [f"{path}: {problem}" for problem in _problems_of_form(error)]
    entries = [*file.range, *file.batch]
    if not entries and asked.torch_depth is None:
        return None, [f'{path} names no function; add [[range]] or [[batch]] with function = "module:function"']
    located = locate([entry.function for entry in entries])
    if len(located) < len(entries):
        return None, [f"{path}: the interpreter could not look up the functions"]
    functions, problems = [], []
    for entry, found in zip(entries, located, strict=True):
        module, qualname, source = found["module"], found["qualname"], found["source"]
        if entry.function.startswith((f"{MAIN}:", f"{MAIN}.")):
            module, qualname, source = MAIN, entry.function[len(MAIN) + 1 :], str(script)
        functions.append(_annotation(entry, module, qualname))
        if problem := _problem(module, qualname, source, script, is_missing=found["is_missing"]):
            problems.append(f"{entry.function}: {problem}")
    problems += _clashes(functions, file)
    made = replace(asked, functions=tuple(functions), recorder=file.recorder.name, within=file.recorder.within)
    if len(made.to_json()) > MAX_BYTES:
        problems.append("too many functions for the environment of a process")
    return made, [f"{path}: {problem}" for problem in problems]


def _problems_of_form(error: ValidationError) -> Iterator[str]:
    for one in error.errors():
        table, *place = one["loc"]
        number = "".join(f" number {part + 1}" for part in place if isinstance(part, int))
        key = next((f" `{part}`" for part in place if isinstance(part, str)), "")
        reason = WORDS.get(one["type"]) or one["msg"].removeprefix("Value error, ")
        yield printable(f"[{table}]{number}{key}: {reason}").replace("\n", " ")


def _annotation(entry: _Range, module: str, qualname: str) -> FunctionAnnotation:
    """Name a range as its function, or as the class of a special method (`__call__`)."""
    *path, name = qualname.split(".")
    name = path[-1] if path and name.startswith("__") and name.endswith("__") else name
    batch = entry.model_dump(exclude={"function", "name"}) if isinstance(entry, _Batch) else {}
    return FunctionAnnotation(module, qualname, entry.name or name, isinstance(entry, _Batch), **batch)


def _problem(module: str, qualname: str, source: str | None, script: Path, *, is_missing: bool) -> str | None:
    """Why the function is missing, or None if it exists or only the run can show it."""
    if source is None:
        may_change_path = "sys.path" in script.read_text(encoding="utf-8", errors="replace")
        if not is_missing or may_change_path:
            return None
        name = module or qualname.partition(".")[0]
        return f"no module {name} in the interpreter or next to the script"
    if module != MAIN and Path(source).samefile(script):
        return f"{module} is the script itself; write {MAIN}:{qualname}"
    try:
        text = Path(source).read_text(encoding="utf-8", errors="replace")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None  # Python reports it
    if not qualname:
        return f"{module} is a module; name a function of it"
    first, _, method = qualname.partition(".")
    owner = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == first), None)
    if owner is not None and not method:
        return f"{first} is a class; name one of its methods (__init__, __call__)"
    inherits = owner is None or owner.bases or owner.keywords or owner.decorator_list
    is_mentioned = re.search(rf"\b{first if inherits else method}\b|import \*|__getattr__", text) is not None
    if definitions(tree.body, qualname.split(".")) or (module != MAIN and is_mentioned):
        return None
    names = [node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    close = difflib.get_close_matches(qualname.rpartition(".")[2], names, n=1)
    return f"{source} defines no {qualname}" + (f"; did you mean {close[0]}?" if close else "")


def _clashes(functions: Sequence[FunctionAnnotation], file: _File) -> Iterator[str]:
    """Conflicts between entries: two ranges may share a name only if both set it."""
    given = {entry.name for entry in (*file.range, *file.batch)}
    by_target: dict[str, FunctionAnnotation] = {}
    by_name: dict[str, FunctionAnnotation] = {}
    for function in functions:
        if function.target in by_target:
            yield f"{function.target} is annotated twice; remove one"
            continue
        by_target[function.target] = function
        other = by_name.setdefault(function.name, function)
        if other is not function and (function.name not in given or function.is_batch or other.is_batch):
            yield f"{other.target} and {function.target} both get the name {function.name!r}; give each a `name`"
    if file.recorder.within is not None and file.recorder.within not in by_name:
        yield f"[recorder] within = {file.recorder.within!r}: no range of the file has that name"
