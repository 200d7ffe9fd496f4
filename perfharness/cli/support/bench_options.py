"""Options of `perfharness bench`, the suite that they make, and the exit code of what was measured."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfharness.backends.models import shapes_of
from perfharness.cli.support.options import command_line, split_commas
from perfharness.cli.support.settings import Verb, with_parameters
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.render.terminal.console import Console, say

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
    typer.Option(
        "--retry-failed",
        help="With --resume: run everything again that is not ok.",
        rich_help_panel=RESULTS,
        hidden=True,
    ),
]
Charts = Annotated[
    bool | None,
    typer.Option(
        "--charts/--no-charts",
        help="Draw charts: PNG and a page. [default: --charts]",
        show_default=False,
        rich_help_panel=RESULTS,
    ),
]
History = Annotated[
    bool,
    typer.Option("--history/--no-history", help="Add it to the history.", rich_help_panel=RESULTS, hidden=True),
]


def batch_sizes_of(text: str) -> list[int] | str:
    """Numbers, or a range for the suite to read. Raises `UsageError`."""
    if re.fullmatch(r"\d+\.\.\d+", text):
        return text
    parts = split_commas(text)
    if not parts or not all(part.isdigit() for part in parts):
        raise UsageError(f"--batch-size {text}: must be numbers, as in 1,8,32, or a range, as in 1..64")
    return [int(part) for part in parts]


@dataclass(frozen=True)
class SuiteOption:
    """An option that sets a key of a suite.

    Args:
        key: as `bench.load_suite` takes it.
        value: its placeholder; None: of its kind. Of a flag what switches it off.
    """

    key: str
    kind: Any
    value: str | None
    help: str

    def parameter(self, name: str, panel: str | None, *, hidden: bool) -> inspect.Parameter:
        """The parameter of a verb; None where it is not given."""
        flag = f"--{name.replace('_', '-')}"
        is_flag = self.kind is bool
        info = typer.Option(
            f"{flag}/{self.value}" if is_flag else flag,
            help=self.help,
            metavar=None if is_flag else self.value,
            rich_help_panel=panel,
            hidden=hidden,
            show_default=False,
        )
        kind = self.kind | None
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info])


_MODEL = "A file, a SavedModel folder, or module:function. Again for more."
_SHAPE = "Of an input that the model leaves open, as image=batchx3x224x224. Again for more."
_PASSES = "latency, telemetry, layers. [default: latency,telemetry]"
_BASELINE = "What speed-ups are against: BACKEND[/MODE][/PRECISION]. [default: the first]"
_OWN_METRIC = "Which values of --accuracy-metric are better, where it is your own."
_MAX_LATENCY = "Recommend only what is at most that slow; the target of --find-batch."
_PERCENTILE = "Of --max-latency-ms: p50, p90, p95 or p99. [default: p95; of --find-batch p99]"
_AT_MOST = "Recommend only what takes at most that."
PANELS: dict[str | None, dict[str, SuiteOption]] = {
    CASES: {
        "model": SuiteOption("models", list[str], "MODEL", _MODEL),
        "backend": SuiteOption("backends", list[str], "NAME[/MODE]", "Again for more; NAME/all for all its modes."),
        "precision": SuiteOption("precisions", str, "P,…", "fp32, tf32, fp16, bf16, int8. [default: fp32]"),
        "batch_size": SuiteOption("batch_sizes", str, "N,…", "As 1,8,32, or 1..64 for 1, 2, 4, ... 64. [default: 1]"),
        "shape": SuiteOption("shapes", list[str], "NAME=DIMxDIM…", _SHAPE),
        "device": SuiteOption("device", str, "auto|cpu|cuda", "[default: auto]"),
        "gpu": SuiteOption("run.gpu", str, "GPU", "UUID or index. [default: the first]"),
    },
    MEASURING: {
        "warmup": SuiteOption("latency.warmup", int, None, "Iterations before the timed ones. [default: 50]"),
        "iterations": SuiteOption("latency.iterations", int, None, "Timed iterations of a case. [default: 1000]"),
        "memory_limit": SuiteOption("measure.memory_limit", str, "SIZE", "No case may take more, as 12GB; enforced."),
        "passes": SuiteOption("measure.passes", str, "PASS,…", _PASSES),
        "equality": SuiteOption("equality", bool, "--no-equality", "Compare all outputs before any speed is measured."),
        "timeout": SuiteOption("run.timeout_s", float, "S", "Of a process. [default: 1800]"),
    },
    None: {
        "cool_down": SuiteOption("run.cool_down_c", float, "°C", "Begin each case when the GPU is at most that warm."),
        "cool_down_limit": SuiteOption("run.cool_down_limit_s", float, "S", "Wait at most that long. [default: 300]"),
        "seed": SuiteOption("run.seed", int, None, "Of the order of the cases. [default: 1]"),
        "shuffle": SuiteOption("run.shuffle", bool, "--in-order", "[default: shuffle]"),
    },
    RESULTS: {"baseline": SuiteOption("baseline", str, "CELL", _BASELINE)},
    RECOMMENDATION: {
        "max_latency_ms": SuiteOption("constraints.max_latency_ms", float, "MS", _MAX_LATENCY),
        "latency_percentile": SuiteOption("constraints.latency_percentile", str, "P", _PERCENTILE),
        "max_accuracy_loss": SuiteOption(
            "constraints.max_accuracy_loss", float, "X", "Recommend only what loses at most that."
        ),
        "accuracy_metric": SuiteOption(
            "constraints.accuracy_metric", str, "NAME", "Of --max-accuracy-loss. [default: cosine]"
        ),
        "accuracy_direction": SuiteOption("constraints.accuracy_direction", str, "higher|lower", _OWN_METRIC),
        "max_energy_per_item_j": SuiteOption("constraints.max_energy_per_item_j", float, "J", _AT_MOST),
    },
}
RARE = {"warmup", "timeout", "cool_down", "cool_down_limit", "seed", "shuffle", "gpu", "baseline", "latency_percentile",
        "max_accuracy_loss", "accuracy_metric", "accuracy_direction", "max_energy_per_item_j"}  # fmt: skip
"""Options that only `--help-all` shows; most people set them in SUITE.toml."""

READ: dict[str, Callable[[Any], Any]] = {
    "precisions": split_commas,
    "measure.passes": split_commas,
    "batch_sizes": batch_sizes_of,
    "shapes": shapes_of,
}
"""How the text of an option is read, by its key."""


def with_suite_options(verb: Verb) -> Verb:
    """Give the verb all of them, in place of its `**options`."""
    parameters = [
        option.parameter(name, panel, hidden=name in RARE)
        for panel, options in PANELS.items()
        for name, option in options.items()
    ]
    return with_parameters(parameters)(verb)


def suite_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as keys of a suite, without those that were not given. Raises `UsageError`."""
    keys = {name: option.key for options in PANELS.values() for name, option in options.items()}
    found = {keys[name]: value for name, value in given.items() if value is not None}
    found = {key: READ[key](value) if key in READ else value for key, value in found.items()}
    if "measure.memory_limit" in found:
        found["constraints.memory_limit"] = found["measure.memory_limit"]
    return found


def check_utf8(arguments: Sequence[str]) -> None:
    """Refuse what no JSON could name, before anything is measured. Raises `UsageError`."""
    for what in (*arguments, str(Path.cwd())):
        if (shown := what.encode("utf-8", "backslashreplace").decode()) != what:
            raise UsageError(f"{shown} is no UTF-8 text, which results could not hold; rename it")


def check_retry(*, retry_failed: bool, resume: bool) -> None:
    """Raise `UsageError` where there is nothing to retry."""
    if retry_failed and not resume:
        raise UsageError("--retry-failed goes with --resume")


def resume_command() -> str:
    """The command line that goes on with this one."""
    return shlex.join([*(argument for argument in command_line() if argument != "--resume"), "--resume"])


def exit_code(statuses: Iterable[str], *, interrupted: bool, check_failed: bool = False) -> int:
    """1 where a process failed or all was interrupted, 3 where nothing could be measured or a check failed, else 0."""
    from perfharness.analysis.suites.bench_figures import cases_exit_code

    return cases_exit_code(statuses, interrupted=interrupted, check_failed=check_failed)


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
