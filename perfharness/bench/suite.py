"""A suite: the tables of `suite.toml`, options that override them, and the checks before the first process starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from perfharness.analysis.suites.bench_figures import cell_of, direction_of, is_named
from perfharness.backends import (
    Backend,
    Device,
    DeviceChoice,
    ModelSource,
    backend,
    backend_and_mode,
    model_source,
)
from perfharness.backends.onnx_files import onnx_inputs
from perfharness.bench.accuracy.outputs import LOW_PRECISION, Tolerance
from perfharness.bench.accuracy.settings import AccuracySettings
from perfharness.bench.inputs import input_shapes
from perfharness.bench.spec import CaseSpec, LatencySettings, Pass, TelemetrySettings
from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.base import Settings
from perfharness.model.bench import NO_CASE, BenchCase, Precision
from perfharness.model.bench_suite import Constraints
from perfharness_launcher.options import DEFAULT_COOL_DOWN_LIMIT_S

SMALLEST_SIZE = 1_000_000
"""Bytes; a smaller limit has no unit by mistake."""


def doubling_sizes(largest: int, smallest: int = 1) -> list[int]:
    """1, 2, 4, ... and the largest itself. Raises `UsageError`."""
    if smallest < 1 or largest < smallest:
        raise UsageError(f"no batch size between {smallest} and {largest}")
    sizes = [smallest]
    while sizes[-1] * 2 < largest:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == largest else [*sizes, largest]


def _whole_size(value: object) -> object:
    """Reject text such as 1,5GB, which pydantic reads as one byte."""
    if isinstance(value, str) and not re.fullmatch(r"\s*\d+(\.\d+)?\s*[A-Za-z]*\s*", value):
        raise ValueError("write a size as 12GB, 512MiB or a number of bytes")
    return value


def _with_unit(size: ByteSize) -> ByteSize:
    if size < SMALLEST_SIZE:
        raise ValueError(f"{size} bytes is too small for any process; give the unit, as in 12GB or 512MiB")
    return size


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str | int) else value


def _batch_sizes(value: object) -> object:
    """`"1..64"` is 1, 2, 4, ... 64."""
    found = re.fullmatch(r"(\d+)\.\.(\d+)", value) if isinstance(value, str) else None
    if found is None:
        return _one_or_many(value)
    try:
        return doubling_sizes(int(found[2]), int(found[1]))
    except UsageError as error:
        raise ValueError(str(error)) from error


Size = Annotated[ByteSize, AfterValidator(_with_unit), BeforeValidator(_whole_size)]
BatchSizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_batch_sizes)]
Precisions = Annotated[tuple[Precision, ...], BeforeValidator(_one_or_many)]
Modes = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]
Gpus = Annotated[tuple[Annotated[str, BeforeValidator(str)], ...], BeforeValidator(_one_or_many)]
ALL_MODES = ("all",)


class SuiteModel(Settings):
    """`[[model]]`.

    Args:
        source: a file, a SavedModel folder, or `module:function`; paths are relative to the suite file's folder.
        sources: by backend name, instead of `source`, for backends that need another kind of file.
        inputs, dimensions, input_file, calibration, tokens_per_item, tokens_dimension: see `spec.CaseSpec`.
        batch_sizes: instead of the suite's.
    """

    source: str | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    name: str | None = None
    inputs: dict[str, tuple[int | str, ...]] = Field(default_factory=dict)
    dimensions: dict[str, int] = Field(default_factory=dict)
    input_file: Path | None = None
    calibration: Path | None = None
    tokens_per_item: float | None = Field(default=None, gt=0)
    tokens_dimension: str | None = None
    batch_sizes: BatchSizes = ()

    @model_validator(mode="after")
    def _is_whole(self) -> SuiteModel:
        if self.source is None and not self.sources:
            raise ValueError("a model needs `source` or `sources`")
        if self.tokens_dimension is not None and self.tokens_dimension not in self.dimensions:
            raise ValueError(f"`dimensions` does not set the tokens_dimension {self.tokens_dimension!r}")
        return self

    @property
    def title(self) -> str:
        """The model's name in messages."""
        return self.name or self.source or next(iter(self.sources.values()))


