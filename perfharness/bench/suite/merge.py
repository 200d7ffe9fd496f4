"""Merge results of several machines: cells are matched, each machine is compared with its own baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from perfharness.analysis.bench_figures import baseline_of, speedup
from perfharness.analysis.bench_names import short_backend
from perfharness.bench.suite.store import SUITE, write_json
from perfharness.errors import ResultError, UsageError
from perfharness.model.bench import BenchCase, CaseResult, Precision
from perfharness.model.bench_suite import (
    BENCH_MERGED_NAME,
    BenchMergedResult,
    BenchSuiteResult,
    MergedCell,
    MergedRow,
    MergedRun,
)

Cell = tuple[str, str, str, Precision, str, str]
"""Model, backend, mode, precision, settings, and the device where a run has the cell on several."""

Key = tuple[Cell, int]
"""With the batch size."""


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
        MergedRun(
            name=name,
            path=path,
            created=suite.created,
            machine=suite.machine,
            machine_number=number,
            baseline=suite.baseline,
            complete=suite.complete,
        )
        for name, number, (path, suite) in zip(names, numbers, suites, strict=True)
    ]
    several = _on_several_devices(whole)
    tables = [{_key(result, several): result for result in suite.cases} for suite in whole]
    cells = list(dict.fromkeys(cell for table in tables for cell, _ in table))
    rows = []
    for key in sorted({key for table in tables for key in table}, key=lambda key: (cells.index(key[0]), key[1])):
        (model, backend, mode, precision, variant, device), batch_size = key
        found = [_cell(name, suite, table.get(key)) for name, suite, table in zip(names, whole, tables, strict=True)]
        rows.append(
            MergedRow(
                model=model,
                backend=backend,
                mode=mode,
                precision=precision,
                variant=variant,
                device=device,
                batch_size=batch_size,
                cells=found,
            )
        )
    return BenchMergedResult(runs=runs, rows=rows, differences=list(_differences(names, suites, tables)))


def merge_results(folders: Sequence[Path], output_dir: Path) -> BenchMergedResult:
    """Read results of several runs, merge them, write `bench_merged.json`.

    Raises `UsageError` where there are fewer than two, `ResultError` where files cannot be read or written.
    """
    if len(folders) < 2:
        raise UsageError("bench merge needs results of two runs at least")
    merged = merge_suites([(str(folder), SUITE.read(folder)) for folder in folders])
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"{output_dir} cannot be made: {error.strerror}; name another with -o") from error
    write_json(output_dir / BENCH_MERGED_NAME, merged)
    return merged


def _names(suites: Sequence[tuple[str, BenchSuiteResult]]) -> list[str]:
    """Names of the runs: the machine's, with the folder's where that is not unique, with a number where neither is."""
    hosts = [suite.machine.hostname for _, suite in suites]
    paths = [Path(path).resolve() for path, _ in suites]
    folders = [path.parent.name if path.is_file() else path.name for path in paths]
    names = [
        host if hosts.count(host) == 1 else f"{host} {folder}" for host, folder in zip(hosts, folders, strict=True)
    ]
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if names.count(name) == 1 else f"{name} #{seen[name]}")
    return numbered


def _machines(suites: Sequence[BenchSuiteResult]) -> list[int]:
    """Number of each run's machine, from 1; equal id, name and processor mean the same machine."""
    known: list[tuple[str | None, ...]] = []
    numbers = []
    for machine in (suite.machine for suite in suites):
        identity = (machine.machine_id, machine.hostname, machine.cpu)
        if identity not in known:
            known.append(identity)
        numbers.append(known.index(identity) + 1)
    return numbers


def _plain(result: CaseResult) -> tuple[str, str, str, Precision, str]:
    case = result.case
    return case.model, case.backend, case.mode, case.precision, case.variant


def _on_several_devices(suites: Sequence[BenchSuiteResult]) -> set[tuple[str, str, str, Precision, str]]:
    found = set()
    for suite in suites:
        devices: dict[tuple[str, str, str, Precision, str], set[str]] = {}
        for result in suite.cases:
            devices.setdefault(_plain(result), set()).add(result.case.device)
        found |= {plain for plain, those in devices.items() if len(those) > 1}
    return found


def _key(result: CaseResult, several: Collection[tuple[str, str, str, Precision, str]]) -> Key:
    plain = _plain(result)
    return (*plain, result.case.device if plain in several else ""), result.case.batch_size


