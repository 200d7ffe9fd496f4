"""An annotation file -> `Annotations`, with every mistake reported before anything starts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfharness.annotate.expressions import Expression
from perfharness.boot import without_current_folder
from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.annotations import Annotations, FunctionAnnotation

LOOKUP = "perfharness.annotate.lookup"
LOOKUP_TIMEOUT_S = 60
MAX_BYTES = 100_000
"""Linux takes 128 KiB in one environment variable."""

TABLES = {"recorder": {"name", "within"}, "range": {"function", "name"}}
TABLES["batch"] = TABLES["range"] | {"items", "index", "loop"}


@dataclass(frozen=True)
class AnnotationFacts:
    """What was read; with problems, one sentence each, it is not to be used."""

    annotations: Annotations | None = None
    problems: tuple[str, ...] = ()


def read_annotations(
    path: Path | None,
    torch_depth: int | None,
    script: Path,
    executable: str,
    options: Sequence[str] = (),
    *,
    is_module: bool = False,
    collectives: bool = False,
) -> AnnotationFacts:
    """Read the file and look its functions up in the interpreter that will run the script.

    Args:
        path: the TOML file; None: there is none.
        torch_depth: of `--annotate-torch`.
        script: the file that will be `__main__`.
        executable, options: the interpreter, and its own options.
        is_module: whether the script runs as a module, which imports what is in the current folder, not next to it.
        collectives: `--annotate-collectives`.
    """
    if path is None:
        asked = Annotations(torch_depth=torch_depth, collectives=collectives)
        return AnnotationFacts(None if asked == Annotations() else asked)
    try:
        content = read_toml(path, "--annotate")
    except UsageError as error:
        return AnnotationFacts(problems=(str(error),))
    problems = [f"{path}: {problem}" for problem in problems_of_form(content)]
    if not problems and torch_depth is None and not any(content.get(kind) for kind in ("range", "batch")):
        problems.append(f'{path} names no function; add [[range]] or [[batch]] with function = "module:function"')
    if problems:
        return AnnotationFacts(problems=tuple(problems))
    entries = [(entry, kind == "batch") for kind in ("range", "batch") for entry in content.get(kind, ())]
    lookup = [executable, *options, "-m", LOOKUP, str(script), *(["-m"] if is_module else [])]
    functions, problems = _find([*entries], lookup)
    problems = [f"{path}: {problem}" for problem in (*problems, *_clashes(functions, content))]
    recorder = content.get("recorder", {})
    made = Annotations(tuple(functions), recorder.get("name"), recorder.get("within"), torch_depth, collectives)
    if len(made.to_json()) > MAX_BYTES:
        problems.append(f"{path}: {len(functions)} functions are more than fit into the environment of a process")
    return AnnotationFacts(made, tuple(problems))


# ---- the form of the file ----


def problems_of_form(content: Mapping[str, Any]) -> Iterator[str]:
    """Problems of the file itself, independent of the script."""
    for table in sorted(set(content) - set(TABLES)):
        yield f"there is no table [{_printable(table)}]; there are [recorder], [[range]] and [[batch]]"
    recorder = content.get("recorder", {})
    if not isinstance(recorder, dict):
        yield "[recorder] is a table, with `name` and `within`"
    else:
        yield from _problems_of_keys("[recorder]", recorder, "recorder")
        for key in ("name", "within"):
            yield from _problem_of_name("[recorder]", key, recorder.get(key, "-"))
    for kind in ("range", "batch"):
        found = content.get(kind, [])
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            yield f"[{kind}] is a list: write [[{kind}]], with double brackets"
            continue
        for number, entry in enumerate(found, 1):
            yield from _problems_of_entry(f"[[{kind}]] number {number}", entry, kind)


def _problems_of_entry(where: str, entry: Mapping[str, Any], kind: str) -> Iterator[str]:
    yield from _problems_of_keys(where, entry, kind)
    function = entry.get("function")
    if not isinstance(function, str):
        yield f'{where} has no `function`, the name of what is to be a range: "module:function"'
        return
    where = f"{where} ({_printable(function)})"
    module, colon, qualname = function.partition(":")
    parts = [*module.split("."), *qualname.split(".")] if colon else function.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        yield f"{where}: `function` is to be module:function, module:Class.method or dotted names"
    yield from _problem_of_name(where, "name", entry.get("name", "-"))
    yield from _problem_of_items(where, entry.get("items"))
    if not isinstance(entry.get("index", ""), str):
        yield f'{where}: `index` is to be an expression in quotes, like "args[0]"'
    elif "index" in entry:
        yield from _problem_of_expression(where, "index", entry["index"])
    if not isinstance(entry.get("loop", False), bool):
        yield f"{where}: `loop` is to be true or false"


def _printable(name: str) -> str:
    """A name as it is, where it fits a line; TOML takes any text in quotes."""
    return name if name.isprintable() else ascii(name)


def _problems_of_keys(where: str, table: Mapping[str, Any], kind: str) -> Iterator[str]:
    for key in sorted(set(table) - TABLES[kind]):
        if kind == "range" and key in TABLES["batch"]:
            yield f"{where} has `{key}`, which belongs to a [[batch]]"
        else:
            yield f"{where} has an unknown key `{_printable(key)}`; known are {', '.join(sorted(TABLES[kind]))}"


def _problem_of_name(where: str, key: str, name: object) -> Iterator[str]:
    if not isinstance(name, str) or not name or "\0" in name:
        yield f"{where}: `{key}` is to be a name in quotes, not {name!r}"


def _problem_of_items(where: str, items: object) -> Iterator[str]:
    if isinstance(items, str):
        yield from _problem_of_expression(where, "items", items)
    elif items is not None and (not isinstance(items, int) or isinstance(items, bool) or items < 0):
        yield f'{where}: `items` is to be a number from 0, or an expression in quotes like "len(args[0])"'


def _problem_of_expression(where: str, key: str, text: str) -> Iterator[str]:
    try:
        expression = Expression(text)
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        yield f"{where}: `{key}` is no Python expression ({reason}): {text!r}"
        return
    if key == "index" and expression.uses_result:
        yield f"{where}: `index` is asked for before the call, so it cannot use `result`"


# ---- its functions ----


def _find(
    entries: Sequence[tuple[Mapping[str, Any], bool]], lookup: Sequence[str]
) -> tuple[list[FunctionAnnotation], list[str]]:
    names = [entry["function"] for entry, _ in entries]
    answers = look_up(names, lookup)
    if answers is None:
        return [], [f"{lookup[0]} could not look the functions up; does it import this perfharness?"]
    functions, problems = [], []
    for (entry, is_batch), answer in zip(entries, answers, strict=True):
        qualname: str = answer["qualname"]
        functions.append(
            FunctionAnnotation(
                module=answer["module"],
                qualname=qualname,
                name=entry.get("name") or default_name(qualname),
                is_batch=is_batch,
                items=entry.get("items"),
                index=entry.get("index"),
                loop=entry.get("loop", False),
            )
        )
        if answer["problem"]:
            problems.append(f"{entry['function']}: {answer['problem']}")
        elif answer["parameters"] is not None:
            problems += _unknown_names(functions[-1], answer["parameters"])
    return functions, problems


def look_up(names: Sequence[str], lookup: Sequence[str]) -> list[dict[str, Any]] | None:
    """The report of `perfharness.annotate.lookup` on each, by its command line; None where there is none."""
    try:
        done = subprocess.run(
            without_current_folder(lookup),
            input=json.dumps(names),
            capture_output=True,
            text=True,
            timeout=LOOKUP_TIMEOUT_S,
            check=True,
        )
        answers: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return answers


def default_name(qualname: str) -> str:
    """The function's own name; the class's, where the method is one of Python's (`__call__`)."""
    *path, name = qualname.split(".")
    return path[-1] if path and name.startswith("__") and name.endswith("__") else name