class SuiteBackend(Settings):
    """`[[backend]]`.

    Args:
        modes: `all` for all modes of the backend; empty for its default mode.
        precisions: instead of the suite's.
        device: instead of the suite's.
        extra: options of this backend only.
    """

    name: str
    modes: Modes = ()
    precisions: Precisions = ()
    device: Literal["cpu", "cuda"] | None = None
    threads: int | None = Field(default=None, ge=1)
    extra: dict[str, str] = Field(default_factory=dict)

    def modes_on(self, device: Device) -> tuple[str, ...]:
        """The modes to measure on a device. Raises `UsageError` if there is no such backend."""
        if self.modes and self.modes != ALL_MODES:
            return self.modes
        possible = backend(self.name).modes_on(device)
        return possible if self.modes else possible[:1]

    @property
    def variant(self) -> str:
        """The settings as text, to distinguish several entries of one backend."""
        settings = {} if self.threads is None else {"threads": str(self.threads)}
        return " ".join(f"{name}={value}" for name, value in {**settings, **dict(sorted(self.extra.items()))}.items())


class MeasureTable(Settings):
    """`[measure]`: passes of each case in addition to start-up, and the seed of random inputs."""

    passes: tuple[Pass, ...] = ("latency", "telemetry")
    threads: int | None = Field(default=None, ge=1)
    memory_limit: Size | None = None
    seed: int = 0
    layer_rounds: int = Field(default=20, ge=1)
    cache_dir: Path | None = None


class RunTable(Settings):
    """`[run]`: how the cases are run, and the seed of their order."""

    timeout_s: float = Field(default=1800.0, gt=0)
    shuffle: bool = True
    seed: int = 1
    cool_down_c: float | None = Field(default=None, gt=0)
    cool_down_limit_s: float = Field(default=DEFAULT_COOL_DOWN_LIMIT_S, ge=0)


class EqualityTable(Tolerance):
    """`[equality]`: outputs of every case are compared with the baseline's, with tolerances by precision."""

    precision: dict[Precision, Tolerance] = Field(default_factory=dict)

    def tolerance(self, precision: Precision) -> Tolerance:
        """Tolerance for a precision; a default is never tighter than the suite's own."""
        if (given := self.precision.get(precision)) is not None:
            return given
        low = LOW_PRECISION.get(precision, self)
        return Tolerance(absolute=max(low.absolute, self.absolute), relative=max(low.relative, self.relative))


class ConstraintsTable(Constraints):
    """`[constraints]`; sizes may have units."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    memory_limit_bytes: Size | None = Field(default=None, alias="memory_limit")

    @model_validator(mode="after")
    def _direction_is_known(self) -> ConstraintsTable:
        metric = self.accuracy_metric
        if metric is not None and direction_of(metric, self.accuracy_direction) is None:
            raise ValueError(f"set accuracy_direction: are higher or lower values of {metric!r} better?")
        return self


class Suite(Settings):
    """A suite, validated by type; `load_suite` finds conflicts.

    Args:
        gpus: UUIDs or indices; every case runs on each of them. Empty: the first GPU.
        folder: start of relative paths of models and inputs.
    """

    name: str = "bench"
    model: tuple[SuiteModel, ...] = ()
    backend: tuple[SuiteBackend, ...] = ()
    precisions: Precisions = ("fp32",)
    batch_sizes: BatchSizes = (1,)
    device: DeviceChoice = "auto"
    gpus: Gpus = ()
    baseline: str | None = None
    measure: MeasureTable = MeasureTable()
    latency: LatencySettings = LatencySettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    run: RunTable = RunTable()
    equality: EqualityTable | None = None
    accuracy: AccuracySettings | None = None
    constraints: ConstraintsTable = ConstraintsTable()
    folder: Path = Path()

    def in_folder(self, path: Path | None) -> Path | None:
        """A path, relative to the suite's folder, as an absolute one."""
        return None if path is None else (self.folder / path).absolute()

    def text_of(self, text: str) -> str:
        """Name of a model or function; the suite's folder is prefixed to a relative path that exists in it."""
        file, colon, function = text.rpartition(":")
        if (self.folder / text).exists():
            return str((self.folder / text).absolute())
        if colon and file.endswith(".py") and (self.folder / file).is_file():
            return f"{(self.folder / file).absolute()}:{function}"
        return text

    def source_of(self, model: SuiteModel, backend_name: str) -> ModelSource | None:
        """The model for a backend; None if the suite names none for it. Raises `UsageError`."""
        text = model.sources.get(backend_name, model.source)
        return None if text is None else model_source(self.text_of(text), model.name)

    def possible_devices(self, one: SuiteBackend) -> tuple[Device, ...]:
        """Devices that a backend may run on, according to the suite alone: one, or the CPU, then the GPU."""
        asked = one.device or self.device
        return ("cpu", "cuda") if asked == "auto" else (asked,)

    def possible_cells(self) -> list[BenchCase]:
        """A case of each cell that the suite may have on any machine, without unknown backends."""
        cells = []
        for one in self.backend:
            with suppress(UsageError):
                devices = self.possible_devices(one)
                modes = dict.fromkeys(mode for device in devices for mode in one.modes_on(device))
                for mode, precision in product(modes, one.precisions or self.precisions):
                    how = {"backend": one.name, "mode": mode, "precision": precision, "variant": one.variant}
                    cells.append(NO_CASE.model_copy(update={**how, "device": devices[-1]}))
        return cells

    def accuracy_data(self) -> AccuracySettings | None:
        """`[accuracy]` with relative paths prefixed with the suite's folder."""
        if (given := self.accuracy) is None:
            return None
        names = ("inputs", "labels", "class_names", "truth", "values")
        paths = {name: self.in_folder(getattr(given, name)) for name in names}
        function = given.preprocess.function
        prepare = given.preprocess.model_copy(update={"function": None if function is None else self.text_of(function)})
        metrics = tuple(map(self.text_of, given.metrics))
        return given.model_copy(update={**paths, "preprocess": prepare, "metrics": metrics})


