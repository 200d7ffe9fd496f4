"""Results of several machines side by side: the same cells matched, each machine against its own baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfharness.analysis.bench_figures import baseline_of, cell_of, speedup
from perfharness.errors import ResultError
from perfharness.files import write_text
from perfharness.model.bench import CaseResult, Precision
from perfharness.model.bench_suite import (
    BENCH_MERGED_NAME,
    BenchMergedResult,
    BenchSuiteResult,
    MergedCell,
    MergedRow,
    MergedRun,
)

Key = tuple[str, str, str, Precision, int]


def merge_suites(suites: Sequence[tuple[str, BenchSuiteResult]]) -> BenchMergedResult:
    """One row for each cell of any run, in the order in which they first come.

    The device is not part of a cell: the CPU of one machine is compared with the GPU of another, and named.

    Args:
        suites: where each was read, and what it holds.
    """
    names = _names([suite for _, suite in suites])
    runs = [
        MergedRun(
            name=name,
            path=path,
            created=suite.created,
            machine=suite.machine,
            baseline=suite.baseline,
            complete=suite.complete,
        )
        for name, (path, suite) in zip(names, suites, strict=True)
    ]
    tables = [_by_key(suite) for _, suite in suites]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows = []
    for key in keys:
        found = [table.get(key) for table in tables]
        cells = [_cell(name, suite, result) for name, (_, suite), result in zip(names, suites, found, strict=True)]
        model, backend, mode, precision, batch_size = key
        rows.append(
            MergedRow(model=model, backend=backend, mode=mode, precision=precision, batch_size=batch_size, cells=cells)
        )
    return BenchMergedResult(runs=runs, rows=rows, differences=list(_differences(names, suites, tables)))


def write_merged(folder: Path, merged: BenchMergedResult) -> Path:
    """Write `bench_merged.json`. Raises `ResultError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"{folder} cannot be made: {error.strerror}; name another with -o") from error
    path = folder / BENCH_MERGED_NAME
    text = merged.model_dump_json(indent=2) + "\n"

    def write(file: object) -> None:
        file.write(text)  # type: ignore[attr-defined]

    write_text(path, write)
    return path


def _names(suites: Sequence[BenchSuiteResult]) -> list[str]:
    """Of the machines; with a number where one comes twice."""
    hosts = [suite.machine.hostname for suite in suites]
    count = Counter(hosts)
    seen: Counter[str] = Counter()
    names = []
    for host in hosts:
        seen[host] += 1
        names.append(host if count[host] == 1 else f"{host} #{seen[host]}")
    return names


def _by_key(suite: BenchSuiteResult) -> dict[Key, CaseResult]:
    """Of the cases of one cell, on several devices, the first one on the GPU stands for it."""
    found: dict[Key, CaseResult] = {}
    for result in sorted(suite.cases, key=lambda result: result.case.device != "cuda"):
        found.setdefault(_key(result), result)
    return {key: found[key] for key in dict.fromkeys(map(_key, suite.cases))}


def _key(result: CaseResult) -> Key:
    case = result.case
    return case.model, case.backend, case.mode, case.precision, case.batch_size


def _cell(name: str, suite: BenchSuiteResult, result: CaseResult | None) -> MergedCell:
    if result is None:
        return MergedCell(run=name, result=None, speedup=None, reason="not in this run")
    base = baseline_of(result, suite.cases, suite.baseline)
    reason = None if result.status == "ok" else f"{result.status}: {result.reason or ''}".rstrip(": ")
    return MergedCell(run=name, result=result, speedup=speedup(result, base), reason=reason)


def _differences(
    names: Sequence[str], suites: Sequence[tuple[str, BenchSuiteResult]], tables: Sequence[dict[Key, CaseResult]]
) -> Iterator[str]:
    """What keeps the rows from being comparable, one sentence each."""
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
    for name, suite, table in zip(names, whole, tables, strict=True):
        yield from _several_settings(name, suite, table)
        if not suite.complete:
            yield f"the run on {name} is not complete"


def _several_settings(name: str, suite: BenchSuiteResult, table: dict[Key, CaseResult]) -> Iterator[str]:
    """Cells of which a row shows one case only."""
    count = Counter((_key(result), result.case.device) for result in suite.cases)
    for key, result in table.items():
        if count[key, result.case.device] > 1:
            cell = f"{result.case.model} {cell_of(result.case)} at batch {result.case.batch_size}"
            yield f"{name} measured {cell} with several settings; the first is shown"


def _difference(what: str, names: Sequence[str], values: Sequence[object]) -> Iterator[str]:
    if len(set(map(str, values))) > 1:
        yield f"{what} differs: " + ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def _version_differences(names: Sequence[str], tables: Sequence[dict[Key, CaseResult]]) -> Iterator[str]:
    """Libraries of a backend, where several machines have measured it."""
    backends = list(dict.fromkeys(key[1] for table in tables for key in table))
    for backend in backends:
        versions = [_versions(backend, table) for table in tables]
        known = [(name, one) for name, one in zip(names, versions, strict=True) if one]
        for library in sorted({library for _, one in known for library in one}):
            values = [one.get(library) for _, one in known]
            yield from _difference(f"version of {library} ({backend})", [name for name, _ in known], values)


def _versions(backend: str, table: dict[Key, CaseResult]) -> dict[str, str]:
    return next((result.versions for key, result in table.items() if key[1] == backend and result.versions), {})


def _model_differences(names: Sequence[str], tables: Sequence[dict[Key, CaseResult]]) -> Iterator[str]:
    """A model of one name that is not one model: other sizes on disk, other inputs or outputs."""
    models = list(dict.fromkeys((key[0], key[1]) for table in tables for key in table))
    for model, backend in models:
        known = []
        for name, table in zip(names, tables, strict=True):
            for key, result in table.items():
                if (key[0], key[1]) == (model, backend) and result.status == "ok":
                    known.append((name, result))
                    break
        hosts = [name for name, _ in known]
        sizes = [result.memory.model_file_bytes for _, result in known]
        yield from _difference(f"size of the file of {model} for {backend}, bytes,", hosts, sizes)
        described = [", ".join(f"{one.name} {one.dtype} {one.shape}" for one in result.inputs) for _, result in known]
        yield from _difference(f"inputs of {model} for {backend}", hosts, described)
