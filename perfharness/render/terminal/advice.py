"""What limits each stage, in a column, and what is most worth doing, in sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfharness.analysis.diagnosis.advice import Advice, advise, is_explained
from perfharness.model.diagnosis import Cause, Diagnosis, GpuLimit, Path, StageDiagnosis, Verdict
from perfharness.model.result import path_text
from perfharness.model.text import safe_line
from perfharness.render.places import place_text, short_file
from perfharness.render.terminal.console import markdown_text, say, styled

MOST_VALUABLE = 3
"""Sentences of a launch; `analyze -v` has them all."""
LISTED_STAGES = 3
FILE_AND_LINE = re.compile(r"\((/[^():]+):(\d+)\)")
"""In the sentence of a cause, which has whole paths."""

VERDICT_STYLE = {Verdict.GPU_BOUND.value: "green", Verdict.CANNOT_TELL.value: "dim"}
DEFAULT_STYLE = "yellow"


def verdict_name(stage: StageDiagnosis) -> str:
    """The verdict, with the limit of the GPU's work where it is known."""
    verdict, limit = stage.verdict.verdict.value, stage.verdict.limit
    return verdict if limit is None or limit is GpuLimit.CANNOT_TELL else f"{verdict} ({limit.value})"


def verdict_text(name: str) -> Text:
    """A verdict's name, in its colour."""
    return styled(name, VERDICT_STYLE.get(name.partition(" ")[0], DEFAULT_STYLE))


def limited_by(diagnoses: Iterable[Diagnosis]) -> dict[Path, Text]:
    """What limits each stage; where processes differ, what limits most of them, and how many."""
    names: dict[Path, list[str]] = {}
    for diagnosis in diagnoses:
        for stage in diagnosis.stages:
            names.setdefault(stage.path, []).append(verdict_name(stage))
    return {path: _most_frequent(given) for path, given in names.items()}


def _most_frequent(names: Sequence[str]) -> Text:
    name, count = Counter(names).most_common(1)[0]
    return verdict_text(name) if count == len(names) else verdict_text(name) + Text(f" {count}/{len(names)}")


def print_advice(console: Console, diagnoses: Mapping[str, Diagnosis], most: int | None = MOST_VALUABLE) -> None:
    """The most valuable advice, a numbered sentence or two each: what it is, where, what to try, what that saves.

    Args:
        diagnoses: by process.
        most: how many at most; None: all, for a reader who gets the evidence as well.
    """
    every = advise(diagnoses)
    shown = every[:most]
    if not shown:
        return
    left_out = f" ({len(shown)} of {len(every)}; all: perfharness analyze -v)" if len(shown) < len(every) else ""
    _print_blank_in_markdown(console)
    say(console, styled("What to do first", "bold"), left_out)
    _print_blank_in_markdown(console)
    names = stage_names(stage.path for diagnosis in diagnoses.values() for stage in diagnosis.stages)
    for place, advice in enumerate(shown, 1):
        shown_advice = advice if most is not None else replace(advice, doubt=None)
        stages = [names[path] for path in advice.paths]
        _print_numbered(console, place, advice_text(shown_advice, stages, len(diagnoses)))
    _print_blank_in_markdown(console)
    if not is_explained(diagnoses.values()):
        counters = ", GPU counters" if any(one.gpus for one in diagnoses.values()) else ""
        say(console, f"For more functions, waits{counters}: add --explain (runs the script twice).")


def _print_blank_in_markdown(console: Console) -> None:
    """In Markdown a list ends at a blank line."""
    if getattr(console, "markdown", False):
        say(console, "")


def stage_names(paths: Iterable[Path]) -> dict[Path, str]:
    """A name for each stage that `--stage` takes: the end of its path that no other path has, or all of it."""
    distinct = list(dict.fromkeys(paths))
    ends = Counter(path[begin:] for path in distinct for begin in range(len(path)))

    def name(path: Path) -> str:
        begins = (begin for begin in range(len(path) - 1, 0, -1) if ends[path[begin:]] == 1)
        return path_text(path[next(begins, 0) :])

    return {path: name(path) for path in distinct}


def advice_text(advice: Advice, stages: Sequence[str], processes: int = 1) -> Text:
    """One piece of advice.

    Args:
        stages: their names; of several, the sentence is about the first.
        processes: of the run; of several, it says whose figures these are.
    """
    cause, names = advice.cause, [safe_line(name) for name in stages]
    what = _sentence(safe_line(_with_short_files(cause)))
    parts = [
        Text.assemble(styled(_listed(names), "bold"), f" ({_times(advice)}), "),
        verdict_text(safe_line(cause.code)),
        Text(f": {what}" if len(names) == 1 else f": in {names[0]}: {what}"),
    ]
    if cause.where is not None and (place := place_text(cause.where)) not in what:
        parts.append(Text(f" Where: {place}."))
    parts.append(Text(f" Try: {_sentence(safe_line(cause.try_this))}"))
    if advice.saves_ms is not None and advice.tells_saving:
        share = "" if advice.saves_share is None else f", {100 * advice.saves_share:.0f} % of the batch"
        parts.append(Text.assemble(" ", (f"Saves up to {milliseconds(advice.saves_ms)}{share}.", "green")))
    if advice.doubt is not None:
        parts.append(Text(f" (The second pass was not used: {safe_line(advice.doubt)}.)", "dim"))
    if processes > 1:
        parts.append(Text(f" ({advice.processes} of {processes} processes; {safe_line(advice.process)})", "dim"))
    return Text.assemble(*parts)


def _with_short_files(cause: Cause) -> str:
    """What the cause is, the files of its lines as in `place_text`."""
    what = cause.what if cause.where is None else cause.what.replace(cause.where.file, short_file(cause.where.file))
    return FILE_AND_LINE.sub(lambda found: f"({short_file(found[1])}:{found[2]})", what)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED_STAGES
    if more <= 1:
        return ", ".join(names)
    return f"{', '.join(names[:LISTED_STAGES])} and {more} more"


def _times(advice: Advice) -> str:
    """What the stage takes of the batch; of one that takes longer on the GPU, there too."""
    own = milliseconds(advice.stage_ms)
    if advice.gpu_ms is not None and advice.gpu_ms > advice.stage_ms:
        own = f"{own}, on the GPU {milliseconds(advice.gpu_ms)},"
    if advice.batch_ms is None or advice.batch_ms == advice.stage_ms:
        return f"{own.rstrip(',')} {'a batch' if advice.is_in_batches else 'each'}"
    return f"{own} of {milliseconds(advice.batch_ms)} a batch"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def milliseconds(value: float) -> str:
    """A time in a sentence, three digits or more."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f} ms"


def _print_numbered(console: Console, number: int, text: Text) -> None:
    """An entry of a list: wrapped and indented on a terminal, one line elsewhere."""
    if getattr(console, "markdown", False):
        say(console, f"{number}. {markdown_text(text.plain)}")
    elif console.is_terminal:
        entry = Table.grid(padding=(0, 1))
        entry.add_row(f" {number}.", text)
        console.print(entry)
    else:
        say(console, f" {number}. ", text)