def _unknown_names(function: FunctionAnnotation, parameters: Sequence[str]) -> Iterator[str]:
    for key, text in (("items", function.items), ("index", function.index)):
        unknown = sorted(Expression(text).parameters - set(parameters)) if isinstance(text, str) else []
        if unknown:
            known = ", ".join(["args", "kwargs", "self", "result", *parameters])
            yield f"{function.target}: `{key}` uses {', '.join(unknown)}, which is none of {known}"


def _clashes(functions: Sequence[FunctionAnnotation], content: Mapping[str, Any]) -> Iterator[str]:
    """Entries that do not go together."""
    given = {entry["name"] for kind in ("range", "batch") for entry in content.get(kind, ()) if "name" in entry}
    by_target: dict[str, FunctionAnnotation] = {}
    by_name: dict[str, FunctionAnnotation] = {}
    for function in functions:
        if function.target in by_target:
            yield f"{function.target} is annotated twice; leave one of the two away"
            continue
        by_target[function.target] = function
        other = by_name.setdefault(function.name, function)
        if other is not function and (function.name not in given or function.is_batch or other.is_batch):
            yield (
                f"{other.target} and {function.target} both get the name {function.name!r}; give each a `name`"
                " (two ranges may share one that is given to both, and are then one stage)"
            )
    within = content.get("recorder", {}).get("within")
    if within is not None and within not in by_name:
        yield f"[recorder] within = {within!r}: no range of the file has that name"
