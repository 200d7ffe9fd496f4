"""The tables of `suite.toml`. `check.make_suite` checks a whole suite."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field

from perfharness.backends import Backend, Device, DeviceChoice, ModelSource, backend, model_source
from perfharness.bench.accuracy.settings import AccuracySettings
from perfharness.bench.spec import LatencySettings, Pass, TelemetrySettings
from perfharness.bench.worker.equality import Tolerance, tolerance_of
from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.base import Settings
from perfharness.model.bench import NO_CASE, BenchCase, Direction, Precision
from perfharness.model.bench_suite import Constraints
from perfharness_launcher.options import DEFAULT_COOL_DOWN_LIMIT_S

DEFAULT_TIMEOUT_S = 1800.0

SMALLEST_SIZE = 1_000_000
"""Bytes: a limit below lacks its unit."""

DEFAULT_SEED = 1


def doubling_sizes(largest: int, smallest: int = 1) -> list[int]:
    """1, 2, 4, ... and the largest itself. Raises `UsageError`."""
    if smallest < 1 or largest < smallest:
        raise UsageError(f"there are no batch sizes from {smallest} to {largest}")
    sizes = [smallest]
    while sizes[-1] * 2 < largest:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == largest else [*sizes, largest]


def _whole_size(value: object) -> object:
    """Pydantic takes 1,5GB as a byte."""
    if isinstance(value, str) and not re.fullmatch(r"\s*\d+(\.\d+)?\s*[A-Za-z]*\s*", value):
        raise ValueError("it is no size; write it as 12GB, 512MiB or a number of bytes")
    return value


def _with_unit(size: ByteSize) -> ByteSize:
    if size < SMALLEST_SIZE:
        raise ValueError(f"{size} bytes are less than any process takes; give the unit, as 12GB or 512MiB")
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
ALL_MODES = ("all",)


class SuiteModel(Settings):
    """`[[model]]`.

    Args:
        source: a file, a SavedModel folder, or `module:function`; paths are relative to the suite file's folder.
        sources: instead of `source` for some backends, by name: they take different kinds of files.
        inputs, dimensions, input_file, tokens_per_item, tokens_dimension: see `spec.CaseSpec`.
        batch_sizes: instead of the suite's.
    """

    source: str | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    name: str | None = None
    inputs: dict[str, tuple[int | str, ...]] = Field(default_factory=dict)
    dimensions: dict[str, int] = Field(default_factory=dict)
    input_file: Path | None = None
    tokens_per_item: float | None = Field(default=None, gt=0)
    tokens_dimension: str | None = None
    batch_sizes: BatchSizes = ()


class SuiteBackend(Settings):
    """`[[backend]]`.

    Args:
        modes: `all`: all modes of the backend; empty: its default one.
        precisions: instead of the suite's.
        device: instead of the suite's.
        extra: options that only this backend knows.
    """

    name: str
    modes: Modes = ()
    precisions: Precisions = ()
    device: Literal["cpu", "cuda"] | None = None
    threads: int | None = Field(default=None, ge=1)
    extra: dict[str, str] = Field(default_factory=dict)


class MeasureTable(Settings):
    """`[measure]`: what is measured in each case in addition to start-up.

    Args:
        seed: of random inputs.
    """

    passes: tuple[Pass, ...] = ("latency", "telemetry")
    threads: int | None = Field(default=None, ge=1)
    memory_limit: Size | None = None
    seed: int = 0
    layer_rounds: int = Field(default=20, ge=1)
    cache_dir: Path | None = None


class RunTable(Settings):
    """`[run]`: how the cases are run.

    Args:
        seed: of the order.
        gpu: UUID or index.
    """

    timeout_s: float = Field(default=DEFAULT_TIMEOUT_S, gt=0)
    shuffle: bool = True
    seed: int = DEFAULT_SEED
    cool_down_c: float | None = Field(default=None, gt=0)
    cool_down_limit_s: float = Field(default=DEFAULT_COOL_DOWN_LIMIT_S, ge=0)
    gpu: str | None = None


class EqualityTable(Settings):
    """`[equality]`: outputs of all cells on the same inputs are compared before any speed is measured.

    Args:
        reference: `backend[/mode][/precision]`; None: the suite's baseline.
        batch_size: None: the smallest of the model.
        precision: other tolerances for a precision, instead of its defaults.
    """

    reference: str | None = None
    batch_size: int | None = Field(default=None, ge=1)
    absolute: float = Field(default=1e-3, ge=0)
    relative: float = Field(default=1e-3, ge=0)
    precision: dict[Precision, Tolerance] = Field(default_factory=dict)

    def tolerance(self, precision: Precision) -> Tolerance:
        """Tolerance for a precision, never tighter than the suite's own."""
        own = Tolerance(absolute=self.absolute, relative=self.relative)
        return self.precision.get(precision) or tolerance_of(precision, own)


class AccuracyTable(AccuracySettings):
    """`[accuracy]`: samples that every cell is run on, before any speed is measured.

    Args:
        baseline: `backend[/mode][/precision]` whose outputs the others are compared with; None: the suite's.
        batch_size: None: the smallest of the cell.
    """

    baseline: str | None = None
    batch_size: int | None = Field(default=None, ge=1)


