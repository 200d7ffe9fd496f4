"""Diagnosis of all stages, or of one in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from perfharness.analysis.diagnosis import StageAgreement, agreement
from perfharness.model.diagnosis import Code, Diagnosis, Path, StageDiagnosis
from perfharness.model.result import ProcessResult, path_text
from perfharness.render.blocks import (
    Block,
    Chart,
    Column,
    Columns,
    Details,
    Items,
    Line,
    Paragraph,
    Section,
    omitted,
    table_of,
)
from perfharness.render.numbers import milliseconds, percent
from perfharness.render.views import evidence
from perfharness.render.views.causes import cause_lines, cause_name
from perfharness.render.views.names import is_named, row_names, stage_names

MAX_EVIDENCE = 60
"""Stages with evidence on a page."""

VERDICTS: Columns[StageAgreement] = [
    (Column("verdicts"), lambda one: ", ".join(f"{count} {code.value}" for code, count in one.verdicts.items()))
]
SUMMARIES = (evidence.activities, evidence.functions, evidence.counters)


def diagnoses_of(results: Mapping[str, ProcessResult]) -> dict[str, Diagnosis]:
    """Diagnoses by process."""
    return {name: result.diagnosis for name, result in results.items() if result.diagnosis is not None}


def matching_stages(diagnosis: Diagnosis, name: str) -> list[StageDiagnosis]:
    """Stages of this name."""
    return [stage for stage in diagnosis.stages if is_named(stage.path, name)]


def diagnosis_view(diagnoses: Mapping[str, Diagnosis]) -> list[Block]:
    """Verdicts of all processes if they differ, then the evidence of the slowest process."""
    if not diagnoses:
        return []
    blocks: list[Block] = []
    shown, others = next(iter(diagnoses)), ""
    if len(diagnoses) > 1:
        found, others = agreement(diagnoses), " (others: perfharness analyze -v RUN/PROCESS)"
        if any(one.votes for one in found):
            note = f"What limits the stages of {len(diagnoses)} processes"
            blocks.append(table_of("verdicts", VERDICTS, found, note, row_names([one.path for one in found])))
        shown = max(found, key=lambda one: one.wall_ms).process if found else shown
    diagnosis = diagnoses[shown]
    names = stage_names(stage.path for stage in diagnosis.stages)
    of_stages = [table for show in SUMMARIES for table in show(names, diagnosis.stages)]
    return [*blocks, Section(f"{shown}{others}", [*of_stages, *_warmup(diagnosis)])]


def stage_view(diagnosis: Diagnosis, name: str) -> list[Block]:
    """Full diagnosis of the stages of this name."""
    return [
        Section(
            f"{path_text(stage.path)}: {cause_name(stage.verdict)}",
            [*stage_blocks(stage), *evidence.activities({stage.path: stage.path[-1]}, [stage])],
        )
        for stage in matching_stages(diagnosis, name)
    ]


def stage_blocks(stage: StageDiagnosis) -> Iterator[Block]:
    """Causes of a stage, the verdict first, and their evidence."""
    names = {stage.path: stage.path[-1]}
    entries: list[Line | list[Line]] = []
    for cause in stage.causes:
        saves = "" if cause.saves_ms is None else f", saves up to {milliseconds(cause.saves_ms)} per batch"
        share = "" if cause.code is Code.UNKNOWN else f", {percent(cause.share)} of the stage's time"
        entries.append([f"{cause_name(cause)}{share}{saves}", *cause_lines(cause)])
    yield Items(entries)
    busy = "" if stage.gpu_busy_ms is None else f"; GPU busy {milliseconds(stage.gpu_busy_ms)} per batch"
    batches = "1 batch" if stage.batches == 1 else f"{stage.batches} batches"
    about = f"{batches}, {milliseconds(stage.wall_ms)} per batch; {stage.samples} samples{busy}"
    yield Paragraph(about)
    for table in (evidence.kernels, evidence.copies, evidence.counters):
        yield from table(names, [stage])
    yield from evidence.functions(names, [stage], every=True)
    yield from evidence.gpu_limits(stage.limits)


def evidence_on_page(diagnoses: Mapping[str, Diagnosis], charts: Sequence[Chart]) -> Iterator[Block]:
    """Functions of all stages, charts, and folded stages, each from the process that shows it best."""
    stages = {(process, one.path): one for process, diagnosis in diagnoses.items() for one in diagnosis.stages}
    found = [(one.process, stages[one.process, one.path]) for one in agreement(diagnoses)]
    largest = sorted(found, key=lambda one: -one[1].wall_ms)[:MAX_EVIDENCE]
    shown = [one for one in found if one in largest]
    names: Mapping[Path, str] = stage_names(stage.path for _, stage in found)
    if len(diagnoses) > 1:
        names = {stage.path: f"{names[stage.path]} ({process})" for process, stage in found}
    yield from evidence.activities(names, [stage for _, stage in shown])
    yield from evidence.functions(names, [stage for _, stage in shown])
    yield from charts
    for process, stage in shown:
        of_process = f" ({process})" if len(diagnoses) > 1 else ""
        title = f"{path_text(stage.path)}: {cause_name(stage.verdict)}{of_process}"
        yield Details(title, list(stage_blocks(stage)))
    yield from omitted(len(found) - len(shown), "shorter stages: perfharness analyze -v")


def _warmup(diagnosis: Diagnosis) -> Iterator[Block]:
    for loop in dict.fromkeys(replace(loop, level_ms=None, tolerance_ms=None) for loop in diagnosis.warmup):
        if loop.state in ("enough", "cannot-tell"):
            reported = f"steady from batch {loop.steady_from}" if loop.state == "enough" else loop.reason
            text = f"Warm-up of {path_text(loop.loop)}: -w {loop.warmup_batches}, {loop.state} ({reported})"
            yield Paragraph(text)
