"""Read a suite of `perfharness bench` as a launch of a comparison; each case is a stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from perfharness.errors import ResultError
from perfharness.files import read_model
from perfharness.model.bench import BenchCase, CaseResult
from perfharness.model.bench_suite import BENCH_VERSION, BenchSuiteResult
from perfharness.model.manifest import BENCH_NAME, MANIFEST_NAME
from perfharness.model.result import Path as StagePath
from perfharness.runs.comparison.launches import LaunchFigures
from perfharness.runs.figures import ACCURACY, Figure, Value

DECIDING_SETTINGS = ("latency.", "measure.")
"""Prefixes of settings that change the meaning of a latency."""


def suite_file(path: Path) -> Path | None:
    """Path of `bench.json` if the path is such a file or a folder with one, or None."""
    if path.name == BENCH_NAME and path.is_file():
        return path
    if (path / BENCH_NAME).is_file() and not (path / MANIFEST_NAME).exists():
        return path / BENCH_NAME
    return None


def read_suite(path: Path) -> BenchSuiteResult:
    """Read a suite from its folder or file. Raises `ResultError`."""
    file = path / BENCH_NAME if path.is_dir() else path
    suite = read_model(file, BenchSuiteResult)
    if suite is None:
        raise ResultError(f"{file} not found; name a folder that perfharness bench -o wrote")
    if suite.schema_version > BENCH_VERSION:
        raise ResultError(f"{file} has version {suite.schema_version}, newer than {BENCH_VERSION}; update perfharness")
    return suite


def figures_of_suite(suite: BenchSuiteResult, folder: Path) -> LaunchFigures:
    """Make a launch of a suite."""
    with_gpu = len({result.case.gpu for result in suite.cases if result.case.gpu}) > 1
    stages = {result.case: _stage_of(result.case, with_gpu=with_gpu) for result in suite.cases}
    figures = {figure: one for result in suite.cases for figure, one in _figures(stages[result.case], result)}
    starts = [case.started_unix_ns for case in suite.cases if case.started_unix_ns is not None]
    launch = LaunchFigures(
        folder=folder,
        run_id=f"{suite.machine.machine_id or suite.machine.hostname} {suite.created} {suite.seed}",
        created=suite.created,
        figures=figures,
        environment=_environment(suite),
        start_unix_ns=min(starts, default=None),
        errors=() if suite.complete else ("suite-incomplete",),
        batches=dict.fromkeys(stages.values()),
    )
    return launch if launch.has_numbers else replace(launch, problem="none of its cases was measured")


def _stage_of(case: BenchCase, *, with_gpu: bool) -> StagePath:
    """Stage of a case: model, backend, mode, precision, device, settings, batch size.

    The GPU is included only if the suite has several, so that a case is the same stage on another machine.
    """
    where = (case.device, case.gpu if with_gpu else None, case.variant)
    parts = (case.model, case.backend, case.mode, case.precision, *where)
    return (*(part for part in parts if part), f"batch {case.batch_size}")


def _figures(stage: StagePath, result: CaseResult) -> Iterator[tuple[Figure, Value]]:
    latency, executed, energy = result.latency, result.execute_latency, result.energy_per_item_j
    if result.status != "ok":
        yield Figure(stage, "mean"), Value(None, f"{result.status}: {result.reason or 'no reason recorded'}")
        return
    if latency is None:
        yield from ((Figure(stage, name), Value(None)) for name in ("mean", "p50", "p95"))
    else:
        mean = latency.mean
        yield Figure(stage, "mean"), Value(mean.value, low=mean.low, high=mean.high, count=latency.iterations)
        yield Figure(stage, "p50"), Value(latency.p50)
        yield Figure(stage, "p95"), Value(None if latency.p95 is None else latency.p95.value)
    if executed is not None:
        yield Figure(stage, "gpu_time"), Value(executed.mean.value)
    if energy is not None:
        yield Figure(stage, "energy_per_item"), Value(energy.value)
    peaks = {"gpu_memory": result.memory.device_peak_bytes, "host_memory": result.memory.host_peak_bytes}
    for name, peak in peaks.items():
        if peak is not None:
            yield Figure(stage, name), Value(float(peak))
    if (accuracy := result.accuracy) is not None:
        for name, value in accuracy.metrics.items():
            yield Figure((*stage, ACCURACY), name), Value(value, accuracy.reasons.get(name))


def _environment(suite: BenchSuiteResult) -> dict[str, str | None]:
    machine = suite.machine
    settings = [
        f"{name} {value}" for name, value in sorted(suite.settings.items()) if name.startswith(DECIDING_SETTINGS)
    ]
    found: dict[str, str | None] = {
        "gpu": ", ".join(machine.gpus) or "none",
        "host": machine.hostname,
        **{name: getattr(machine, name) for name in ("cpu", "driver", "python", "perfharness")},
        "reading": ", ".join(settings) or "as usual",
    }
    for result in suite.cases:
        if result.status == "ok":
            name = f"{result.case.model} for {result.case.backend}"
            size = result.memory.model_file_bytes
            inputs = ", ".join(f"{one.name} {one.dtype} {one.shape}" for one in result.inputs)
            found.setdefault(f"model {name}", None if size is None else f"{size} bytes")
            found.setdefault(f"inputs of {name}", inputs or None)
    packages = {library: version for case in suite.cases for library, version in case.versions.items()}
    found |= {f"package {name}": version for name, version in sorted(packages.items())}
    samples = [f"{one.samples} samples against {one.against}" for case in suite.cases if (one := case.accuracy)]
    return found | ({"accuracy": "; ".join(dict.fromkeys(samples))} if samples else {})
