"""Check a suite: every conflict is found before the first process starts, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from perfharness.analysis.suites.bench_figures import cell_of, direction_of, is_named
from perfharness.backends import Backend, backend, backend_and_mode, model_source
from perfharness.backends.onnx_files import onnx_inputs
from perfharness.bench.accuracy.functions import user_function
from perfharness.bench.spec import CaseSpec
from perfharness.bench.suite.suite import (
    ALL_MODES,
    Suite,
    SuiteModel,
    accuracy_settings,
    model_name,
    model_text,
    modes_of,
    possible_cells,
    possible_devices,
    read_suite,
    source_of,
)
from perfharness.bench.worker.inputs import input_shapes
from perfharness.errors import UsageError
from perfharness.model.bench import NO_CASE, Direction


def load_suite(path: Path | None, options: Mapping[str, Any] | None = None, *, equality: bool | None = None) -> Suite:
    """The suite of a file; options override it.

    Args:
        path: a TOML file; None: the options name models and backends.
        options: `models` and `backends` (lists of names), `shapes` of inputs by name, `equality` (whether outputs are
            compared), any other key of a suite, those of a table as `table.key`; None: not given.
        equality: as the option.

    Raises `UsageError` with one line for each thing that is wrong.
    """
    given = {key: value for key, value in (options or {}).items() if value is not None}
    if path is None and not (given.get("models") or given.get("backends")):
        raise UsageError("name a suite (perfharness bench suite.toml), or --model and --backend")
    content: dict[str, Any] = read_suite(path) if path is not None else {"folder": Path.cwd()}
    shapes, equality = given.pop("shapes", None), given.pop("equality", equality)
    for key, value in given.items():
        table, dot, name = key.rpartition(".")
        if key in ("models", "backends"):
            content.pop(key[:-1], None)
        if dot:
            content[table] = {**content.get(table, {}), name: value}
        else:
            content[key] = value
    if shapes:
        content = expanded_tables(content)
        content["model"] = [{**one, "inputs": {**one.get("inputs", {}), **shapes}} for one in content["model"]]
    if equality is not None:
        kept = content.pop("equality", {})
        content |= {"equality": kept} if equality else {}
    return make_suite(content, str(path) if path is not None else "the command line")


def make_suite(content: Mapping[str, Any], origin: str) -> Suite:
    """A suite from its tables. Raises `UsageError` with one line for each thing that is wrong.

    Args:
        origin: prefix of messages: the file's name, or `the command line`.
    """
    try:
        suite = Suite.model_validate(expanded_tables(content))
    except ValidationError as error:
        _refuse(origin, [error_text(one) for one in error.errors()])
    if found := list(problems(suite)):
        _refuse(origin, found)
    constraints = suite.constraints.model_copy(update={"accuracy_direction": metric_direction(suite)})
    return suite.model_copy(update={"constraints": constraints})


def _refuse(origin: str, found: list[str]) -> NoReturn:
    if len(found) == 1:
        raise UsageError(f"{origin}: {found[0]}; nothing was started")
    lines = "\n".join(f"  {line}" for line in found)
    raise UsageError(f"{origin}: {len(found)} things are wrong, nothing was started\n{lines}")


def expanded_tables(content: Mapping[str, Any]) -> dict[str, Any]:
    """`models = ["m.onnx"]` and `backends = ["torch/compile"]` as tables."""
    whole = dict(content)
    for short, key in (("models", "model"), ("backends", "backend")):
        names = whole.pop(short, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"`{short}` must be a list of names; write tables as [[{key}]]")
        tables = whole.get(key, [])
        if not isinstance(tables, list | tuple):
            raise UsageError(f"`{key}` must be written as [[{key}]], once for each")
        made = [{"source": name} if key == "model" else _backend_table(name) for name in names]
        whole[key] = [*made, *tables]
    return whole


def _backend_table(text: str) -> dict[str, Any]:
    """`torch/compile`, `kerasxla` -> its name and mode."""
    name, mode = backend_and_mode(text)
    return {"name": name, "modes": [mode]} if mode else {"name": name}


def error_text(error: Any) -> str:
    """A pydantic error as one clear sentence."""
    where = ".".join(str(part) for part in error["loc"]) or "suite"
    if error["type"] == "extra_forbidden":
        known = ", ".join(_known_keys(error["loc"][:-1]))
        return f"there is no key `{where}`" + (f"; there are {known}" if known else "")
    if error["type"] == "missing":
        return f"`{where}` is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"`{where}`: {message[:1].lower()}{message[1:]} (it is {error['input']!r})"


def _known_keys(location: Sequence[str | int]) -> list[str]:
    """The keys of the table at that location in a suite."""
    whole = Suite.model_json_schema()
    table = whole
    for part in location:
        table = table.get("items", {}) if isinstance(part, int) else table.get("properties", {}).get(part, {})
        one = next((each for each in table.get("anyOf", ()) if "$ref" in each), table)
        table = whole["$defs"][one["$ref"].rsplit("/", 1)[-1]] if "$ref" in one else table
    return [name for name in table.get("properties", {}) if name != "folder"]


def problems(suite: Suite) -> Iterator[str]:
    """Conflicts in the suite, one sentence each. Starts no process and imports no framework."""
    if not suite.model:
        yield 'there is no model; add models = ["FILE"] or --model'
    if not suite.backend:
        yield 'there is no backend; add backends = ["onnxruntime"] or --backend'
    yield from _list_problems(suite)
    found: dict[str, Backend] = {}
    yield from _backend_problems(suite, found)
    yield from _model_problems(suite, found)
    yield from _shape_problems(suite)
    yield from _name_problems(suite)
    yield from _accuracy_problems(suite)
    if suite.equality is not None and found and len(possible_cells(suite)) < 2 and len(suite.backend) < 2:
        yield "[equality] compares backends, modes or precisions, and there is only one of them"


def _shape_problems(suite: Suite) -> Iterator[str]:
    """Open dimensions that are not given, where the file can be read without its framework."""
    for model in suite.model:
        sources = {text for one in suite.backend if (text := model.sources.get(one.name, model.source)) is not None}
        for path in (Path(model_text(suite, text)) for text in sorted(sources)):
            specs = onnx_inputs(path) if path.suffix.lower() == ".onnx" and path.is_file() else None
            sizes = (model.batch_sizes or suite.batch_sizes)[:1]
            if not specs or not sizes:
                continue
            # a fixed size is checked per case: other batch sizes may fit
            free = [one.model_copy(update={"shape": (None, *one.shape[1:])}) for one in specs]
            case = NO_CASE.model_copy(update={"batch_size": sizes[0]})
            try:
                input_shapes(
                    free, CaseSpec(case=case, model=str(path), inputs=model.inputs, dimensions=model.dimensions)
                )
            except UsageError as error:
                yield f"{model_name(model)}: {error}"


def metric_direction(suite: Suite) -> Direction | None:
    """Which values of `accuracy_metric` are better; None where it is no built-in metric and is not declared."""
    given = suite.constraints
    if given.accuracy_metric is None:
        return None
    known = direction_of(given.accuracy_metric, given.accuracy_direction)
    if known is not None or suite.accuracy is None:
        return known
    own = (_declared(model_text(suite, text), given.accuracy_metric) for text in suite.accuracy.metrics)
    return next(filter(None, own), None)


def _declared(text: str, metric: str) -> Direction | None:
    """The attribute `higher_is_better` of a metric's function: one direction for all figures, or a dict by name."""
    declared = getattr(user_function(text), "higher_is_better", None)
    if isinstance(declared, Mapping):
        declared = declared.get(metric)
    return None if declared is None else "higher" if declared else "lower"


