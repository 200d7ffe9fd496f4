"""Suites of several machines side by side: cells are matched, each is compared with the baseline of its own suite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfharness.analysis.suites.bench_figures import baseline_of, speedup
from perfharness.model.bench import CaseResult, Precision
from perfharness.model.bench_suite import BenchMergedResult, BenchSuiteResult, MergedCell, MergedRow, MergedRun

Cell = tuple[str, str, str, Precision, str]
"""Model, backend, mode, precision, settings."""

Key = tuple[Cell, str, int]
"""With the device where a run has the cell on several, else an empty text, and the batch size."""

Table = dict[Key, CaseResult]


def merge_suites(suites: Sequence[tuple[str, BenchSuiteResult]]) -> BenchMergedResult:
    """One row per cell and batch size of any run: cells in order of first occurrence, sizes ascending.

    The device is part of a cell only where a run has the cell on several; else the CPU of one machine is compared with
    the GPU of another, with a remark.

    Args:
        suites: path and content of each.
    """
    whole = [suite for _, suite in suites]
    names, numbers = _names(suites), _machines(whole)
    runs = [
        MergedRun(path=path, name=name, machine_number=number,
                  **{key: getattr(suite, key) for key in ("created", "machine", "baseline", "complete")})
        for name, number, (path, suite) in zip(names, numbers, suites, strict=True)
    ]  # fmt: skip
    on_device = Counter(
        cell for suite in whole for cell, _ in {(_cell(case), case.case.device) for case in suite.cases}
    )
    in_runs = Counter(cell for suite in whole for cell in {_cell(case) for case in suite.cases})
    tables: list[Table] = [
        {
            (cell, case.case.device if on_device[cell] > in_runs[cell] else "", case.case.batch_size): case
            for case in suite.cases
            for cell in [_cell(case)]
        }
        for suite in whole
    ]
    order = list(dict.fromkeys(key[:2] for table in tables for key in table))
    rows = []
    for key in sorted({key for table in tables for key in table}, key=lambda key: (order.index(key[:2]), key[2])):
        (model, backend, mode, precision, variant), device, batch_size = key
        cells = [_merged(name, suite, table.get(key)) for name, suite, table in zip(names, whole, tables, strict=True)]
        rows.append(
            MergedRow(
                model=model,
                backend=backend,
                mode=mode,
                precision=precision,
                variant=variant,
                device=device,
                batch_size=batch_size,
                cells=cells,
            )
        )
    differences = list(_differences(dict(zip(names, whole, strict=True)), dict(zip(names, tables, strict=True))))
    return BenchMergedResult(runs=runs, rows=rows, differences=differences)


def _names(suites: Sequence[tuple[str, BenchSuiteResult]]) -> list[str]:
    """Names of the runs: the machine's, with the folder's where that is not unique, with a number where neither is."""
    hosts = Counter(suite.machine.hostname for _, suite in suites)
    paths = [Path(path).resolve() for path, _ in suites]
    folders = [path.parent.name if path.is_file() else path.name for path in paths]
    names = [
        suite.machine.hostname if hosts[suite.machine.hostname] == 1 else f"{suite.machine.hostname} {folder}"
        for (_, suite), folder in zip(suites, folders, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name} #{names[: number + 1].count(name)}"
        for number, name in enumerate(names)
    ]


def _machines(suites: Sequence[BenchSuiteResult]) -> list[int]:
    """Number of each run's machine, from 1; equal id, name and processor mean the same machine."""
    machines = [(one.machine.machine_id, one.machine.hostname, one.machine.cpu) for one in suites]
    known = list(dict.fromkeys(machines))
    return [known.index(machine) + 1 for machine in machines]


def _cell(result: CaseResult) -> Cell:
    case = result.case
    return case.model, case.backend, case.mode, case.precision, case.variant


def _merged(name: str, suite: BenchSuiteResult, result: CaseResult | None) -> MergedCell:
    if result is None:
        return MergedCell(run=name, result=None, speedup=None, reason="not in this run")
    base = baseline_of(result, suite.cases, suite.baseline)
    reason = None if result.status == "ok" else f"{result.status}: {result.reason or ''}".rstrip(": ")
    return MergedCell(run=name, result=result, speedup=speedup(result, base), reason=reason)


def _differences(suites: Mapping[str, BenchSuiteResult], tables: Mapping[str, Table]) -> Iterator[str]:
    """Why rows are not comparable, one sentence each; by the run's name."""
    yield from _difference("baseline", {name: suite.baseline for name, suite in suites.items()})
    for what in ("perfharness", "Python", "driver"):
        yield from _difference(what, {name: getattr(one.machine, what.lower()) for name, one in suites.items()})
    for key in sorted({key for suite in suites.values() for key in suite.settings}):
        if key.startswith(("latency.", "measure.", "telemetry.")) and key != "telemetry.gpu_uuids":
            yield from _difference(f"setting {key}", {name: suite.settings.get(key) for name, suite in suites.items()})
    for backend in dict.fromkeys(cell[1] for table in tables.values() for cell, *_ in table):
        versions = {name: _versions(backend, table) for name, table in tables.items()}
        for library in sorted({library for one in versions.values() for library in one}):
            found = {name: one.get(library) for name, one in versions.items() if one}
            yield from _difference(f"version of {library} ({backend})", found)
    for own in dict.fromkeys(cell[:2] for table in tables.values() for cell, *_ in table):
        measured = {name: [one for key, one in table.items() if key[0][:2] == own and one.status == "ok"][:1]
                    for name, table in tables.items()}  # fmt: skip
        sizes = {name: one.memory.model_file_bytes for name, found in measured.items() for one in found}
        yield from _difference(f"size of the file of {own[0]} for {own[1]}, bytes,", sizes)
        inputs = {name: ", ".join(f"{each.name} {each.dtype} {each.shape}" for each in one.inputs)
                  for name, found in measured.items() for one in found}  # fmt: skip
        yield from _difference(f"inputs of {own[0]} for {own[1]}", inputs)
    for name, suite in suites.items():
        if not suite.complete:
            yield f"the run on {name} is not complete"


def _difference(what: str, values: Mapping[str, object]) -> Iterator[str]:
    if len(set(map(str, values.values()))) > 1:
        yield f"{what} differs: " + ", ".join(f"{name} {value}" for name, value in values.items())


def _versions(backend: str, table: Table) -> dict[str, str]:
    return next((one.versions for (cell, *_), one in table.items() if cell[1] == backend and one.versions), {})
