"""Advice: causes with their place in the code and possible savings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfharness.analysis.diagnosis import Advice, advise, unexplained
from perfharness.model.diagnosis import Cause, Code, Diagnosis
from perfharness.model.findings import listed
from perfharness.render.blocks import Block, Items, Line, Paragraph, Section, Span, Style
from perfharness.render.numbers import milliseconds, percent
from perfharness.render.text import safe_line
from perfharness.render.views.names import line_of, shortened, stage_names
from perfharness.runs.stage_lines import StageLine, without_ids

MOST_VALUABLE = 3
"""Pieces of advice after a launch; `analyze -v` shows all."""

LISTED_STAGES = 3
STYLES: dict[str, Style] = {Code.GPU_BOUND.value: "good", Code.UNKNOWN.value: "dim"}


def cause_name(cause: Cause) -> str:
    """Code with its detail: `waiting (file)`."""
    has_detail = cause.detail not in (None, "other", "unknown")
    return f"{cause.code.value} ({cause.detail})" if has_detail else cause.code.value


def cause_span(name: str) -> Span:
    """Coloured name of a cause."""
    return Span(name, STYLES.get(name.partition(" ")[0], "warning"))


def advice_view(
    diagnoses: Mapping[str, Diagnosis], lines: Iterable[StageLine], most: int | None = MOST_VALUABLE
) -> list[Block]:
    """Advice, most valuable first, then the stages without a known cause.

    Args:
        diagnoses: by process.
        lines: stages of the run; one whose name contains an id gets no advice, its parent does.
        most: pieces of advice, or None for all.
    """
    diagnoses = without_ids(diagnoses, lines)
    every = advise(diagnoses)
    shown = every[:most]
    whole = stage_names(stage.path for diagnosis in diagnoses.values() for stage in diagnosis.stages)
    names = {path: shortened(name) for path, name in whole.items()}
    blocks: list[Block] = []
    if shown:
        left_out = f" ({len(shown)} of {len(every)}; all: perfharness analyze -v)" if len(shown) < len(every) else ""
        widths = max(len(names[one.path]) for one in shown), max(len(cause_name(one.cause)) for one in shown)
        entries = [_entry(one, names[one.path], widths, diagnoses) for one in shown]
        blocks.append(Section(f"What to do first{left_out}", [Items(entries, numbered=True)]))
    if unknown := [names[path] for path in unexplained(diagnoses)]:
        step = "" if has_profile(diagnoses.values()) else " Launch with --explain (runs the script twice)."
        blocks.append(Paragraph(f"Not known what limits {safe_line(listed(unknown, LISTED_STAGES))}.{step}"))
    return blocks


def has_profile(diagnoses: Iterable[Diagnosis]) -> bool:
    """Whether there was a profiling pass."""
    return any(stage.slowdown is not None for one in diagnoses for stage in one.stages)


def cause_lines(cause: Cause) -> list[Line]:
    """Description and place of a cause, then the next step."""
    what, place = cause.what, cause.place
    if place is not None and cause.code is not Code.GIL_CONTENTION:  # whose text names the lock's holder
        share = percent(place.function_share)
        where = " In" if share in (percent(cause.share), percent(0)) else f" {share} in"
        what += f"{where} {place.function} ({line_of(place)})."
    return [safe_line(what), safe_line(f"→ {cause.step}")]


def _entry(advice: Advice, name: str, widths: tuple[int, int], diagnoses: Mapping[str, Diagnosis]) -> list[Line]:
    """Stage, cause and saving over all processes, then the lines of the cause."""
    cause, (name_width, cause_width) = advice.cause, widths
    saves_ms, batch_ms = _over_processes(advice, diagnoses)
    saves = of_processes = ""
    if saves_ms is not None:
        of_batch = f" of {milliseconds(batch_ms)}" if batch_ms else ""
        share = f" ({percent(saves_ms / batch_ms)})" if batch_ms else ""
        saves = f"  saves up to {milliseconds(saves_ms)}{of_batch} per batch{share}"
    what, step = cause_lines(cause)
    if len(diagnoses) > 1:
        with_it = sum(any(stage.path == advice.path for stage in one.stages) for one in diagnoses.values())
        of_processes = f"  in {advice.processes} of {with_it} processes" if with_it > 1 else ""
        what = f"{safe_line(advice.process)}: {what}"
    head: Line = (
        Span(safe_line(name), "bold"),
        " " * (name_width - len(name) + 2),
        cause_span(cause_name(cause)),
        " " * (cause_width - len(cause_name(cause))) if saves or of_processes else "",
        Span(saves, "good"),
        Span(of_processes, "dim"),
    )
    return [head, what, step]


def _over_processes(advice: Advice, diagnoses: Mapping[str, Diagnosis]) -> tuple[float | None, float | None]:
    """Saving and duration of a batch, ms, means over the batches of all processes."""
    found = [(batch, _saving(advice, one)) for one in diagnoses.values() if (batch := one.batch_around(advice.path))]
    batches = sum(batch.batches for batch, _ in found)
    if advice.cause.saves_ms is None or not batches:
        return advice.cause.saves_ms, None
    batch_ms = sum(batch.batches * batch.wall_ms for batch, _ in found)
    saves_ms = sum(batch.batches * saving for batch, saving in found)
    return min(saves_ms, batch_ms) / batches, batch_ms / batches


def _saving(advice: Advice, diagnosis: Diagnosis) -> float:
    causes = (cause for stage in diagnosis.stages if stage.path == advice.path for cause in stage.causes)
    return next((cause.saves_ms or 0.0 for cause in causes if cause.code is advice.cause.code), 0.0)