class ConstraintsTable(Settings):
    """`[constraints]`; sizes as people write them."""

    max_latency_ms: float | None = Field(default=None, gt=0)
    latency_percentile: Literal["p50", "p90", "p95", "p99"] = "p95"
    memory_limit: Size | None = None
    max_accuracy_loss: float | None = Field(default=None, ge=0)
    accuracy_metric: str | None = None
    accuracy_direction: Direction | None = None
    max_energy_per_item_j: float | None = Field(default=None, gt=0)

    def constraints(self) -> Constraints:
        """The constraints as written to the results."""
        return Constraints(memory_limit_bytes=self.memory_limit, **self.model_dump(exclude={"memory_limit"}))


class Suite(Settings):
    """A suite, validated by type; `check.problems` finds conflicts.

    Args:
        folder: relative paths of models and inputs are relative to it.
    """

    name: str = "bench"
    model: tuple[SuiteModel, ...] = ()
    backend: tuple[SuiteBackend, ...] = ()
    precisions: Precisions = ("fp32",)
    batch_sizes: BatchSizes = (1,)
    device: DeviceChoice = "auto"
    baseline: str | None = None
    measure: MeasureTable = MeasureTable()
    latency: LatencySettings = LatencySettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    run: RunTable = RunTable()
    equality: EqualityTable | None = None
    accuracy: AccuracyTable | None = None
    constraints: ConstraintsTable = ConstraintsTable()
    folder: Path = Path()


def read_suite(path: Path) -> dict[str, Any]:
    """The tables of a suite file, short forms expanded. Raises `UsageError`."""
    if not path.exists():
        raise UsageError(f"there is no suite {path}; name a TOML file, or use --model and --backend")
    content = read_toml(path)
    if "folder" in content:
        raise UsageError(f"{path}: there is no key `folder`; relative paths start at the suite file's folder")
    return {**content, "name": content.get("name", path.stem), "folder": path.absolute().parent}


def modes_of(one: SuiteBackend, known: Backend, device: Device) -> tuple[str, ...]:
    """The modes of a backend to measure on a device."""
    possible = known.modes_on(device)
    return possible if one.modes == ALL_MODES else one.modes or possible[:1]


def variant_of(one: SuiteBackend) -> str:
    """The suite's settings of a backend as text: they distinguish several entries of one backend."""
    settings = {} if one.threads is None else {"threads": str(one.threads)}
    return " ".join(f"{name}={value}" for name, value in {**settings, **dict(sorted(one.extra.items()))}.items())


def possible_devices(suite: Suite, one: SuiteBackend) -> tuple[Device, ...]:
    """Devices that a backend may run on, judged by the suite alone: one, or the CPU, then the GPU."""
    asked = one.device or suite.device
    return ("cpu", "cuda") if asked == "auto" else (asked,)


def model_name(model: SuiteModel) -> str:
    """Its name in tables and messages, also for an invalid model."""
    return model.name or model.source or next(iter(model.sources.values()), "a model without a source")


def model_text(suite: Suite, text: str) -> str:
    """A model's source; a relative path that exists in the suite's folder is prefixed with it."""
    path = suite.folder / text
    if path.exists():
        return str(path.absolute())
    file, colon, function = text.rpartition(":")
    if colon and file.endswith(".py") and (suite.folder / file).is_file():
        return f"{(suite.folder / file).absolute()}:{function}"
    return text


def accuracy_settings(suite: Suite) -> AccuracySettings:
    """Settings of `[accuracy]`, which must be given, with relative paths prefixed with the suite's folder."""
    assert suite.accuracy is not None
    given = suite.accuracy
    found = AccuracySettings.model_validate(given.model_dump(exclude={"baseline", "batch_size"}))
    paths = {
        name: (suite.folder / path).absolute()
        for name in ("inputs", "labels", "class_names", "truth")
        if (path := getattr(given, name)) is not None
    }
    function = given.preprocess.function
    prepare = found.preprocess.model_copy(
        update={"function": None if function is None else model_text(suite, function)}
    )
    metrics = tuple(model_text(suite, text) for text in given.metrics)
    return found.model_copy(update={**paths, "preprocess": prepare, "metrics": metrics})


def source_of(suite: Suite, model: SuiteModel, backend_name: str) -> ModelSource | None:
    """The model for a backend; None where the suite names none for it. Raises `UsageError`."""
    text = model.sources.get(backend_name, model.source)
    return None if text is None else model_source(model_text(suite, text), model.name)


def possible_cells(suite: Suite) -> list[BenchCase]:
    """A case of each cell that the suite may have on any machine; backends that do not exist are left out."""
    cells = []
    for one in suite.backend:
        with suppress(UsageError):
            known = backend(one.name)
            modes = dict.fromkeys(
                mode for device in possible_devices(suite, one) for mode in modes_of(one, known, device)
            )
            for mode, precision in product(modes, one.precisions or suite.precisions):
                how = {"backend": one.name, "mode": mode, "precision": precision, "variant": variant_of(one)}
                cells.append(NO_CASE.model_copy(update=how))
    return cells
