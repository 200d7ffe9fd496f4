"""`perfharness analyze`: recompute results, explain a stage, show the slowest batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.options import EXIT_CHECK_FAILED, exit_code
from perfharness.cli.support.output import OUTPUT, FullOutput, Output
from perfharness.cli.support.reading import MEANING, SOURCE, SOURCE_HELP, Reading
from perfharness.cli.support.settings import with_settings
from perfharness.errors import ResultError, UsageError
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.result import ProcessResult, Tree
from perfharness.model.settings import option
from perfharness.progress import in_steps
from perfharness.render.blocks import Block, Paragraph, Section
from perfharness.render.views.diagnosis import diagnoses_of, matching_stages, stage_view
from perfharness.runs.analyze import AnalyzedRuns, AnalyzedTraces, analyze_runs, analyze_traces, join_parts
from perfharness.runs.files.inputs import Located, locate
from perfharness.runs.files.run_folder import ReadAs, benchmark_tree

DETAILS = "Details"
"""Help group of options that replace the usual results."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("analyze", cls=GroupedCommand)(analyze)


class AnalyzeSettings(BaseModel):
    """Options of `analyze`."""

    parallel: Literal["auto", "data", "model"] | None = option(
        "Ranks process different items (data) or the same ones (model). [default: as launched]", MEANING
    )
    output_dir: Path | None = option(
        "Folder for the results of bare traces, or of the joined runs of nodes (launch --nodes). [default: none]",
        OUTPUT,
        flags="-o --output-dir",
    )
    stage: str | None = option("Show only the diagnosis of this stage: a name or a printed path.", DETAILS, "NAME")
    slowest: int | None = option(
        "Show only the N slowest batches (requests) of each loop, next to a typical one.", DETAILS, "N", ge=1
    )


@with_settings()
def analyze(
    runs: Annotated[list[Path], argument(f"{SOURCE}…", SOURCE_HELP)],
    *,
    reading: Reading,
    asked: AnalyzeSettings,
    output: FullOutput,
) -> None:
    """Recompute and print the results of earlier runs; explain a stage or the slowest batches.

    Rewrites benchmark.json and benchmark_mean.json from the traces of a run, or reads bare traces. With -o, joins runs
    that were copied from several nodes. --verbose adds the diagnosis: functions, threads and GPU counters of each
    stage. --stage and --slowest write nothing. Needs no GPU, CUDA, nsys or torch.

    Exit codes: 0 success; 1 results cannot be written; 2 usage; 3 a trace is incomplete, nothing could be measured, or
    there is an error finding.
    """
    from perfharness.cli.support.progress import steps  # slow to import

    located = [locate(run) for run in runs]
    read_as = reading.read_as(asked.parallel)
    if asked.stage is not None or asked.slowest is not None:
        if len(located) > 1 or asked.output_dir is not None or None not in (asked.stage, asked.slowest):
            raise UsageError("Give either --stage NAME or --slowest N, for one run, without -o.")
        if asked.slowest is not None:
            raise typer.Exit(show_slowest(located[0], read_as, asked.slowest, output))
        raise typer.Exit(show_stage(located[0], read_as, str(asked.stage), output))
    traces = [one for one in located if one.trace is not None]
    with steps(output.messages, "reading the traces"):
        if len(traces) < len(located) and asked.output_dir is not None:
            folders, traces = [join_parts(located, asked.output_dir, read_as)], []
        else:
            runs_located = [one for one in located if one.trace is None]
            folders = [analyze_runs(one, read_as) for one in in_steps(runs_located, lambda one: f"reading {one.path}")]
    documents: dict[str, Tree] = {}
    shown = [block for found in folders for block in show_runs(found, output, documents)]
    analyzed: list[AnalyzedRuns | AnalyzedTraces] = [*folders]
    if traces:
        read = analyze_traces(
            traces, read_as, asked.output_dir, with_data=output.is_json, with_diagnosis=output.verbose
        )
        shown += show_traces(traces, read, output, documents)
        analyzed.append(read)
    output.show(shown)
    if output.is_json:
        output.json_documents(documents)
    findings = [finding for one in analyzed for finding in one.findings]
    output.findings(findings)
    if not_written := [line for one in folders for line in one.not_written]:
        raise ResultError("\n".join(not_written))
    raise typer.Exit(exit_code(findings) if all(one.has_numbers for one in analyzed) else EXIT_CHECK_FAILED)