def load_suite(path: Path | None, options: Mapping[str, Any] | None = None) -> Suite:
    """The suite of a file, with options that override it.

    Args:
        path: a TOML file; None if the options name models and backends.
        options: `models` and `backends` (lists of names), `shapes` of inputs by name, `calibration` samples,
            `equality` (whether to compare outputs), `layers` (whether to time layers), any other key of a suite, or
            `table.key`. None means not given.

    Raises `UsageError` with one line per error.
    """
    given = {key: value for key, value in (options or {}).items() if value is not None}
    if path is None and not (given.get("models") or given.get("backends")):
        raise UsageError("name a suite (perfharness bench suite.toml), or --model and --backend")
    content: dict[str, Any] = {"folder": Path.cwd()} if path is None else _read(path)
    shapes, calibration, equality, layers = (
        given.pop(name, None) for name in ("shapes", "calibration", "equality", "layers")
    )
    for key, value in given.items():
        table, dot, name = key.rpartition(".")
        if key in ("models", "backends"):
            content.pop(key[:-1], None)
        if dot:
            content[table] = {**content.get(table, {}), name: value}
        else:
            content[key] = value
    content = _with_tables(content)
    if calibration:
        content["model"] = [{**one, "calibration": Path(calibration).absolute()} for one in content["model"]]
    if shapes:
        content["model"] = [{**one, "inputs": {**one.get("inputs", {}), **shapes}} for one in content["model"]]
    if equality is not None:
        kept = content.pop("equality", {})
        content |= {"equality": kept} if equality else {}
    if layers:
        measure = content.get("measure", {})
        passes = measure.get("passes", MeasureTable().passes)
        content["measure"] = {**measure, "passes": [*dict.fromkeys((*passes, "layers"))]}
    origin = str(path) if path is not None else "the command line"
    try:
        suite = Suite.model_validate(content)
    except ValidationError as error:
        raise _refused(origin, map(sentence_of, error.errors())) from error
    if found := list(_problems(suite)):
        raise _refused(origin, found)
    return suite


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise UsageError(f"suite {path} not found; name a TOML file, or use --model and --backend")
    content = read_toml(path)
    if "folder" in content:
        raise UsageError(f"{path}: unknown key `folder`; relative paths start at the suite file's folder")
    return {**content, "name": content.get("name", path.stem), "folder": path.absolute().parent}


def _with_tables(content: dict[str, Any]) -> dict[str, Any]:
    """`models = ["m.onnx"]` and `backends = ["torch/compile"]` as tables."""
    for short, key in (("models", "model"), ("backends", "backend")):
        names, tables = content.pop(short, []), content.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"`{short}` must be a list of names; write tables as [[{key}]]")
        if not isinstance(tables, list | tuple):
            raise UsageError(f"`{key}` must be written as [[{key}]], once per entry")
        made = [{"source": name} if key == "model" else _backend_table(name) for name in names]
        content[key] = [*made, *tables]
    return content


def _backend_table(text: str) -> dict[str, Any]:
    """Name and mode of `torch/compile` or `kerasxla`."""
    name, mode = backend_and_mode(text)
    return {"name": name, "modes": [mode]} if mode else {"name": name}


def _refused(origin: str, found: Iterator[str] | Sequence[str]) -> UsageError:
    return UsageError("\n".join([*(f"{origin}: {line}" for line in found), "nothing was started"]))


