"""`perfharness diagnose`: why each stage takes the time it takes, and what to try next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from perfharness.analysis.diagnosis import ALONE, pool
from perfharness.analysis.ranks.findings import rank_findings
from perfharness.analysis.ranks.verdict import with_rank_delays
from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import (
    EXIT_CHECK_FAILED,
    SOURCE,
    SOURCE_HELP,
    BatchPatternOption,
    DomainOption,
    NsysOption,
    WarmupOption,
    exit_code,
)
from perfharness.cli.support.output import Format, FormatOption, Output, QuietOption, VerboseOption
from perfharness.errors import UsageError
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.findings import Finding, Severity
from perfharness.render.terminal.advice import print_advice
from perfharness.render.terminal.console import say, styled
from perfharness.render.terminal.diagnosis import (
    matching_stages,
    print_diagnosis,
    print_example,
    print_pooled,
)
from perfharness.runs.explain import explaining_pass_missing
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.files.run_folder import ExplainingPass, ProcessAnalyzer, ReadAs, analyze_trace, read_manifest


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

    What is worth most comes first; --verbose and --stage show what it rests on. Writes no results (`analyze` writes the
    same into benchmark.json). Exits with 3 where a trace is incomplete, or nothing was measured.
    """
    located, read_as = locate(run, nsys), ReadAs(warmup_batches, domain, batch_pattern)
    if located.trace is not None:
        result, _ = analyze_trace(located.trace, read_as.options(), others=ALONE)
        assert result.diagnosis is not None
        found = [_Run("", {str(run): result.diagnosis}, result.findings)]
    else:
        found = [_diagnose_run(located, folder, read_as) for folder in located.runs]
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
    if name is None or any(matching_stages(diagnosis, name) for diagnosis in diagnoses):
        return
    there = sorted({one.path[-1] for diagnosis in diagnoses for one in diagnosis.stages})
    raise UsageError(f"There is no stage '{name}'; stages there are: {', '.join(there) or 'none'}.")


def _print(run: _Run, stage: str | None, output: Output) -> None:
    """One process with all its stages; several pooled, and each of them where more was asked for."""
    several = len(run.processes) > 1
    if not several or stage is not None or output.verbose:
        for name, diagnosis in run.processes.items():
            say(output.results, styled(name, "bold"))
            print_diagnosis(output.results, name, diagnosis, stage, details=output.verbose)
    if several:
        if run.name:
            say(output.results, styled(run.name, "bold"))
        print_pooled(output.results, pool(run.processes), stage)
        if stage is None:
            print_advice(output.results, run.processes, most=None)
            if not output.verbose:
                print_example(output.results, run.processes)


def _diagnose_run(located: Located, folder: Path, read_as: ReadAs) -> _Run:
    """Every process of a run that was named."""
    manifest = read_manifest(folder)
    analyzer = ProcessAnalyzer(folder, manifest, read_as)
    explaining = ExplainingPass(folder, manifest, read_as)
    folders: dict[str, str] = {}
    run = _Run(folder.name if located.is_series else "", findings=explaining_pass_missing(folder, manifest))
    for name, record in located.processes_of(folder, manifest):
        if record.trace is None:
            message = f"{name} has no trace, so it has no diagnosis."
            run.findings.append(Finding("not-traced", Severity.WARNING, message))
            continue
        analysed, findings = analyzer.analyze(record)
        run.findings += [replace(finding, process=name) for finding in findings]
        if analysed is not None and analysed.result.diagnosis is not None:
            result, found = explaining.explain(record.folder, analysed.result)
            run.processes[name] = result.diagnosis or analysed.result.diagnosis
            run.findings += [replace(one, process=name) for one in found]
            folders[record.folder] = name
    ranks = analyzer.compare_ranks()
    for group in ranks.groups if ranks is not None else ():
        of_ranks = {name: run.processes[folders[name]] for name in group.processes if name in folders}
        for name, diagnosis in of_ranks.items():
            run.processes[folders[name]] = with_rank_delays(diagnosis, group, name, of_ranks)
        run.findings += rank_findings(group)
    return run


def _json(diagnosis: Diagnosis, stage: str | None) -> object:
    tree = diagnosis.to_json()
    wanted = {stage.path for stage in matching_stages(diagnosis, stage)}
    return {**tree, "stages": [one for one in tree["stages"] if tuple(one["path"]) in wanted]}
