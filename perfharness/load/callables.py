"""A Python callable as target: `module:function` or `path/file.py:function`; and the inputs of its requests."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, cast

import numpy as np

from perfharness.errors import UsageError
from perfharness.files import reason_of
from perfharness.load.profile import MixEntry
from perfharness.load.request import Answer, LoadRequest, Target, check_answer
from perfharness.recorder import PerfRecorder

_MODULE = "perfharness_load_target"


def check_callable(name: str, python: str, *, has_inputs: bool) -> None:
    """Load a target in its own process, as a worker does. Raises `UsageError`."""
    words = [python, "-m", "perfharness.load.callables", name, *(["input"] if has_inputs else [])]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise UsageError(lines[-1] if lines else f"importing {name} ended the process with code {done.returncode}")


def main(name: str, *inputs: str) -> None:
    """Load a target; exit with one line on stderr if it cannot be loaded."""
    try:
        arguments_of(load_callable(name), has_inputs=bool(inputs))
    except UsageError as error:
        sys.exit(" ".join(str(error).split()))


def load_callable(name: str) -> Callable[..., Any]:
    """The object with this name. Raises `UsageError` if it cannot be imported or called."""
    place, _, path = name.rpartition(":")
    if not place:
        raise UsageError(f"{name} has no module; use module:function or path/file.py:function")
    if path.partition("/")[0].isdigit():
        raise UsageError(f"{name} is not a function; write a service as a URL: http://{name}")
    found: Any = _imported(place)
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{place} has no function {path}; check the name")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name} is not callable; give a function, or a class with callable objects")
    return cast("Callable[..., Any]", found)


def _imported(place: str) -> Any:
    """The module with this name or file; its folder is importable, as for a script that runs there."""
    file = Path(place) if place.endswith(".py") else None
    if file is not None and not file.is_file():
        raise UsageError(f"{file} does not exist; the target is module:function or path/file.py:function")
    sys.path.insert(0, str(Path.cwd() if file is None else file.resolve().parent))
    try:
        if file is None:
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(_MODULE, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and file is None and (place == missing or place.startswith(f"{missing}.")):
            raise UsageError(f"there is no module {place}; run in its folder, or use path/file.py:function") from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = "" if isinstance(error, SyntaxError) else f" ({last.filename}:{last.lineno})"
        shows = f"python {file}" if file is not None else f"python -c 'import {place}'"
        raise UsageError(
            f"{place} cannot be imported: {type(error).__name__}: {error}{at}; {shows} shows the traceback"
        ) from error
    return module


def arguments_of(made: Callable[..., Any], *, has_inputs: bool) -> tuple[str, ...]:
    """`input`, `request`: what a function, or an object of a class, takes. Raises `UsageError` if it needs more."""
    needed = _needed(made)
    if inspect.isclass(made):
        if needed:
            raise UsageError(f"{made.__name__} needs {', '.join(needed)}; use a class without parameters")
        if not any("__call__" in vars(one) for one in made.__mro__):
            raise UsageError(f"objects of {made.__name__} are not callable; add a method __call__")
        needed = _needed(made.__call__)[1:]
    if len(needed) > 2 or (len(needed) == 2 and not has_inputs):
        can = "the input and the request" if has_inputs else "the request; --input adds data"
        raise UsageError(f"{made} needs {len(needed)} arguments, but gets only {can}")
    return {0: (), 1: ("input",) if has_inputs else ("request",), 2: ("input", "request")}[len(needed)]


def _needed(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-ins
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind in plain]


class CallableTarget(Target):
    """Calls a function; each call is a batch of the trace.

    Args:
        function: or a class: each worker makes an object before the clock starts, and calls its `close()` at the end.
        inputs: inputs of the requests; empty: the function gets the request.
        warmup: names of phases whose requests are not batches.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        recorder: PerfRecorder,
        inputs: Inputs,
        warmup: frozenset[str] = frozenset(),
    ) -> None:
        self._function, self._recorder, self._inputs, self._warmup = function, recorder, inputs, warmup
        self._close: Callable[[], Any] | None = None
        self._arguments = arguments_of(function, has_inputs=bool(inputs))
        kind: Any = function if inspect.isclass(function) else type(function)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(kind.__call__)

    def open(self) -> None:
        """Make the object if the target is a class."""
        if inspect.isclass(self._function):
            self._function = cast("Callable[..., Any]", self._function())
            self._close = getattr(self._function, "close", None)

    def call(self, request: LoadRequest) -> Answer:
        """Call the target; an exception deletes the batch from the trace's results."""
        begun_ns = perf_counter_ns()
        with self._scope(request):
            return _answer(self._function(*self._values(request)), begun_ns)

    async def call_async(self, request: LoadRequest) -> Answer:
        """Call a coroutine function."""
        begun_ns = perf_counter_ns()
        with self._scope(request):
            return _answer(await self._function(*self._values(request)), begun_ns)

    def _scope(self, request: LoadRequest) -> Any:
        if request.phase in self._warmup:
            return self._recorder.range("warm-up request")
        return self._recorder.batch(request.id, request.items, message="request")

    def _values(self, request: LoadRequest) -> list[Any]:
        given = {"request": request, "input": self._inputs.of(request)}
        return [given[name] for name in self._arguments]

    async def close_async(self) -> None:
        """Close the object of a class whose `close` is a coroutine function."""
        if inspect.iscoroutinefunction(self._close):
            await self._close()

    def close(self) -> None:
        """Close the object of a class."""
        if callable(self._close) and not inspect.iscoroutinefunction(self._close):
            self._close()