def sentence_of(error: Any) -> str:
    """A pydantic error as one sentence."""
    where = ".".join(str(part) for part in error["loc"]) or "suite"
    if error["type"] == "extra_forbidden":
        return f"unknown key `{where}`"
    if error["type"] == "missing":
        return f"`{where}` is missing"
    message = error["msg"].removeprefix("Value error, ")
    value = "" if isinstance(error["input"], Mapping) else f" (it is {error['input']!r})"
    return f"`{where}`: {message[:1].lower()}{message[1:]}{value}"


# ---- conflicts; no process is started and no framework is imported ----


def _problems(suite: Suite) -> Iterator[str]:
    if not suite.model:
        yield 'no model; add models = ["FILE"] or --model'
    if not suite.backend:
        yield 'no backend; add backends = ["onnxruntime"] or --backend'
    lists = [("batch_sizes", suite.batch_sizes), ("precisions", suite.precisions)]
    for key, values in [*lists, *(("model.batch_sizes", one.batch_sizes or (1,)) for one in suite.model)]:
        if not values or len(set(values)) < len(values):
            yield f"`{key}` {'has a value twice' if values else 'is empty'}"
    if "latency" not in suite.measure.passes:
        yield "`passes` needs `latency`, the source of all speeds"
    known: dict[str, Backend] = {}
    for one in suite.backend:
        try:
            known[one.name] = backend(one.name)
        except UsageError as error:
            yield str(error)
            continue
        own, modes = known[one.name], set(one.modes) - set(ALL_MODES)
        for mode in sorted(modes - set(own.modes)):
            yield f"{one.name} has no mode {mode!r}; it has: {', '.join(own.modes)}"
        for precision in sorted(set(one.precisions) - set(own.precisions)):
            yield f"{one.name} has no precision {precision}; it has: {', '.join(own.precisions)}"
    cells = suite.possible_cells()
    yield from (f"{cell_of(cell)} is listed twice" for cell, count in Counter(cells).items() if count > 1)
    if suite.baseline is not None and not any(is_named(cell, suite.baseline) for cell in cells):
        there = ", ".join(sorted(set(map(cell_of, cells))))
        yield f"baseline {suite.baseline!r} is not in the suite; choose from: {there}"
    if suite.equality is not None and known and len(cells) < 2:
        yield "[equality] needs two or more backends, modes or precisions to compare"
    yield from _model_problems(suite, known)
    try:
        if (data := suite.accuracy_data()) is not None:
            data.samples()
    except UsageError as error:
        yield f"[accuracy] {error}"


def _model_problems(suite: Suite, backends: Mapping[str, Backend]) -> Iterator[str]:
    names: Counter[str] = Counter()
    for model in suite.model:
        for other in sorted(set(model.sources) - {one.name for one in suite.backend}):
            yield f"sources of {model.title} names {other}, which is not a backend of the suite"
        texts = [text for text in (model.source, *model.sources.values()) if text is not None]
        try:
            sources = [model_source(suite.text_of(text), model.name) for text in texts]
        except UsageError as error:
            yield str(error)
            continue
        names[sources[0].name] += 1
        for source in sources:
            file = (source.factory or "").rpartition(":")[0]  # a module is imported by the process that needs it
            if file.endswith(".py") and not Path(file).is_file():
                yield f"{source.factory}: file {file} not found"
            if source.suffix == ".onnx" and source.path is not None:
                yield from _shape_problems(suite, model, source.path)
        if backends and not any(
            source is not None and (source.factory is not None or source.suffix in one.suffixes)
            for one, source in ((one, suite.source_of(model, name)) for name, one in backends.items())
        ):
            taken = "; ".join(f"{name}: {', '.join(one.suffixes)}" for name, one in backends.items())
            yield f"no backend of the suite accepts {model.title}; {taken}; each accepts module:function"
        for what, given in (("input file", model.input_file), ("calibration file", model.calibration)):
            if given is not None and not (suite.folder / given).is_file():
                yield f"{what} {suite.folder / given} not found"
    yield from (f"two models have the name {name}; give each its own `name`" for name in names if names[name] > 1)


def _shape_problems(suite: Suite, model: SuiteModel, path: Path) -> Iterator[str]:
    """Open dimensions that are not set, if the file can be read without its framework."""
    specs, sizes = onnx_inputs(path), model.batch_sizes or suite.batch_sizes
    if not specs or not sizes:
        return
    # a fixed size is checked per case: other batch sizes may fit
    free = [one.model_copy(update={"shape": (None, *one.shape[1:])}) for one in specs]
    case = NO_CASE.model_copy(update={"batch_size": sizes[0]})
    try:
        input_shapes(free, CaseSpec(case=case, model=str(path), inputs=model.inputs, dimensions=model.dimensions))
    except UsageError as error:
        yield f"{model.title}: {error}"
