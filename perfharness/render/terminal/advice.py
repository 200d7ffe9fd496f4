"""What limits each stage, in a column, and what to do first, as a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfharness.analysis.diagnosis import Advice, advise, agreement, unexplained
from perfharness.model.diagnosis import Cause, Code, Diagnosis, Path
from perfharness.model.result import path_text
from perfharness.render.places import place_text
from perfharness.render.terminal.console import markdown_text, say, styled
from perfharness.render.text import safe_line

MOST_VALUABLE = 3
"""Pieces of advice after a launch; `analyze -v` has them all."""
LISTED_STAGES = 3
STYLES = {Code.GPU_BOUND.value: "green", Code.UNKNOWN.value: "dim"}
DEFAULT_STYLE = "yellow"


def cause_name(cause: Cause) -> str:
    """The code, with the limit of the GPU, or with what a wait is for: `waiting (file)`."""
    has_detail = cause.detail not in (None, "other", "unknown")
    return f"{cause.code.value} ({cause.detail})" if has_detail else cause.code.value


def cause_text(name: str) -> Text:
    """A cause's name, in its colour."""
    return styled(name, STYLES.get(name.partition(" ")[0], DEFAULT_STYLE))


def limited_by(diagnoses: Mapping[str, Diagnosis]) -> dict[Path, Text]:
    """What limits each stage; where processes differ, what limits most of them, and how many."""
    names = {
        (process, stage.path): cause_name(stage.verdict)
        for process, diagnosis in diagnoses.items()
        for stage in diagnosis.stages
    }
    found = {}
    for one in agreement(diagnoses):
        text = cause_text(names[one.process, one.path])
        found[one.path] = text if one.votes is None else text + Text(f" {one.votes}")
    return found


def print_advice(console: Console, diagnoses: Mapping[str, Diagnosis], most: int | None = MOST_VALUABLE) -> None:
    """What to do first, then the stages of which nothing is known.

    Args:
        diagnoses: by process.
        most: pieces of advice; None: all.
    """
    every = advise(diagnoses)
    shown = every[:most]
    names = stage_names(stage.path for diagnosis in diagnoses.values() for stage in diagnosis.stages)
    if shown:
        left_out = f" ({len(shown)} of {len(every)}; all: perfharness analyze -v)" if len(shown) < len(every) else ""
        _print_blank_in_markdown(console)
        say(console, styled("What to do first", "bold"), left_out)
        _print_blank_in_markdown(console)
        for number, advice in enumerate(shown, 1):
            _print_numbered(console, number, advice_lines(advice, names[advice.path], len(diagnoses)))
        _print_blank_in_markdown(console)
    if unknown := [names[path] for path in unexplained(diagnoses)]:
        listed = ", ".join(map(safe_line, unknown[:LISTED_STAGES]))
        more = f" and {len(unknown) - LISTED_STAGES} more" if len(unknown) > LISTED_STAGES else ""
        step = "" if has_profile(diagnoses.values()) else " Add --explain (runs the script twice)."
        say(console, f"Not known what limits {listed}{more}.{step}")


def has_profile(diagnoses: Iterable[Diagnosis]) -> bool:
    """Whether a profiling pass was used."""
    return any(stage.slowdown is not None for one in diagnoses for stage in one.stages)


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


def advice_lines(advice: Advice, name: str, processes: int = 1) -> list[Text]:
    """One piece of advice: stage, cause and saving; what it is and where; what to do.

    Args:
        name: of the stage.
        processes: of the run; of several, it says whose figures these are.
    """
    cause = advice.cause
    head = Text.assemble(styled(safe_line(name), "bold"), "  ", cause_text(cause_name(cause)))
    if cause.saves_ms is not None:
        share = "" if advice.share is None else f" ({100 * advice.share:.0f} %)"
        of = "" if advice.batch_ms is None else f" of {milliseconds(advice.batch_ms)}"
        head.append(f"  saves up to {milliseconds(cause.saves_ms)}{of} per batch{share}", "green")
    if processes > 1:
        head.append(f"  {advice.processes} of {processes} processes; {safe_line(advice.process)}", "dim")
    return [head, *cause_lines(cause)]


def cause_lines(cause: Cause) -> list[Text]:
    """What a cause is and where; what to do."""
    what = safe_line(cause.what)
    if cause.place is not None:
        function, line = (f"{100 * share:.0f} %" for share in (cause.place.function_share, cause.place.line_share))
        what += f" {place_text(cause.place)} takes {function} of the stage"
        what += "." if line == function else f", its line {line}."
    return [Text(what), Text(f"→ {safe_line(cause.step)}")]


def advice_text(advice: Advice, name: str, processes: int = 1) -> str:
    """One piece of advice on one line."""
    head, *rest = (line.plain for line in advice_lines(advice, name, processes))
    stage, _, limit = head.partition("  ")
    return f"{stage}: {limit.replace('  ', ', ')}. {' '.join(rest)}"


def milliseconds(value: float) -> str:
    """A time in a sentence, three digits or more."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f} ms"


def _print_numbered(console: Console, number: int, lines: list[Text]) -> None:
    """An entry of a list: its lines below each other, wrapped and indented on a terminal."""
    if getattr(console, "markdown", False):
        say(console, f"{number}. {'  '.join(markdown_text(line.plain) for line in lines)}")
    elif console.is_terminal:
        entry = Table.grid(padding=(0, 1))
        for place, line in enumerate(lines):
            entry.add_row(f" {number}." if place == 0 else "", line)
        console.print(entry)
    else:
        for place, line in enumerate(lines):
            say(console, f" {number}. " if place == 0 else "    ", line)
