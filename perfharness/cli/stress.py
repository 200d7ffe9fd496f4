"""`perfharness stress`: load-test a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.limits import are_kept, limits_of
from perfharness.cli.support.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_FAILED, command_line, exit_code
from perfharness.cli.support.output import FullOutput, Output, results_line
from perfharness.cli.support.settings import given, with_settings
from perfharness.load.profile import LAUNCH_SETTINGS
from perfharness.model.settings import option
from perfharness_launcher.options import LaunchOptions

if TYPE_CHECKING:
    from perfharness.load.stress import StressResult
    from perfharness.runs.comparison.limits import Limit
    from perfharness_launcher.plan import LaunchPlan

LOAD = "Load"
MODEL_PANEL = "Model"
LIMITS = "Limits"
HTTP = "HTTP"


SHOWN = {
    "profile", "start", "rate", "rates", "arrivals", "concurrency", "duration_s", "warmup_s", "backend", "objective",
    "fail_if", "num_processes", "output_dir", "format",
}  # fmt: skip

EPILOG = "docs/examples/load.toml has all settings of a profile."


class LoadSettings(BaseModel):
    """Options of the load; None keeps the value in the --profile file."""

    rate: float | None = option("Requests per second (open loop). Without it, a closed loop.", LOAD, "X", ge=0)
    rates: str | None = option(
        "Run several rates in turn, --duration each, and show which meet the objective.", LOAD, "N,N,…"
    )
    arrivals: str | None = option("When requests are due. [default: constant]", LOAD, "constant|poisson|bursty")
    concurrency: int | None = option("Concurrent requests per process. [default: 1]", LOAD, "N")
    duration_s: str | None = option("Duration of the load: 30s, 10m. [default: 10s]", LOAD, "TIME", flags="--duration")
    warmup_s: str | None = option(
        "Send the same load for this long first, not measured.", LOAD, "TIME", flags="--warm-up"
    )
    items: int | None = option("Items per request. [default: 1]", LOAD, flags="--batch-size", ge=1)
    input: Path | None = option("Content of each request: .npz, .npy, .json, .txt, .jsonl.", LOAD)
    seed: int | None = option("Seed of random arrivals. [default: 0]", LOAD)
    objective: str | None = option("Latency target: 50ms, p95=50ms, or p99<=1s,errors<=1%.", LIMITS, "[pN=]TIME")
    request_timeout_s: str | None = option(
        "Count a later response as an error.", LIMITS, "TIME", flags="--request-timeout"
    )
    grace_s: str | None = option("Wait this long for late responses. [default: 10s]", LIMITS, "TIME", flags="--grace")
    max_error_rate: float | None = option(
        "Largest share of errors; above it the run fails, and stops after 10 s.", LIMITS, "SHARE"
    )


class ModelSettings(BaseModel):
    """Options of a target that is a model."""

    backend: str | None = option("Run TARGET, a model, with this backend.", MODEL_PANEL, "NAME[/MODE]")
    device: str | None = option("auto: the GPU if there is one.", MODEL_PANEL, "auto|cpu|cuda")
    precision: str | None = option("Precision of the model.", MODEL_PANEL, "fp32|fp16|…")
    shape: list[str] = option("Shape of a dynamic input.", MODEL_PANEL, "NAME=DIMxDIM…", default=[])


class TargetSettings(BaseModel):
    """Options of the target, and --fail-if."""

    profile: Path | None = option("File with a table [load]; for a URL also [target].", LOAD, "FILE.toml")
    start: str | None = option("Start (and profile) this server command first.", HTTP, "COMMAND")
    expect_status: int | None = option("Status of a correct response.", HTTP)
    expect_text: str | None = option("Text in a correct response.", HTTP)
    fail_if: list[str] = option(
        "Exit with 3 if CONDITION is met: 'latency.p99 > 20ms', 'error_rate > 0.01'. Repeatable.",
        LIMITS,
        "CONDITION",
        default=[],
    )


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("stress", cls=GroupedCommand, context_settings=CONTEXT, epilog=EPILOG)(stress_verb)


@with_settings(LaunchOptions, only=LAUNCH_SETTINGS, shown=SHOWN)
def stress_verb(
    context: typer.Context,
    target: Annotated[str, argument("TARGET", "module:function, file.py:function, a model, or a URL.")],
    *,
    asked: TargetSettings,
    load: LoadSettings,
    model: ModelSettings,
    output: FullOutput,
    **settings: Any,
) -> None:
    """Put TARGET under load, traced: each request is a batch of the trace.

    Latency counts from when a request is due. Results go to stdout, progress and messages to stderr.

    Exit codes: 0 success; 1 a process failed; 2 usage; 3 there is an error finding, a --fail-if condition is met, or
    errors stopped the load.
    """
    from perfharness.backends.models import shapes_of
    from perfharness.cli.support.load_progress import LoadView
    from perfharness.load.stress import stress
    from perfharness.render.views.plan import headline

    def observing(plan: LaunchPlan) -> LoadView:
        output.message(headline(plan))
        return LoadView(output.messages)

    limits = limits_of(asked.fail_if)
    own = {**load.model_dump(exclude_none=True), **model.model_dump(exclude={"shape"}, exclude_none=True)}
    if model.shape:
        own["shapes"] = shapes_of(model.shape)
    result = stress(
        target,
        asked.profile,
        asked.start,
        asked.model_dump(include={"expect_status", "expect_text"}, exclude_none=True),
        observing,
        command=command_line(),
        **own,
        **given(context, settings),
    )
    raise typer.Exit(show_stress(result, output, limits))


def show_stress(result: StressResult, output: Output, limits: Sequence[Limit]) -> int:
    """Print results and findings of a load test, and return the exit code."""
    from perfharness.load.report import report_of
    from perfharness.render.views.diagnosis import diagnoses_of, diagnosis_view
    from perfharness.render.views.load import load_view

    output.document(result.load, load_view(report_of(result.load)))
    if output.verbose and not output.is_json:
        output.show(diagnosis_view(diagnoses_of(result.launch.summary.results)))
    output.findings(result.findings)
    output.message(results_line(result.launch.folder))
    if result.load.status == "stopped-by-errors":
        return EXIT_CHECK_FAILED
    if result.load.status != "ok" or not result.launch.all_processes_well:
        return EXIT_FAILED
    if not are_kept(result.launch.folder, limits, output):
        return EXIT_CHECK_FAILED
    return exit_code(result.findings)