def show_runs(analyzed: AnalyzedRuns, output: Output, documents: dict[str, Tree]) -> list[Block]:
    """Return the results of each run and the table of a series; with --format json, add them to `documents`."""
    process = analyzed.located.process
    shown: list[Block] = []
    if not analyzed.not_written:
        output.message(f"Results rewritten in {analyzed.located.path}")
    for summary in analyzed.summaries:
        results = analyzed.results_of(summary)
        if not output.is_json:
            tree = summary.mean if process is None else summary.mean_of(process)
            shown.append(Section(str(summary.folder / (process or "")), output.result(tree, results)))
        elif process is None:
            documents[str(summary.folder)] = summary.mean
        else:
            trees = (benchmark_tree(result) for result in results.values())
            documents[str(analyzed.located.path)] = {key: value for tree in trees for key, value in tree.items()}
    if analyzed.series is not None and not output.is_json:
        from perfharness.render.views.series import series_view  # slow to import

        shown.append(Section(str(analyzed.located.path), series_view(analyzed.series)))
    return shown


def show_traces(
    traces: Sequence[Located], analyzed: AnalyzedTraces, output: Output, documents: dict[str, Tree]
) -> list[Block]:
    """Return the results of bare traces; with --format json, add them to `documents`."""
    if output.is_json:
        documents[", ".join(str(one.path) for one in traces)] = analyzed.mean
        return []
    shown = output.result(analyzed.mean, analyzed.results, has_gpu=analyzed.has_gpu)
    if not (output.verbose or diagnoses_of(analyzed.results)):
        shown.append(Paragraph("What limits each stage: perfharness analyze -v TRACE"))
    return shown


def show_stage(located: Located, read_as: ReadAs, stage: str, output: Output) -> int:
    """Print the diagnosis of a stage and return the exit code. Raises `UsageError` if the stage does not exist."""
    analyzed: AnalyzedRuns | AnalyzedTraces
    found: dict[str, Mapping[str, ProcessResult]]
    if located.trace is None:
        analyzed = analyze_runs(located, read_as, write=False)
        found = {one.folder.name if located.is_series else "": analyzed.results_of(one) for one in analyzed.summaries}
    else:
        analyzed = analyze_traces([located], read_as, with_data=False, with_diagnosis=True)
        found = {"": analyzed.results}
    named = {
        f"{run}/{name}" if run else name: diagnosis
        for run, results in found.items()
        for name, diagnosis in diagnoses_of(results).items()
    }
    if not any(matching_stages(diagnosis, stage) for diagnosis in named.values()):
        there = sorted({one.path[-1] for diagnosis in named.values() for one in diagnosis.stages})
        raise UsageError(f"No stage '{stage}'. Stages of this run: {', '.join(there) or 'none'}.")
    output.document(
        {name: diagnosis_of_stage(diagnosis, stage) for name, diagnosis in named.items()},
        [Section(name, stage_view(diagnosis, stage)) for name, diagnosis in named.items()],
    )
    output.findings(analyzed.findings)
    return exit_code(analyzed.findings)


def show_slowest(located: Located, read_as: ReadAs, most: int, output: Output) -> int:
    """Print the slowest batches next to a typical one and return the exit code."""
    from perfharness.render.views.slowest import slowest_view  # slow to import
    from perfharness.runs.run import open_located

    found, findings = open_located(located, read_as).find_slowest(most)
    output.document(found, slowest_view(found, details=output.verbose))
    has_any = any(loop.requests for loop in found.loops)
    if not has_any:
        output.message("No measured batches; lower -w, or see `perfharness export --table ranges`.")
    output.findings(findings)
    return exit_code(findings) if has_any else EXIT_CHECK_FAILED


def diagnosis_of_stage(diagnosis: Diagnosis, stage: str) -> Tree:
    """Diagnosis as in benchmark.json, with one stage."""
    wanted = {one.path for one in matching_stages(diagnosis, stage)}
    tree = diagnosis.to_json()
    return {**tree, "stages": [one for one in tree["stages"] if tuple(one["path"]) in wanted]}
