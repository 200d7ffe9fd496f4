"""An annotation file -> `Annotations`, with every mistake that can be known reported before anything starts."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StrictBool, StrictStr, ValidationError

from perfharness.annotate.expressions import Expression
from perfharness.annotate.script_functions import definitions
from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.annotations import MAIN, OWN_MODULES, Annotations, FunctionAnnotation
from perfharness.model.conventions import printable
from perfharness_launcher.plan.ask import ask

MAX_BYTES = 100_000
"""Linux takes 128 KiB in one environment variable."""

CHANGES_PATH = ("sys.path", "addsitedir")
"""A script with one of these may import modules that cannot be found before it runs."""

WORDS = {
    "list_type": "is a list: write double brackets, [[range]] or [[batch]]",
    "extra_forbidden": "is not known",
    "missing": "is missing",
}


@dataclass(frozen=True)
class AnnotationFacts:
    """What was read; with problems, one sentence each, it is not to be used."""

    annotations: Annotations | None = None
    problems: tuple[str, ...] = ()


# ---- the form of the file ----


def _function(name: str) -> str:
    parts = name.replace(":", ".", 1).split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError("must be module:function, module:Class.method or dotted names")
    if parts[0] in OWN_MODULES:
        raise ValueError(f"perfharness itself uses {parts[0]} while it makes a range; name the function that calls it")
    return name


def _name(name: str) -> str:
    if not name or "\0" in name:
        raise ValueError("must be a name in quotes")
    return name


def _expression(text: str) -> str:
    try:
        Expression(text)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"is not a Python expression ({getattr(error, 'msg', error)}): {text!r}") from error
    return text


def _index(text: str) -> str:
    if Expression(text).uses_result:
        raise ValueError("is evaluated before the call, so it cannot use `result`")
    return text


def _items(items: object) -> object:
    if isinstance(items, str):
        return _expression(items)
    if not isinstance(items, int) or isinstance(items, bool) or items < 0:
        raise ValueError('must be a number from 0, or an expression in quotes like "len(args[0])"')
    return items


Name = Annotated[StrictStr, AfterValidator(_name)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Range(_Table):
    function: Annotated[StrictStr, AfterValidator(_function)]
    name: Name | None = None


class _Batch(_Range):
    items: Annotated[int | str | None, BeforeValidator(_items)] = None
    index: Annotated[StrictStr, AfterValidator(_expression), AfterValidator(_index)] | None = None
    loop: StrictBool = False


class _Recorder(_Table):
    name: Name | None = None
    within: Name | None = None


class _File(_Table):
    recorder: _Recorder = _Recorder()
    range: list[_Range] = []
    batch: list[_Batch] = []


def problems_of_form(error: ValidationError) -> Iterator[str]:
    """One sentence for each mistake."""
    for one in error.errors():
        table, *place = one["loc"]
        number = "".join(f" number {part + 1}" for part in place if isinstance(part, int))
        key = next((f" `{part}`" for part in place if isinstance(part, str)), "")
        reason = WORDS.get(one["type"]) or one["msg"].removeprefix("Value error, ")
        yield printable(f"[{table}]{number}{key}: {reason}").replace("\n", " ")


def read_annotations(
    path: Path | None,
    torch_depth: int | None,
    script: Path,
    python: Sequence[str],
    *,
    is_module: bool = False,
    collectives: bool = False,
) -> AnnotationFacts:
    """Read the file and look its functions up in the interpreter that will run the script.

    Args:
        path: the TOML file; None: there is none.
        torch_depth: of `--annotate-torch`.
        script: the file that will be `__main__`.
        python: the interpreter and its own options.
        is_module: whether the script runs as a module, which imports what is in the current folder, not next to it.
        collectives: `--annotate-collectives`.
    """
    if path is None:
        asked = Annotations(torch_depth=torch_depth, collectives=collectives)
        return AnnotationFacts(None if asked == Annotations() else asked)
    try:
        file = _File.model_validate(read_toml(path, "--annotate"))
    except UsageError as error:
        return AnnotationFacts(problems=(str(error),))
    except ValidationError as error:
        return AnnotationFacts(problems=tuple(f"{path}: {problem}" for problem in problems_of_form(error)))
    entries = [*file.range, *file.batch]
    if torch_depth is None and not entries:
        problem = f'{path} names no function; add [[range]] or [[batch]] with function = "module:function"'
        return AnnotationFacts(problems=(problem,))
    folder = "" if is_module else str(script.resolve().parent)
    answer = ask(python, {"path": folder, "functions": [entry.function for entry in entries]})
    if answer is None:
        return AnnotationFacts(problems=(f"{python[0]} could not look the functions up",))
    functions, problems = [], []
    for entry, found in zip(entries, answer["functions"], strict=True):
        if entry.function.startswith((f"{MAIN}:", f"{MAIN}.")):
            found = {"module": MAIN, "qualname": entry.function[len(MAIN) + 1 :], "source": str(script)}
        functions.append(_annotation(entry, found["module"], found["qualname"]))
        if reason := _problem(found, script, python[0]):
            problems.append(f"{entry.function}: {reason}")
    problems = [f"{path}: {problem}" for problem in (*problems, *_clashes(functions, file))]
    made = Annotations(tuple(functions), file.recorder.name, file.recorder.within, torch_depth, collectives)
    if len(made.to_json()) > MAX_BYTES:
        problems.append(f"{path}: {len(functions)} functions are more than fit into the environment of a process")
    return AnnotationFacts(made, tuple(problems))


# ---- its functions ----


def _annotation(entry: _Range, module: str, qualname: str) -> FunctionAnnotation:
    """A range is called as its function; as the class, where the method is one of Python's (`__call__`)."""
    *path, name = qualname.split(".")
    name = path[-1] if path and name.startswith("__") and name.endswith("__") else name
    batch = entry.model_dump(exclude={"function", "name"}) if isinstance(entry, _Batch) else {}
    return FunctionAnnotation(module, qualname, entry.name or name, isinstance(entry, _Batch), **batch)


