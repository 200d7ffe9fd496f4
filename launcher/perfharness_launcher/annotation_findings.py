"""What a process told about its annotations, as findings: a name that was not there, a function never called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from perfharness.analysis.judgement import without_consequences
from perfharness.model.annotations import NOTES_NAME, NOTES_OF_CHILDREN, Annotations, FunctionNote
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import ProcessRecord

NEVER_CALLED = (
    "it was there and never called",
    "Another module may have taken it before it was replaced, or a process that was started anew called it.",
)
NO_MODULE_CALLED = (
    "no call of a module was heard of",
    "One that is compiled in place (`model.compile()`) is not: use `torch.compile(model)`, or annotate what calls it.",
)
NEVER_DEFINED = (
    "the script never came to its definition",
    "Name a function that is defined on every way through the script.",
)
NEVER_IMPORTED = (
    "its module was never imported",
    "Name it in the module that the pipeline uses, or leave it away.",
)


def annotation_findings(folder: Path, record: ProcessRecord, annotations: Annotations) -> Iterator[Finding]:
    """Findings of one process; none of one that was killed before it could tell."""
    notes = read_notes(folder)
    if notes is None:
        if record.ended == "ok":
            yield Finding(
                "annotations-not-told",
                Severity.WARNING,
                "The process ended without telling which annotated functions it found and called.",
                "A script that leaves by os._exit, or replaces itself by another program, cannot tell.",
                record.folder,
            )
        return
    for note in notes:
        for finding in without_consequences(list(_findings_of(note, annotations)), ended_well=record.ended == "ok"):
            yield Finding(finding.code, finding.severity, finding.message, finding.cure, record.folder)


def read_notes(folder: Path) -> list[FunctionNote] | None:
    """The notes of the process, with what its forked children called; None where there are none."""
    notes = _read(folder / NOTES_NAME)
    if notes is None:
        return None
    for path in sorted(folder.glob(NOTES_OF_CHILDREN)):
        for note, childs in zip(notes, _read(path) or [], strict=False):
            note.called |= childs.called
            note.recorded |= childs.recorded
    return notes


def _read(path: Path) -> list[FunctionNote] | None:
    try:
        return [FunctionNote.from_json(content) for content in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return None


def _findings_of(note: FunctionNote, annotations: Annotations) -> Iterator[Finding]:
    is_torch = note.function == "torch"
    what, has = ("PyTorch's modules", "have") if is_torch else (note.function, "has")
    if note.problem is not None:
        yield Finding(
            "annotation-not-found",
            Severity.ERROR,
            f"{what} could not be annotated: {note.problem}.",
            "Name a function, or a method of a class written in Python, that is there once its module is imported.",
        )
    elif not note.called:
        never_called = NO_MODULE_CALLED if is_torch else NEVER_CALLED
        why, cure = NEVER_IMPORTED if not note.imported else never_called if note.found else NEVER_DEFINED
        yield Finding("annotation-never-called", _severity(note, annotations), f"{what} {has} no ranges: {why}.", cure)
    elif not note.recorded:
        yield Finding(
            "annotation-never-called",
            _severity(note, annotations),
            f"{what} {has} no ranges: it was called only while no range {annotations.within!r} was open.",
            "Let [recorder] within name a range around all that is to be measured.",
        )
    if note.items_problem is not None:
        yield Finding(
            "annotation-items-failed",
            Severity.WARNING,
            f"{what} has batches without items, or with counted indices: {note.items_problem}.",
            "An expression sees args, kwargs, self, result and the parameters of the function.",
        )


def _severity(note: FunctionNote, annotations: Annotations) -> Severity:
    """Without its batches there is nothing of what was asked for."""
    batches = {function.target for function in annotations.functions if function.is_batch}
    return Severity.ERROR if note.function in batches else Severity.WARNING