def _accuracy_problems(suite: Suite) -> Iterator[str]:
    """Missing data (the files themselves are read by each case), and metrics of which nobody said what is better."""
    metric = suite.constraints.accuracy_metric
    try:
        if suite.accuracy is not None:
            accuracy_settings(suite).samples()
    except UsageError as error:
        yield f"[accuracy] {error}"
    try:
        if metric is None or metric_direction(suite) is not None:
            return
    except UsageError as error:
        yield f"[accuracy] {error}"
        return
    yield (
        f"it is not known whether higher or lower values of {metric!r} are better; declare it with "
        'accuracy_direction = "lower" (or "higher") in [constraints], or --accuracy-direction'
    )


def _list_problems(suite: Suite) -> Iterator[str]:
    lists: list[tuple[str, tuple[Any, ...]]] = [
        ("batch_sizes", suite.batch_sizes),
        ("precisions", suite.precisions),
        *((f"batch_sizes of {model_name(model)}", model.batch_sizes) for model in suite.model),
        *((f"modes of {one.name}", one.modes) for one in suite.backend),
        *((f"precisions of {one.name}", one.precisions) for one in suite.backend),
    ]
    for what, values in lists:
        if twice := [value for position, value in enumerate(values) if value in values[:position]]:
            yield f"{what} has {twice[0]} twice"
    if not suite.batch_sizes:
        yield "`batch_sizes` is empty"
    if not suite.precisions:
        yield "`precisions` is empty"
    if "latency" not in suite.measure.passes:
        yield "`passes` lacks `latency`, from which all speeds come"
    if suite.telemetry.gpu_uuids:
        yield "there is no key `telemetry.gpu_uuids`; [run] gpu names the GPU"


