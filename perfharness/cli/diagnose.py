"""`perfharness diagnose`: why each stage takes the time it takes, and what to try next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfharness.cli.help import GroupedCommand
from perfharness.cli.options import (
    EXIT_CHECK_FAILED,
    SOURCE,
    SOURCE_HELP,
    BatchPatternOption,
    DomainOption,
    NsysOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.output import Format, FormatOption, Output, QuietOption, VerboseOption
from perfharness.errors import TraceError, UsageError
from perfharness.model.findings import Finding, Severity

if TYPE_CHECKING:
    from perfharness.model.diagnosis import Diagnosis


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("diagnose", cls=GroupedCommand)(diagnose)


@dataclass
class _Run:
    """The diagnoses of one run, or of one trace, by process."""

    name: str
    processes: dict[str, Diagnosis] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def diagnose(
    run: Annotated[
        Path,
        typer.Argument(metavar=SOURCE, help=SOURCE_HELP),
    ],
    stage: Annotated[
        str | None, typer.Option(help="Only this stage, with every figure; a name, or a path as it is printed.")
    ] = None,
    warmup_batches: WarmupOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    nsys: NsysOption = None,
    output_format: FormatOption = Format.TEXT,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Why each stage takes the time it takes: verdict, reason, next step; and whether the warm-up is enough.

    The most expensive stages first, a sentence each; --verbose and --stage show what it rests on. Writes no files
    (`analyze` writes the same into benchmark.json). Exits with 3 where a trace is incomplete, or nothing was measured.
    """
    from perfharness.analysis.analysis import AnalysisOptions
    from perfharness.analysis.diagnosis import ALONE
    from perfharness.runs.inputs import locate_readable
    from perfharness.runs.run_folder import analyze_trace

    located = locate_readable(run, nsys)
    if located.trace is not None:
        options = AnalysisOptions(warmup_batches or 0, domain, batch_pattern)
        result, _ = analyze_trace(located.trace, options, others=ALONE)
        assert result.diagnosis is not None
        found = [_Run("", {str(run): result.diagnosis}, result.findings)]
    else:
        given = (warmup_batches, domain, batch_pattern)
        found = [
            _diagnose_run(folder, located.process, f"{folder.name}/" if located.is_series else "", *given)
            for folder in located.runs
        ]
    _check_stage(stage, [diagnosis for one in found for diagnosis in one.processes.values()])
    output = Output.of(output_format, quiet=quiet, verbose=verbose)
    if output.is_json:
        output.json({name: _json(diagnosis, stage) for one in found for name, diagnosis in one.processes.items()})
    else:
        for one in found:
            _print(one, stage, output)
    findings = [finding for one in found for finding in one.findings]
    shown = findings if verbose else [finding for finding in findings if finding.severity is Severity.ERROR]
    output.findings(shown)
    measured = any(diagnosis.stages for one in found for diagnosis in one.processes.values())
    raise typer.Exit(exit_code(findings) if measured else EXIT_CHECK_FAILED)


def _check_stage(name: str | None, diagnoses: list[Diagnosis]) -> None:
    from perfharness.render.terminal.diagnosis import matching_stages

    if name is None or any(matching_stages(diagnosis, name) for diagnosis in diagnoses):
        return
    there = sorted({one.path[-1] for diagnosis in diagnoses for one in diagnosis.stages})
    raise UsageError(f"There is no stage '{name}'; stages there are: {', '.join(there) or 'none'}.")


def _print(run: _Run, stage: str | None, output: Output) -> None:
    """One process with all its stages; several pooled, and each of them where more was asked for."""
    from perfharness.analysis.diagnosis import pool
    from perfharness.render.terminal.console import say, styled
    from perfharness.render.terminal.diagnosis import print_diagnosis, print_pooled

    several = len(run.processes) > 1
    if not several or stage is not None or output.verbose:
        for name, diagnosis in run.processes.items():
            say(output.results, styled(name, "bold"))
            print_diagnosis(output.results, diagnosis, stage, details=output.verbose)
    if several:
        if run.name:
            say(output.results, styled(run.name, "bold"))
        print_pooled(output.results, pool(run.processes), stage, sentences=stage is None)


def _diagnose_run(
    folder: Path,
    process: str | None,
    before: str,
    warmup_batches: int | None,
    domain: str | None,
    batch_pattern: str | None,
) -> _Run:
    """Every process of a run, or only the one named; `before` is put before their names."""
    from perfharness.analysis.analysis import AnalysisOptions
    from perfharness.analysis.stage_findings import without_consequences
    from perfharness.runs.gpu_sharing import GpuSharing
    from perfharness.runs.run_folder import analyze_trace, read_manifest

    manifest = read_manifest(folder)
    options = AnalysisOptions(
        manifest.warmup_batches if warmup_batches is None else warmup_batches,
        domain or manifest.domain,
        batch_pattern or manifest.batch_pattern,
    )
    sharing = GpuSharing(folder, manifest)
    run = _Run(before.rstrip("/"))
    for record in manifest.processes:
        name = before + record.folder
        if process not in (None, record.folder):
            continue
        if record.trace is None:
            message = f"{name} has no trace, so it has no diagnosis."
            run.findings.append(Finding("not-traced", Severity.WARNING, message))
            continue
        try:
            result, _ = analyze_trace(folder / record.folder / record.trace, options, others=sharing.others_of(record))
        except TraceError as error:
            run.findings.append(Finding("trace-unreadable", Severity.ERROR, str(error), process=name))
            continue
        assert result.diagnosis is not None
        run.processes[name] = result.diagnosis
        own = without_consequences(result.findings, ended_well=record.ended == "ok")
        run.findings.extend(replace(finding, process=name) for finding in own)
    return run


def _json(diagnosis: Diagnosis, stage: str | None) -> object:
    from perfharness.render.terminal.diagnosis import matching_stages

    tree = diagnosis.to_json()
    wanted = {stage.path for stage in matching_stages(diagnosis, stage)}
    return {**tree, "stages": [one for one in tree["stages"] if tuple(one["path"]) in wanted]}
