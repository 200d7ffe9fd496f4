"""Options that verbs of `perfharness bench` share, the suite that they make, and the exit code of what was measured."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperOption

from perfharness.cli.help import GroupedCommand
from perfharness.cli.options import EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK, split_commas
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.render.terminal.console import Console

if TYPE_CHECKING:
    from perfharness.render.charts.drawing import Picture

CASES = "Cases"
MEASURING = "Measuring"
RESULTS = "Results"
RECOMMENDATION = "Recommendation"

SuiteArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[SUITE.toml]", help="The suite; or name models and backends.", show_default=False),
]
OutputDir = Annotated[Path, typer.Option("-o", "--output-dir", help="Folder of the results.", rich_help_panel=RESULTS)]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A file, a SavedModel folder, or module:function. Again for more.",
        rich_help_panel=CASES,
    ),
]
Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        metavar="NAME[/MODE]",
        help="Again for more; NAME/all for all its modes.",
        rich_help_panel=CASES,
    ),
]
Precisions = Annotated[
    str | None,
    typer.Option(
        "--precision", metavar="P,…", help="fp32, tf32, fp16, bf16, int8. [default: fp32]", rich_help_panel=CASES
    ),
]
InputShape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=DIMxDIM…",
        help="Of an input that the model leaves open, as image=batchx3x224x224. Again for more.",
        rich_help_panel=CASES,
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="auto|cpu|cuda", help="[default: auto]", rich_help_panel=CASES)
]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="UUID or index. [default: the first]", rich_help_panel=CASES),
]
Warmup = Annotated[
    int | None,
    typer.Option("--warmup", min=0, help="Iterations before the timed ones. [default: 50]", rich_help_panel=MEASURING),
]
Iterations = Annotated[
    int | None,
    typer.Option("--iterations", min=1, help="Timed iterations of a case. [default: 1000]", rich_help_panel=MEASURING),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit", metavar="SIZE", help="No case may take more, as 12GB; enforced.", rich_help_panel=MEASURING
    ),
]
Passes = Annotated[
    str | None,
    typer.Option(
        "--passes",
        metavar="PASS,…",
        help="latency, telemetry, layers, instances, streams, stages. [default: latency,telemetry]",
        rich_help_panel=MEASURING,
    ),
]
CaseTimeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="S", help="Of a process. [default: 1800]", rich_help_panel=MEASURING),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Keep what is done in the folder, run what is left or failed for a passing reason.",
        rich_help_panel=RESULTS,
    ),
]
RetryFailed = Annotated[
    bool,
    typer.Option("--retry-failed", help="With --resume: run everything again that is not ok.", rich_help_panel=RESULTS),
]
Charts = Annotated[
    bool | None,
    typer.Option(
        "--charts/--no-charts",
        help="Draw charts: PNG and a page. [default: where Altair is]",
        show_default=False,
        rich_help_panel=RESULTS,
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="CELL",
        help="What speed-ups are against: BACKEND[/MODE][/PRECISION]. [default: the first]",
        rich_help_panel=RESULTS,
    ),
]
MaxLatency = Annotated[
    float | None,
    typer.Option(
        "--max-latency-ms",
        metavar="MS",
        help="Recommend only what is at most that slow.",
        rich_help_panel=RECOMMENDATION,
    ),
]
MaxLoss = Annotated[
    float | None,
    typer.Option(
        "--max-accuracy-loss",
        metavar="X",
        help="Recommend only what loses at most that.",
        rich_help_panel=RECOMMENDATION,
    ),
]
MemoryBudget = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="Recommend only what takes at most that, as 12GB.",
        rich_help_panel=RECOMMENDATION,
    ),
]
Percentile = Annotated[
    str | None,
    typer.Option(
        "--latency-percentile",
        metavar="P",
        help="Of --max-latency-ms: p50, p90, p95 or p99. [default: p95]",
        rich_help_panel=RECOMMENDATION,
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--accuracy-metric",
        metavar="NAME",
        help="Of --max-accuracy-loss. [default: cosine]",
        rich_help_panel=RECOMMENDATION,
    ),
]
MetricDirection = Annotated[
    str | None,
    typer.Option(
        "--accuracy-direction",
        metavar="higher|lower",
        help="Which values of --accuracy-metric are better, where it is your own.",
        rich_help_panel=RECOMMENDATION,
    ),
]
MaxEnergy = Annotated[
    float | None,
    typer.Option(
        "--max-energy-per-item-j",
        metavar="J",
        help="Recommend only what takes at most that.",
        rich_help_panel=RECOMMENDATION,
    ),
]

RARE = frozenset(
    {
        "warmup", "timeout", "cool_down", "cool_down_limit", "seed", "shuffle", "gpu", "retry_failed", "baseline",
        "latency_percentile", "max_accuracy_loss", "accuracy_metric", "accuracy_direction", "max_energy_per_item_j",
    }
)  # fmt: skip
"""Parameters that the help of `bench run` leaves out: keys of SUITE.toml, or options of `bench show`."""


class RareHidden(GroupedCommand):
    """A command whose rare options are taken, and not in its help."""

    rare = RARE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            if parameter.name in self.rare and isinstance(parameter, TyperOption):
                parameter.hidden = True


SUITE_KEYS = {
    "model": ("models",), "backend": ("backends",), "precision": ("precisions",), "batch_size": ("batch_sizes",),
    "shape": ("shapes",), "device": ("device",), "gpu": ("run.gpu",), "baseline": ("baseline",),
    "warmup": ("latency.warmup",), "iterations": ("latency.iterations",),
    "passes": ("measure.passes",), "instances": ("measure.instances",), "streams": ("measure.streams",),
    "memory_limit": ("measure.memory_limit", "constraints.memory_limit"),
    "timeout": ("run.timeout_s",), "cool_down": ("run.cool_down_c",), "cool_down_limit": ("run.cool_down_limit_s",),
    "seed": ("run.seed",), "shuffle": ("run.shuffle",),
    "max_latency_ms": ("constraints.max_latency_ms",), "latency_percentile": ("constraints.latency_percentile",),
    "max_accuracy_loss": ("constraints.max_accuracy_loss",), "accuracy_metric": ("constraints.accuracy_metric",),
    "accuracy_direction": ("constraints.accuracy_direction",),
    "max_energy_per_item_j": ("constraints.max_energy_per_item_j",),
}  # fmt: skip
"""Parameter of a verb -> keys of a suite, as `bench.load_suite` takes them."""


def suite_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a verb as keys of a suite, without those that were not given. Raises `UsageError`."""
    read = {"precision": words_of, "passes": words_of, "batch_size": batch_sizes_of, "shape": shapes_of}
    given = {name: value for name, value in parameters.items() if name in SUITE_KEYS and value is not None}
    return {
        key: read[name](value) if name in read else value for name, value in given.items() for key in SUITE_KEYS[name]
    }


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