def _cell(name: str, suite: BenchSuiteResult, result: CaseResult | None) -> MergedCell:
    if result is None:
        return MergedCell(run=name, result=None, speedup=None, reason="not in this run")
    base = baseline_of(result, suite.cases, suite.baseline)
    reason = None if result.status == "ok" else f"{result.status}: {result.reason or ''}".rstrip(": ")
    return MergedCell(run=name, result=result, speedup=speedup(result, base), reason=reason)


def _differences(
    names: Sequence[str], suites: Sequence[tuple[str, BenchSuiteResult]], tables: Sequence[dict[Key, CaseResult]]
) -> Iterator[str]:
    """Why rows are not comparable, one sentence each."""
    whole = [suite for _, suite in suites]
    for what, values in (
        ("baseline", [suite.baseline for suite in whole]),
        ("perfharness", [suite.machine.perfharness for suite in whole]),
        ("Python", [suite.machine.python for suite in whole]),
        ("driver", [suite.machine.driver for suite in whole]),
    ):
        yield from _difference(what, names, values)
    for key in sorted({key for suite in whole for key in suite.settings}):
        if key.startswith(("latency.", "measure.", "telemetry.")) and key != "telemetry.gpu_uuids":
            yield from _difference(f"setting {key}", names, [suite.settings.get(key) for suite in whole])
    yield from _version_differences(names, tables)
    yield from _model_differences(names, tables)
    for name, suite in zip(names, whole, strict=True):
        if not suite.complete:
            yield f"the run on {name} is not complete"


def _difference(what: str, names: Sequence[str], values: Sequence[object]) -> Iterator[str]:
    if len(set(map(str, values))) > 1:
        yield f"{what} differs: " + ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def _version_differences(names: Sequence[str], tables: Sequence[dict[Key, CaseResult]]) -> Iterator[str]:
    """Different library versions of a backend that several machines measured."""
    backends = list(dict.fromkeys(cell[1] for table in tables for cell, _ in table))
    for backend in backends:
        versions = [_versions(backend, table) for table in tables]
        known = [(name, one) for name, one in zip(names, versions, strict=True) if one]
        for library in sorted({library for _, one in known for library in one}):
            values = [one.get(library) for _, one in known]
            yield from _difference(f"version of {library} ({backend})", [name for name, _ in known], values)


def _versions(backend: str, table: dict[Key, CaseResult]) -> dict[str, str]:
    return next((result.versions for (cell, _), result in table.items() if cell[1] == backend and result.versions), {})


def _model_differences(names: Sequence[str], tables: Sequence[dict[Key, CaseResult]]) -> Iterator[str]:
    """Models of one name that differ: in size on disk, inputs or outputs."""
    models = list(dict.fromkeys(cell[:2] for table in tables for cell, _ in table))
    for model, backend in models:
        known = []
        for name, table in zip(names, tables, strict=True):
            for (cell, _), result in table.items():
                if cell[:2] == (model, backend) and result.status == "ok":
                    known.append((name, result))
                    break
        hosts = [name for name, _ in known]
        sizes = [result.memory.model_file_bytes for _, result in known]
        yield from _difference(f"size of the file of {model} for {backend}, bytes,", hosts, sizes)
        described = [", ".join(f"{one.name} {one.dtype} {one.shape}" for one in result.inputs) for _, result in known]
        yield from _difference(f"inputs of {model} for {backend}", hosts, described)


def cases_by_machine(merged: BenchMergedResult, model: str) -> Iterator[CaseResult]:
    """Cases with the run's name before the backend's; batch sizes that only other runs have are `not-run`."""
    cells = [(row, cell) for row in merged.rows if row.model == model for cell in row.cells]
    devices = {(cell.run, *_cell_of(row)): cell.result.case.device for row, cell in cells if cell.result is not None}
    for row, cell in cells:
        if (device := devices.get((cell.run, *_cell_of(row)))) is None:
            continue
        case = BenchCase(
            case_id="", model=model, backend=f"{cell.run}, {short_backend(row.backend)}", mode=row.mode,
            precision=row.precision, device=cell.result.case.device if cell.result else device,
            batch_size=row.batch_size, variant=row.variant,
        )  # fmt: skip
        result = cell.result or CaseResult(case=case, status="not-run", reason=cell.reason)
        yield result.model_copy(update={"case": case})


def _cell_of(row: MergedRow) -> tuple[str, ...]:
    return row.backend, row.mode, row.precision, row.variant, row.device
