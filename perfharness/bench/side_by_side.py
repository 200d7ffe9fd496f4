"""Machines, or GPUs of one suite, side by side: one row per case, each machine against its own baseline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfharness.analysis.suites.bench_figures import baseline_of, speedup
from perfharness.analysis.suites.bench_names import device_text
from perfharness.model.bench import CaseResult
from perfharness.model.bench_suite import BenchMergedResult, BenchSuiteResult, MergedCell, MergedRow, MergedRun
from perfharness.runs.comparison.suites import read_suite, suite_file
from perfharness.runs.report.model import MergedReport, SuiteReport

MACHINE = ("perfharness", "python", "driver")


def suite_report(path: Path) -> SuiteReport | None:
    """A suite for a report; None if the path holds none. Raises `ResultError` if it cannot be read."""
    if suite_file(path) is None:
        return None
    real = Path(os.path.realpath(path))  # `resolve` raises for circular links
    return SuiteReport(name=real.name if path.is_dir() else real.parent.name, suite=read_suite(path))


def side_by_side(suites: Mapping[Path, SuiteReport]) -> list[MergedReport]:
    """The same cases of all suites, and of each GPU, in one row; empty for one suite on one device."""
    whole = [(str(path), found.suite) for path, found in suites.items() if not found.suite.searches]
    merged = merge_suites(whole)
    return [MergedReport(merged=merged)] if len(merged.runs) > 1 else []


def merge_suites(suites: Sequence[tuple[str, BenchSuiteResult]]) -> BenchMergedResult:
    """One row per case of any run: cells in order of first occurrence, batch sizes ascending.

    A suite on several GPUs counts as one run per GPU.
    """
    parts = [(path, part) for path, suite in suites for part in _by_gpu(suite)]
    named = dict(zip(_names([part for _, part in parts]), (part for _, part in parts), strict=True))
    runs = [
        MergedRun(name=name, path=path, **suite.model_dump(include={"created", "machine", "baseline", "complete"}))
        for (name, suite), (path, _) in zip(named.items(), parts, strict=True)
    ]
    tables = {name: {_key(case): case for case in suite.cases} for name, suite in named.items()}
    known = {key: case for table in tables.values() for key, case in table.items()}
    cells = list(dict.fromkeys(cell for cell, _ in known))
    rows = []
    for key in sorted(known, key=lambda key: (cells.index(key[0]), key[1])):
        results = [_merged(name, suite, tables[name].get(key)) for name, suite in named.items()]
        fields = known[key].case.model_dump(exclude={"case_id", "gpu", "gpu_index"})
        rows.append(MergedRow(**fields, cells=results))
    return BenchMergedResult(runs=runs, rows=rows, differences=list(_differences(named)))


def _by_gpu(suite: BenchSuiteResult) -> list[BenchSuiteResult]:
    """The suite, or its cases by GPU if it ran on several."""
    gpus = dict.fromkeys(case.case.gpu for case in suite.cases)
    if len(set(gpus) - {None}) < 2:
        return [suite]
    parts = []
    for gpu in gpus:
        machine = suite.machine.model_copy(update={"gpus": [gpu] if gpu else []})
        cases = [case for case in suite.cases if case.case.gpu == gpu]
        parts.append(suite.model_copy(update={"machine": machine, "cases": cases}))
    return parts


def _names(suites: Sequence[BenchSuiteResult]) -> list[str]:
    """Names of the machines, or of the GPUs of one machine; both, with a number, if several runs have the same name."""
    hosts = [suite.machine.hostname for suite in suites]
    devices = [device_text(suite.machine) for suite in suites]
    names = hosts
    if len(set(hosts)) < len(suites) and len(set(devices)) > 1:
        both = [f"{host}, {device}" for host, device in zip(hosts, devices, strict=True)]
        names = devices if len(set(hosts)) == 1 else both
    return [
        name if names.count(name) == 1 else f"{name} #{names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    ]


def _key(result: CaseResult) -> tuple[tuple[str | None, ...], int]:
    case = result.case
    return (case.model, case.backend, case.mode, case.precision, case.device, case.variant), case.batch_size


def _merged(name: str, suite: BenchSuiteResult, result: CaseResult | None) -> MergedCell:
    if result is None:
        return MergedCell(run=name, result=None, reason="not in this run")
    base = baseline_of(result, suite.cases, suite.baseline)
    reason = None if result.status == "ok" else f"{result.status}: {result.reason or ''}".rstrip(": ")
    return MergedCell(run=name, result=result, speedup=speedup(result, base), reason=reason)


def _differences(suites: Mapping[str, BenchSuiteResult]) -> Iterator[str]:
    """Facts that differ between the runs and make rows incomparable, one sentence each."""
    facts = {name: _facts(suite) for name, suite in suites.items()}
    for what in dict.fromkeys(key for one in facts.values() for key in one):
        values = {name: one[what] for name, one in facts.items() if what in one}
        if len(set(map(str, values.values()))) > 1:
            yield f"{what} differs: " + ", ".join(f"{name} {value}" for name, value in values.items())
    yield from (f"the run on {name} is not complete" for name, suite in suites.items() if not suite.complete)


def _facts(suite: BenchSuiteResult) -> dict[str, object]:
    facts: dict[str, object] = {"baseline": suite.baseline}
    facts |= {name: getattr(suite.machine, name) for name in MACHINE}
    for key, value in suite.settings.items():
        if key.startswith(("latency.", "measure.", "telemetry.")) and key != "telemetry.gpu_uuids":
            facts[f"setting {key}"] = value
    for one in suite.cases:
        facts |= {f"version of {library} ({one.case.backend})": text for library, text in one.versions.items()}
        if one.status == "ok":
            size = one.memory.model_file_bytes
            facts[f"file of {one.case.model} for {one.case.backend}"] = f"{size} bytes"
    return facts