def _problem(found: dict[str, Any], script: Path, python: str) -> str | None:
    """Why there is no such function; None: there is one, or only the run can tell."""
    module, qualname, source = found["module"], found["qualname"], found["source"]
    if source is None:
        text = script.read_text(encoding="utf-8", errors="replace")
        if not found["is_missing"] or any(word in text for word in CHANGES_PATH):
            return None
        return f"{python} finds no module {module or qualname.partition('.')[0]}, nor is it next to the script"
    if module != MAIN and Path(source).samefile(script):
        return f"{module} is the script itself; write {MAIN}:{qualname}"
    try:
        text = Path(source).read_text(encoding="utf-8", errors="replace")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None  # Python itself will report it
    if not qualname:
        return f"{module} is a module; name a function of it"
    if definitions(tree.body, qualname.split(".")):
        return None
    first, *rest = qualname.split(".")
    owner = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == first), None)
    if owner is not None and not rest:
        return f"{first} is a class; name one of its methods (__init__, __call__)"
    given = owner is None or owner.bases or owner.keywords or owner.decorator_list or _mentions(text, rest[-1])
    if module != MAIN and given and _mentions(text, first):
        return None  # assigned, imported or inherited
    names = [node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    close = difflib.get_close_matches(qualname.rpartition(".")[2], names, n=1)
    where = "; name an imported one in the module that defines it" if module == MAIN else ""
    return f"{source} defines no {qualname}{where}" + (f"; did you mean {close[0]}?" if close else "")


def _mentions(source: str, name: str) -> bool:
    """Whether a source has the name in any form, or may have names that it does not show."""
    return re.search(rf"\b{name}\b|import \*|__getattr__", source) is not None


def _clashes(functions: Sequence[FunctionAnnotation], file: _File) -> Iterator[str]:
    """Entries that do not go together."""
    given = {entry.name for entry in (*file.range, *file.batch)}
    by_target: dict[str, FunctionAnnotation] = {}
    by_name: dict[str, FunctionAnnotation] = {}
    for function in functions:
        if function.target in by_target:
            yield f"{function.target} is annotated twice; leave one of the two out"
            continue
        by_target[function.target] = function
        other = by_name.setdefault(function.name, function)
        if other is not function and (function.name not in given or function.is_batch or other.is_batch):
            yield (
                f"{other.target} and {function.target} both get the name {function.name!r}; give each a `name`"
                " (two ranges may share one that is given to both, and are then one stage)"
            )
    if file.recorder.within is not None and file.recorder.within not in by_name:
        yield f"[recorder] within = {file.recorder.within!r}: no range of the file has that name"