def _backend_problems(suite: Suite, found: dict[str, Backend]) -> Iterator[str]:
    """Adds existing backends to `found`, by name."""
    seen: set[tuple[object, ...]] = set()
    for one in suite.backend:
        try:
            known = found.setdefault(one.name, backend(one.name))
        except UsageError as error:
            yield str(error)
            continue
        for mode in one.modes:
            if one.modes != ALL_MODES and mode not in known.modes:
                yield f"{one.name} has no mode {mode!r}; it has: {', '.join(known.modes)}"
        for precision in one.precisions:
            if precision not in known.precisions:
                yield f"{one.name} does not compute in {precision}; it does in: {', '.join(known.precisions)}"
        for mode in modes_of(one, known, possible_devices(suite, one)[-1]):
            for precision in one.precisions or suite.precisions:
                cell = (one.name, mode, precision, one.device, one.threads, *sorted(one.extra.items()))
                if cell in seen:
                    yield f"{one.name}/{mode}/{precision} is asked for twice"
                seen.add(cell)


def _model_problems(suite: Suite, backends: dict[str, Backend]) -> Iterator[str]:
    names: list[str] = []
    for model in suite.model:
        if model.source is None and not model.sources:
            yield f"[[model]] {model.name or ''} has neither `source` nor `sources`".replace("  ", " ")
            continue
        for other in sorted(set(model.sources) - {one.name for one in suite.backend}):
            yield f"sources of {model_name(model)} names {other}, which is no backend of the suite"
        try:
            sources = [model_source(model_text(suite, text), model.name)
                       for text in filter(None, [model.source, *model.sources.values()])]  # fmt: skip
        except UsageError as error:
            yield str(error)
            continue
        for factory in (str(source.factory or "") for source in sources):
            file = factory.rpartition(":")[0]  # a module is imported by the process that needs it
            if file.endswith(".py") and not Path(file).is_file():
                yield f"there is no file {file}, which {factory} names"
        names.append(sources[0].name)
        if names.count(sources[0].name) > 1:
            yield f"two models are called {sources[0].name}; give each a `name` of its own"
        if backends and not any(_takes(suite, model, name, one) for name, one in backends.items()):
            accepted = "; ".join(
                f"{name}: {', '.join([*one.suffixes, 'module:function'])}" for name, one in backends.items()
            )
            yield f"no backend of the suite takes {model_name(model)}; {accepted}"
        if model.input_file is not None and not (suite.folder / model.input_file).is_file():
            yield f"there is no input file {suite.folder / model.input_file}"
        if model.tokens_dimension is not None and model.tokens_dimension not in model.dimensions:
            yield f"{model_name(model)}: `dimensions` does not set its tokens_dimension {model.tokens_dimension!r}"


def _takes(suite: Suite, model: SuiteModel, name: str, one: Backend) -> bool:
    source = source_of(suite, model, name)
    return source is not None and (source.factory is not None or source.suffix in one.suffixes)


def _name_problems(suite: Suite) -> Iterator[str]:
    """Baseline and reference must be cells of the suite."""
    cells = possible_cells(suite)
    for what, name in (
        ("baseline", suite.baseline),
        ("[equality] reference", suite.equality.reference if suite.equality else None),
        ("[accuracy] baseline", suite.accuracy.baseline if suite.accuracy else None),
    ):
        if name is not None and not any(is_named(cell, name) for cell in cells):
            there = ", ".join(sorted({cell_of(cell) for cell in cells}))
            yield f"{what} {name!r} is no cell of the suite; there are: {there}"
