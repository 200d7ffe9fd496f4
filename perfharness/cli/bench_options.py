"""Options that several verbs of `perfharness bench` have, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.options import split_commas
from perfharness.errors import UsageError

SuiteArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[SUITE.toml]", help="The suite; or name models and backends.", show_default=False),
]
OutputDir = Annotated[Path, typer.Option("-o", "--output-dir", help="Folder of the results.")]
Device = Annotated[str | None, typer.Option("--device", metavar="auto|cpu|cuda", help="[default: auto]")]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="GPU", help="UUID or index. [default: the first]")]
CaseTimeout = Annotated[float | None, typer.Option("--timeout", metavar="S", help="Of a case. [default: 1800]")]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Keep what is done in the folder, run what is left or failed for a passing reason."),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="With --resume: run everything again that is not ok.")
]
MaxLatency = Annotated[
    float | None, typer.Option("--max-latency-ms", metavar="MS", help="Recommend only what is at most that slow.")
]
Percentile = Annotated[
    str | None,
    typer.Option("--latency-percentile", metavar="P", help="Of --max-latency-ms: p50, p90, p95 or p99. [default: p95]"),
]
MemoryBudget = Annotated[
    str | None, typer.Option("--max-memory", metavar="SIZE", help="Recommend only what takes at most that, as 12GB.")
]
MaxLoss = Annotated[
    float | None, typer.Option("--max-accuracy-loss", metavar="X", help="Recommend only what loses at most that.")
]
Metric = Annotated[
    str | None, typer.Option("--accuracy-metric", metavar="NAME", help="Of --max-accuracy-loss. [default: cosine]")
]
MetricDirection = Annotated[
    str | None,
    typer.Option(
        "--accuracy-direction",
        metavar="higher|lower",
        help="Which values of --accuracy-metric are better, where it is your own.",
    ),
]
MaxEnergy = Annotated[
    float | None, typer.Option("--max-energy-per-item-j", metavar="J", help="Recommend only what takes at most that.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="CELL",
        help="What speed-ups are against: BACKEND[/MODE][/PRECISION]. [default: the first]",
    ),
]
Charts = Annotated[
    bool | None,
    typer.Option(
        "--charts/--no-charts", help="Draw charts: PNG and a page. [default: where Altair is]", show_default=False
    ),
]


InputShape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=DIMxDIM…",
        help="Of an input that the model leaves open, as image=batchx3x224x224. Again for more.",
    ),
]


def check_utf8(arguments: Sequence[str]) -> None:
    """Refuse what no JSON could name, before anything is measured. Raises `UsageError`."""
    for what in (*arguments, str(Path.cwd())):
        if (shown := what.encode("utf-8", "backslashreplace").decode()) != what:
            raise UsageError(f"{shown} is no UTF-8 text, which results could not hold; rename it")


def shapes_of(texts: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
    """`image=batchx3x224x224`, or with commas: numbers, and names of dimensions. Raises `UsageError`."""
    found: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        parts = [part.strip() for part in sizes.split("," if "," in sizes else "x")]
        if not equals or not name or not all(part.isdigit() or part.isidentifier() for part in parts):
            raise UsageError(f"--shape {text}: must be NAME=DIMxDIM…, as in image=batchx3x224x224")
        found[name] = tuple(int(part) if part.isdigit() else part for part in parts)
    return found


def words_of(text: str | None) -> list[str] | None:
    """`a,b` -> ["a", "b"]; None where the option was not given."""
    return None if text is None else list(split_commas(text))


def batch_sizes_of(text: str | None) -> list[int] | str | None:
    """Numbers, or a range for the suite to read."""
    parts = words_of(text)
    if text is None or parts is None or re.fullmatch(r"\d+\.\.\d+", text):
        return text
    if not parts or not all(part.isdigit() for part in parts):
        raise UsageError(f"--batch-size {text}: must be numbers, as in 1,8,32, or a range, as in 1..64")
    return [int(part) for part in parts]


def check_retry(*, retry_failed: bool, resume: bool) -> None:
    """Raise `UsageError` where there is nothing to retry."""
    if retry_failed and not resume:
        raise UsageError("--retry-failed goes with --resume")
