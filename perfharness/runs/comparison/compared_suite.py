"""Suites of `perfharness bench` as launches of a comparison: each case is a stage, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from perfharness.errors import ResultError
from perfharness.files import read_regular
from perfharness.model.bench import BenchCase, CaseResult, MachineRecord
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.model.manifest import BENCH_NAME, MANIFEST_NAME
from perfharness.model.result import Path as StagePath
from perfharness.runs.comparison.compared_figure import ACCURACY, Figure
from perfharness.runs.comparison.compared_launch import LaunchFigures

DECIDING_SETTINGS = ("latency.", "measure.")
"""Beginnings of the names of settings that change what a latency is."""


def suite_file(path: Path) -> Path | None:
    """The `bench.json` that a path names, or a folder holds; None where it is none."""
    if path.name == BENCH_NAME and path.is_file():
        return path
    if (path / BENCH_NAME).is_file() and not (path / MANIFEST_NAME).exists():
        return path / BENCH_NAME
    return None


def read_suite(path: Path) -> LaunchFigures:
    """A suite as a launch. Raises `ResultError` where the file cannot be read."""
    return figures_of_suite(read_suite_file(path), path.parent)


def read_suite_file(path: Path) -> BenchSuiteResult:
    """Read `bench.json`. Raises `ResultError` where it cannot be read."""
    try:
        return BenchSuiteResult.model_validate_json(read_regular(path, follow=False))
    except (OSError, ValidationError) as error:
        raise ResultError(f"{path} cannot be read ({str(error).splitlines()[0]}); it is damaged") from error


def figures_of_suite(suite: BenchSuiteResult, folder: Path) -> LaunchFigures:
    """A suite as a launch."""
    figures: dict[Figure, float | None] = {}
    reasons: dict[Figure, str] = {}
    for result in suite.cases:
        stage = stage_of(result.case)
        if result.status != "ok":
            figure = Figure(stage, "latency_mean")
            figures[figure] = None
            reasons[figure] = f"{result.status}: {result.reason or 'no reason is recorded'}"
            continue
        figures |= {Figure(stage, name): value for name, value in _figures(result)}
        for name, value in ({} if result.accuracy is None else result.accuracy.metrics).items():
            figure = Figure((*stage, ACCURACY, name), ACCURACY)
            figures[figure] = value
            if value is None and result.accuracy is not None and name in result.accuracy.reasons:
                reasons[figure] = result.accuracy.reasons[name]
    starts = [case.started_unix_ns for case in suite.cases if case.started_unix_ns is not None]
    return LaunchFigures(
        folder=folder,
        run_id=f"{suite.machine.machine_id or suite.machine.hostname} {suite.created} {suite.seed}",
        created=suite.created,
        problem=None if any(value is not None for value in figures.values()) else "none of its cases was measured",
        figures=figures,
        reasons=reasons,
        environment={**_machine(suite.machine), **_settings(suite), **_models(suite), **_samples(suite)},
        start_unix_ns=min(starts, default=None),
        errors=() if suite.complete else ("suite-incomplete",),
    )


def stage_of(case: BenchCase) -> StagePath:
    """Model, backend, mode, precision, device, settings if there are any, batch size."""
    variant = (case.variant,) if case.variant else ()
    return (case.model, case.backend, case.mode, case.precision, case.device, *variant, f"batch {case.batch_size}")


def _figures(result: CaseResult) -> Iterator[tuple[str, float | None]]:
    latency = result.latency
    yield "latency_mean", None if latency is None else latency.mean.value
    yield "latency_p50", None if latency is None else latency.p50
    yield "latency_p95", None if latency is None or latency.p95 is None else latency.p95.value
    if result.execute_latency is not None:
        yield "gpu_time", result.execute_latency.mean.value
    if result.energy_per_item_j is not None:
        yield "energy_per_item", result.energy_per_item_j.value
    memory = result.memory
    for name, peak in (("gpu_memory", memory.device_peak_bytes), ("host_memory", memory.host_peak_bytes)):
        if peak is not None:
            yield name, float(peak)


def _machine(machine: MachineRecord) -> dict[str, str | None]:
    return {
        "gpu": ", ".join(machine.gpus) or "none",
        "cpu": machine.cpu,
        "driver": machine.driver,
        "host": machine.hostname,
        "python": machine.python,
        "perfharness": machine.perfharness,
    }


def _models(suite: BenchSuiteResult) -> dict[str, str | None]:
    """What was measured, by model and backend: the size of its file, and its inputs at the first size."""
    found: dict[str, str | None] = {}
    for result in suite.cases:
        if result.status == "ok":
            name = f"{result.case.model} for {result.case.backend}"
            size = result.memory.model_file_bytes
            found.setdefault(f"model {name}", None if size is None else f"{size} bytes")
            inputs = ", ".join(f"{one.name} {one.dtype} {one.shape}" for one in result.inputs)
            found.setdefault(f"inputs of {name}", inputs or None)
    return found


def _samples(suite: BenchSuiteResult) -> dict[str, str | None]:
    """What accuracies are of."""
    found = [f"{one.samples} samples against {one.against}" for case in suite.cases if (one := case.accuracy)]
    return {"accuracy": "; ".join(dict.fromkeys(found))} if found else {}


def _settings(suite: BenchSuiteResult) -> dict[str, str | None]:
    packages = {library: version for case in suite.cases for library, version in case.versions.items()}
    settings = {
        name: str(value) for name, value in sorted(suite.settings.items()) if name.startswith(DECIDING_SETTINGS)
    }
    return {
        "reading": ", ".join(f"{name} {value}" for name, value in settings.items()) or "as usual",
        **{f"package {name}": version for name, version in sorted(packages.items())},
    }
