"""`perfharness diagnose`: why each stage takes the time it takes, and what to try next."""

from __future__ import annotations

import json
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfharness.analysis.diagnosis import ALONE, pool
from perfharness.cli.options import BatchPatternOption, DomainOption, NsysOption, WarmupOption, exit_with
from perfharness.errors import TraceError, UsageError
from perfharness.inputs import trace_file
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.findings import Finding, Severity
from perfharness.report.diagnosis import matching_stages, print_diagnosis, print_pooled
from perfharness.report.gpu_sharing import GpuSharing
from perfharness.report.run_folder import ReadOptions, analyze_trace, is_run_folder, read_manifest
from perfharness.report.terminal import print_findings


class DiagnosisFormat(str, Enum):
    """How the diagnosis is written."""

    TEXT = "text"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("diagnose")(diagnose)


def diagnose(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|TRACE", help="A run folder, or a trace: .sqlite, .nsys-rep or a Parquet folder of nsys."
        ),
    ],
    stage: Annotated[
        str | None, typer.Option(help="Only this stage, with every figure; a name, or a path as it is printed.")
    ] = None,
    warmup_batches: WarmupOption = None,
    nsys: NsysOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    output_format: Annotated[DiagnosisFormat, typer.Option("--format", help="Text, or all of it as JSON.")] = (
        DiagnosisFormat.TEXT
    ),
) -> None:
    """Why each stage takes the time it takes: verdict, evidence, next step; and whether the warm-up is enough.

    Writes no files (`analyze` writes the same into benchmark.json). Exits with 3 where a trace is incomplete.
    """
    if is_run_folder(run):
        found, findings = _diagnose_run(run, warmup_batches, domain, batch_pattern)
    else:
        options = ReadOptions(warmup_batches or 0, domain, batch_pattern)
        result, _ = analyze_trace(trace_file(run, nsys), options, others=ALONE)
        assert result.diagnosis is not None
        found, findings = {str(run): result.diagnosis}, result.findings
    if stage is not None and not any(matching_stages(diagnosis, stage) for diagnosis in found.values()):
        there = sorted({one.path[-1] for diagnosis in found.values() for one in diagnosis.stages})
        raise UsageError(f"There is no stage '{stage}'; stages there are: {', '.join(there) or 'none'}.")
    if output_format is DiagnosisFormat.JSON:
        typer.echo(json.dumps({name: _json(diagnosis, stage) for name, diagnosis in found.items()}, indent=2))
    else:
        console = Console()
        for name, diagnosis in found.items():
            console.print(f"[bold]{name}[/]", soft_wrap=True, highlight=False)
            print_diagnosis(console, diagnosis, stage)
        if len(found) > 1:
            print_pooled(console, pool(found), stage)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    print_findings(Console(stderr=True), errors)
    exit_with(findings)


def _diagnose_run(
    folder: Path, warmup_batches: int | None, domain: str | None, batch_pattern: str | None
) -> tuple[dict[str, Diagnosis], list[Finding]]:
    manifest = read_manifest(folder)
    options = ReadOptions(
        manifest.warmup_batches if warmup_batches is None else warmup_batches,
        domain or manifest.domain,
        batch_pattern or manifest.batch_pattern,
    )
    sharing = GpuSharing(folder, manifest)
    found: dict[str, Diagnosis] = {}
    findings: list[Finding] = []
    for process in manifest.processes:
        if process.trace is None:
            findings.append(
                Finding("not-traced", Severity.WARNING, f"{process.folder} has no trace, so it has no diagnosis.")
            )
            continue
        try:
            result, _ = analyze_trace(
                folder / process.folder / process.trace, options, others=partial(sharing.others_of, process)
            )
        except TraceError as error:
            findings.append(Finding("trace-unreadable", Severity.ERROR, str(error), process=process.folder))
            continue
        assert result.diagnosis is not None
        found[process.folder] = result.diagnosis
        findings.extend(result.findings)
    return found, findings


def _json(diagnosis: Diagnosis, stage: str | None) -> object:
    tree = diagnosis.to_json()
    wanted = {stage.path for stage in matching_stages(diagnosis, stage)}
    return {**tree, "stages": [one for one in tree["stages"] if tuple(one["path"]) in wanted]}