def _answer(result: Any, begun_ns: int) -> Answer:
    """The answer from a returned value. Raises `TypeError` or `ValueError` if it is no valid result."""
    if isinstance(result, Answer):
        check_answer(result, begun_ns)
        result.begun_ns = result.begun_ns or begun_ns
        return result
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns of a coroutine that was never awaited
        raise TypeError(
            f"the target returned a {type(result).__name__} whose content has not run; use an async function, "
            "or a function that iterates over the generator"
        )
    return Answer(begun_ns=begun_ns)


# ---- inputs ----

KINDS = ".npz, .npy, .json, .jsonl, .txt"


class Lines(list[Any]):
    """Lines of a text file, or values of a JSONL file."""


class Inputs:
    """The input of each request: the content of its entry's file. For lines, as many as the request has items.

    Raises `UsageError` if a file cannot be read.
    """

    def __init__(self, mix: tuple[MixEntry, ...]) -> None:
        self._values = {entry.name: read_input(entry.input) for entry in mix if entry.input is not None}

    def __bool__(self) -> bool:
        return bool(self._values)

    def of(self, request: LoadRequest) -> Any:
        """The input; None if the request's entry has no file. Lines start again after the last."""
        value = self._values.get(request.input or "")
        if not isinstance(value, Lines):
            return value
        first = request.id * request.items
        return [value[place % len(value)] for place in range(first, first + request.items)]


def read_input(path: Path) -> Any:
    """An array (.npy), arrays by name (.npz), a JSON value (.json), or lines (.txt, .jsonl). Raises `UsageError`."""
    kind = path.suffix.lower()
    try:
        if kind == ".npy":
            return np.load(path, allow_pickle=False)
        if kind == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return dict(archive)
        if kind == ".json":
            return json.loads(path.read_text("utf-8"))
        if kind not in (".txt", ".jsonl"):
            raise ValueError(f"a file of kind {kind or '(none)'}")
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        if not lines:
            raise ValueError("it has no lines")
        return Lines(map(json.loads, lines) if kind == ".jsonl" else lines)
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot read the input {path} ({reason}); supported: {KINDS}") from error


if __name__ == "__main__":
    main(*sys.argv[1:])
