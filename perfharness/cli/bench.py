"""`perfharness bench`: a suite of models, backends, precisions and batch sizes; `bench show` and `bench merge`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from perfharness.cli.bench_startup import start_up
from perfharness.cli.bench_sweep import sweep
from perfharness.cli.options import CONTEXT, EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK, split_commas
from perfharness.errors import PerfHarnessError, UsageError

if TYPE_CHECKING:
    from perfharness.bench.suite import Suite
    from perfharness.model.bench_suite import BenchSuiteResult, Constraints
    from perfharness.model.manifest import GpuRecord

DEFAULT_OUT = Path("bench_out")
RUN = "run"


class DefaultsToRun(TyperGroup):
    """`bench suite.toml` means `bench run suite.toml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put the name of the verb in where none is given."""
        if not args or args[0] not in self.commands:
            args = [RUN, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb = typer.Typer(
        cls=DefaultsToRun,
        help="Models over backends, precisions and batch sizes: speed, memory, energy, accuracy.",
        context_settings=CONTEXT,
    )
    verb.command(RUN, context_settings=CONTEXT)(run)
    verb.command("sweep", context_settings=CONTEXT)(sweep)
    verb.command("start-up", context_settings=CONTEXT)(start_up)
    verb.command("show", context_settings=CONTEXT)(show)
    verb.command("merge", context_settings=CONTEXT)(merge)
    app.add_typer(verb, name="bench")


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
    typer.Option("--charts/--no-charts", help="Draw charts as PNG. [default: where matplotlib is]", show_default=False),
]


def run(
    suite: Annotated[
        Path | None,
        typer.Argument(metavar="[SUITE.toml]", help="The suite; or name models and backends.", show_default=False),
    ] = None,
    output_dir: Annotated[Path, typer.Option("-o", "--output-dir", help="Folder of the results.")] = DEFAULT_OUT,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="MODEL", help="A file, a SavedModel folder, or module:function. Again for more."
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", metavar="NAME[/MODE]", help="Again for more; NAME/all for all its modes."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", metavar="P,…", help="fp32, tf32, fp16, bf16, int8. [default: fp32]")
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option("--batch-size", metavar="N,…", help="As 1,8,32, or 1..64 for 1, 2, 4, ... 64. [default: 1]"),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", metavar="auto|cpu|cuda", help="[default: auto]")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="GPU", help="UUID or index. [default: the first]")] = None,
    warmup: Annotated[
        int | None, typer.Option("--warmup", min=0, help="Iterations before the timed ones. [default: 50]")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="Timed iterations of a case. [default: 1000]")
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="No case may take more, as 12GB; enforced, and the limit of what is recommended.",
        ),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            metavar="PASS,…",
            help="latency, telemetry, layers, instances, stages. [default: latency,telemetry]",
        ),
    ] = None,
    equality: Annotated[
        bool | None,
        typer.Option(
            "--equality/--no-equality", help="Compare all outputs before any speed is measured.", show_default=False
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="S", help="Of a case. [default: 1800]")] = None,
    cool_down: Annotated[
        float | None,
        typer.Option("--cool-down", metavar="°C", help="Begin each case when the GPU is at most that warm."),
    ] = None,
    cool_down_limit: Annotated[
        float | None, typer.Option("--cool-down-limit", metavar="S", help="Wait at most that long. [default: 300]")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the order of the cases. [default: 1]")] = None,
    shuffle: Annotated[
        bool | None, typer.Option("--shuffle/--in-order", help="[default: shuffle]", show_default=False)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Keep what is done in the folder, run what is left or failed for a passing reason."
        ),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: run everything again that is not ok.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the cases in their order, start nothing.")
    ] = False,
    baseline: Baseline = None,
    max_latency_ms: MaxLatency = None,
    latency_percentile: Percentile = None,
    max_accuracy_loss: MaxLoss = None,
    accuracy_metric: Metric = None,
    max_energy_per_item_j: MaxEnergy = None,
    charts: Charts = None,
) -> None:
    """Measure a model over backends, modes, precisions and batch sizes, each case in a process of its own.

    SUITE.toml and its keys: docs/bench.md. Flags go over what the suite says.

    `perfharness bench show DIR` prints the results again, under other constraints; `perfharness bench merge A B -o DIR`
    puts several machines' results side by side; `perfharness bench sweep` measures batch sizes until memory ends, or
    finds the largest within a latency target; `perfharness bench start-up` times cold and warm starts.

    Exit codes: 0 every case was measured or cannot run here; 1 interrupted, or none was measured; 2 the suite is wrong;
    3 some failed, or gave wrong answers.
    """
    flags: dict[str, Any] = {
        "models": model,
        "backends": backend,
        "precisions": _list(precision),
        "batch_sizes": _batch_sizes(batch_size),
        "device": device,
        "baseline": baseline,
        "latency.warmup": warmup,
        "latency.iterations": iterations,
        "measure.passes": _list(passes),
        "measure.memory_limit": memory_limit,
        "run.gpu": gpu,
        "run.timeout_s": timeout,
        "run.cool_down_c": cool_down,
        "run.cool_down_limit_s": cool_down_limit,
        "run.seed": seed,
        "run.shuffle": shuffle,
        "constraints.max_latency_ms": max_latency_ms,
        "constraints.latency_percentile": latency_percentile,
        "constraints.memory_limit": memory_limit,
        "constraints.max_accuracy_loss": max_accuracy_loss,
        "constraints.accuracy_metric": accuracy_metric,
        "constraints.max_energy_per_item_j": max_energy_per_item_j,
    }
    made = suite_of(suite, flags, equality)
    if retry_failed and not resume:
        raise UsageError("--retry-failed goes with --resume")
    raise typer.Exit(
        _run(made, output_dir, resume=resume, retry_failed=retry_failed, dry_run=dry_run, charts=_check_charts(charts))
    )


def suite_of(path: Path | None, flags: dict[str, Any], equality: bool | None) -> Suite:
    """The suite of a file with the flags over it."""
    from perfharness.bench.suite import read_suite
    from perfharness.bench.suite_check import make_suite

    if path is None and not (flags["models"] or flags["backends"]):
        raise UsageError("name a suite (perfharness bench suite.toml), or --model and --backend")
    content: dict[str, Any] = read_suite(path) if path is not None else {"folder": Path.cwd()}
    for key, value in flags.items():
        table, dot, name = key.rpartition(".")
        if value is None:
            continue
        if key in ("models", "backends"):
            content.pop(key[:-1], None)
        if dot:
            content[table] = {**content.get(table, {}), name: value}
        else:
            content[key] = value
    if equality is not None:
        kept = content.pop("equality", {})
        content |= {"equality": kept} if equality else {}
    return make_suite(content, str(path) if path is not None else "the command line")


def _run(suite: Suite, out: Path, *, resume: bool, retry_failed: bool, dry_run: bool, charts: bool | None) -> int:
    from perfharness.bench.matrix import default_baseline, plan_cases, shuffled
    from perfharness.bench.runner import RESUME_HINT, SuiteRun
    from perfharness.bench.store import prepare
    from perfharness.cli.bench_progress import SuiteProgress
    from perfharness.report.bench_table import print_suite
    from perfharness_launcher.gpus import find_gpus
    from perfharness_launcher.interrupts import noting_interrupts
    from perfharness_launcher.orphans import adopting_orphans

    console = Console()
    gpus = find_gpus()
    gpu = gpu_of(suite, gpus.gpus, gpus.problem)
    planned = plan_cases(suite, gpu)
    baseline = suite.baseline or default_baseline(suite, gpu)
    if dry_run:
        for case in shuffled(planned, suite.run.seed) if suite.run.shuffle else planned:
            _line(console, f"{case.case_id}: {case.refusal}" if case.refusal else case.case_id)
        return EXIT_OK
    prepare(out, resume=resume)
    with noting_interrupts() as interrupts, adopting_orphans(), SuiteProgress(console, interrupts) as progress:
        result = SuiteRun(
            suite,
            planned,
            out,
            baseline,
            _machine(gpus, gpu),
            interrupts,
            progress,
            retry_failed=retry_failed,
            command=["perfharness", *sys.argv[1:]],
        ).run()
    print_suite(console, result)
    if charts is not False:
        _draw(result, out, console)
    _line(console, f"results: {out.absolute()}")
    if not result.complete:
        left = sum(case.status == "not-run" for case in result.cases)
        _line(console, f"interrupted with {left} of {len(result.cases)} cases left; {RESUME_HINT}: {_resume_command()}")
    return exit_code_of(result)


def exit_code_of(result: BenchSuiteResult) -> int:
    """0 all well, 3 some not, 1 interrupted or nothing measured. What cannot run here is no failure."""
    if not result.complete or not any(case.status == "ok" for case in result.cases):
        return EXIT_FAILED
    from perfharness.analysis.bench_figures import gives_wrong_answers

    bad = any(case.status in ("failed", "timeout") or gives_wrong_answers(case) for case in result.cases)
    return EXIT_CHECK_FAILED if bad else EXIT_OK


def _resume_command() -> str:
    arguments = [argument for argument in sys.argv[1:] if argument != "--resume"]
    return shlex.join(["perfharness", *arguments, "--resume"])


def gpu_of(suite: Suite, gpus: tuple[GpuRecord, ...], problem: str | None) -> GpuRecord | None:
    """The GPU that the suite's CUDA cases run on; None where there is none, or all run on the CPU."""
    import os

    from perfharness_launcher.gpus import choose_gpus

    if suite.run.gpu is not None and not gpus:
        raise UsageError(f"--gpu {suite.run.gpu}: {problem}")
    if not gpus or (suite.device == "cpu" and all(one.device != "cuda" for one in suite.backend)):
        return None
    names = (suite.run.gpu,) if suite.run.gpu is not None else ()
    return choose_gpus(gpus, names=names, visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"))[0]


def _machine(gpus: Any, gpu: GpuRecord | None) -> Any:
    import platform
    import socket

    from perfharness.model.bench import MachineRecord
    from perfharness.model.version import VERSION
    from perfharness_launcher.environment import cpu_model

    return MachineRecord(
        hostname=socket.gethostname(),
        cpu=cpu_model(),
        gpus=[gpu.name or gpu.uuid] if gpu is not None else [],
        driver=gpus.driver,
        python=platform.python_version(),
        perfharness=VERSION,
    )


def show(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `perfharness bench -o` wrote.", show_default=False)
    ],
    baseline: Baseline = None,
    max_latency_ms: MaxLatency = None,
    latency_percentile: Percentile = None,
    max_memory: MemoryBudget = None,
    max_accuracy_loss: MaxLoss = None,
    accuracy_metric: Metric = None,
    max_energy_per_item_j: MaxEnergy = None,
    charts: Charts = None,
) -> None:
    """Print the results of a suite again, under other constraints or against another baseline. Measures nothing."""
    from perfharness.analysis.recommendation import recommend
    from perfharness.bench.store import read_suite_result
    from perfharness.report.bench_table import print_suite

    suite = read_suite_result(folder)
    constraints = _constraints(
        suite.constraints,
        max_latency_ms=max_latency_ms,
        latency_percentile=latency_percentile,
        memory_limit=max_memory,
        max_accuracy_loss=max_accuracy_loss,
        accuracy_metric=accuracy_metric,
        max_energy_per_item_j=max_energy_per_item_j,
    )
    if baseline is not None:
        _check_baseline(suite, baseline)
    base = baseline or suite.baseline
    suite = suite.model_copy(
        update={
            "constraints": constraints,
            "baseline": base,
            "recommendations": recommend(suite.cases, constraints, base),
        }
    )
    console = Console()
    print_suite(console, suite)
    if _check_charts(charts):
        _draw(suite, folder if folder.is_dir() else folder.parent, console)


def _constraints(known: Constraints, **given: Any) -> Constraints:
    """Those of the suite with others over them."""
    from pydantic import ValidationError

    from perfharness.bench.suite import ConstraintsTable
    from perfharness.bench.suite_check import in_words

    kept = known.model_dump(exclude={"memory_limit_bytes"}) | {"memory_limit": known.memory_limit_bytes}
    try:
        table = ConstraintsTable.model_validate(
            kept | {key: value for key, value in given.items() if value is not None}
        )
    except ValidationError as error:
        raise UsageError(in_words(error.errors()[0])) from error
    return table.constraints()


def _check_baseline(suite: BenchSuiteResult, name: str) -> None:
    from perfharness.analysis.bench_figures import cell_of, is_named

    if not any(is_named(case.case, name) for case in suite.cases):
        cells = ", ".join(dict.fromkeys(cell_of(case.case) for case in suite.cases))
        raise UsageError(f"--baseline {name!r} is no cell of these results; there are: {cells}")


def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Results of `perfharness bench`, two at least.", show_default=False),
    ],
    output_dir: Annotated[
        Path, typer.Option("-o", "--output-dir", help="Folder of the comparison.", show_default=False)
    ],
    charts: Charts = None,
) -> None:
    """Put results of several machines side by side: the same cases in one row, each machine against its own baseline.

    Exit codes: 0 done; 2 fewer than two results; 3 done, and versions or models differ.
    """
    from perfharness.bench.merge import merge_suites, write_merged
    from perfharness.bench.store import read_suite_result
    from perfharness.report.bench_merge_table import print_merged

    _check_charts(charts)
    if len(folders) < 2:
        raise UsageError("bench merge needs results of two runs at least")
    merged = merge_suites([(str(folder), read_suite_result(folder)) for folder in folders])
    write_merged(output_dir, merged)
    console = Console()
    print_merged(console, merged)
    if charts is not False:
        _draw_merged(merged, output_dir, console)
    _line(console, f"results: {output_dir.absolute()}")
    raise typer.Exit(EXIT_CHECK_FAILED if merged.differences else EXIT_OK)


def _draw(suite: BenchSuiteResult, folder: Path, console: Console) -> None:
    from perfharness.report.bench_charts import draw_charts

    _say_drawn(console, lambda: draw_charts(suite, folder))


def _draw_merged(merged: Any, folder: Path, console: Console) -> None:
    from perfharness.report.bench_charts import draw_merged

    _say_drawn(console, lambda: draw_merged(merged, folder))


def _say_drawn(console: Console, draw: Any) -> None:
    try:
        written = draw()
    except PerfHarnessError as error:
        _line(console, str(error))
        return
    _line(console, f"charts: {', '.join(path.name for path in written)}")


def _check_charts(asked: bool | None) -> bool | None:
    """Asked for and impossible is an error before anything is started."""
    from perfharness.report.pictures import require_matplotlib

    if asked:
        require_matplotlib("--charts")
    return asked


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _list(text: str | None) -> list[str] | None:
    return None if text is None else list(split_commas(text))


def _batch_sizes(text: str | None) -> list[int] | str | None:
    """Numbers, or a range for the suite to read."""
    parts = _list(text)
    if text is None or parts is None or re.fullmatch(r"\d+\.\.\d+", text):
        return text
    if not parts or not all(part.isdigit() for part in parts):
        raise UsageError(f"--batch-size {text}: must be numbers, as in 1,8,32, or a range, as in 1..64")
    return [int(part) for part in parts]