def words_of(text: str) -> list[str]:
    """`a,b` -> ["a", "b"]."""
    return list(split_commas(text))


def batch_sizes_of(text: str) -> list[int] | str:
    """Numbers, or a range for the suite to read. Raises `UsageError`."""
    parts = words_of(text)
    if re.fullmatch(r"\d+\.\.\d+", text):
        return text
    if not parts or not all(part.isdigit() for part in parts):
        raise UsageError(f"--batch-size {text}: must be numbers, as in 1,8,32, or a range, as in 1..64")
    return [int(part) for part in parts]


def check_retry(*, retry_failed: bool, resume: bool) -> None:
    """Raise `UsageError` where there is nothing to retry."""
    if retry_failed and not resume:
        raise UsageError("--retry-failed goes with --resume")


def check_charts(asked: bool | None) -> None:
    """Asked for and impossible is an error before anything is started."""
    from perfharness.render.charts.drawing import require_charts

    if asked:
        require_charts("--charts")


def command_line() -> list[str]:
    """As in the results."""
    return ["perfharness", *sys.argv[1:]]


def resume_command() -> str:
    """The command line that goes on with this one."""
    return shlex.join([*(argument for argument in command_line() if argument != "--resume"), "--resume"])


def exit_code(statuses: Iterable[str], *, interrupted: bool, check_failed: bool = False) -> int:
    """1 where a process failed or all was interrupted, 3 where nothing could be measured or a check failed, else 0."""
    found = set(statuses)
    if interrupted or found & {"failed", "timeout", "not-run"}:
        return EXIT_FAILED
    return EXIT_CHECK_FAILED if check_failed or "ok" not in found else EXIT_OK


def say_drawn(console: Console, make: Callable[[], Sequence[Picture]], folder: Path, page: str) -> None:
    """Draw, and name the files; pictures that cannot be drawn do not take the numbers with them."""
    from perfharness.render.charts.drawing import draw

    try:
        written = draw(make(), folder, page)
    except PerfHarnessError as error:
        say(console, str(error))
        return
    if written:
        say(console, f"charts: {', '.join(path.name for path in written)}")


def say(console: Console, text: str) -> None:
    """A line as it is, however long."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
