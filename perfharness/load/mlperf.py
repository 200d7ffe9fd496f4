"""`perfharness mlperf` as a function: a test of MLPerf LoadGen (MLCommons' `mlperf_loadgen`) on a model in any backend.

The test runs in a launched, traced process (`mlperf_worker`); its logs are read here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Literal

from pydantic import ValidationError, field_validator

from perfharness.backends import Device, DeviceChoice, backend, backend_and_mode
from perfharness.backends.models import model_source, shapes_of
from perfharness.bench.spec import CaseSpec
from perfharness.distribution import install_command
from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.files import read_model
from perfharness.load.models import ModelSpec
from perfharness.model.base import Settings
from perfharness.model.bench import Precision
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import MLPERF_NAME
from perfharness.model.mlperf import (
    DETAIL_LOG,
    LOGS,
    SUMMARY_LOG,
    SUT_NAME,
    MlperfMetric,
    MlperfPercentile,
    MlperfResult,
    SutRecord,
)
from perfharness.model.settings import option
from perfharness.model.units import NS_PER_MS
from perfharness.runs.files.json_files import write_json
from perfharness.runs.launch import LaunchResult, Observe, plan_launches, run_plan, unobserved
from perfharness_launcher.launch import FinishedRun
from perfharness_launcher.options import launch_options, sentences_of
from perfharness_launcher.plan import LaunchPlan

MODEL, TEST, DATA = "Model", "Test", "Data"
"""Groups of options in the help."""

Scenario = Literal["SingleStream", "MultiStream", "Server", "Offline"]

RANDOM = "random"

LAUNCH_SETTINGS = (
    "gpus", "gpu_offset", "cpu_bind", "require_exclusive", "timeout_s", "warmup_batches",
    "tracer", "nsys", "trace_os", "telemetry", "measure_idle_s", "cool_down_c", "cool_down_limit_s",
    "maximize_clocks", "output_dir", "history",
)  # fmt: skip
"""Settings of `perfharness launch` that apply to a LoadGen test: one process, on one GPU or none."""


class MlperfSettings(Settings):
    """Settings of LoadGen, of the system under test and of its data. None means LoadGen's default, or the value from
    the configuration files; a set value overrides these.
    """

    model: str
    """A model file, or `module:function`, as for `perfharness bench`."""

    backend: str = option("Runs the model, as in `perfharness bench`.", MODEL, "NAME[/MODE]", default="")
    precision: Precision = option("Precision of the model.", MODEL, default="fp32")
    device: DeviceChoice = option("auto: the GPU where there is one.", MODEL, default="auto")
    shape: tuple[str, ...] = option(
        "Shapes of inputs that leave dimensions open.", MODEL, "NAME=DIMxDIM…,…", default=()
    )
    backend_option: tuple[str, ...] = option("Options of the backend.", MODEL, "NAME=VALUE,…", default=())
    threads: int | None = option("CPU threads of the backend.", MODEL, "N", ge=1)
    max_batch: int | None = option(
        "Maximum samples in one execution. [default: 1; MultiStream: those of a query]", MODEL, "N", ge=1
    )
    batch_timeout_ms: float = option(
        "Server: maximum wait of an incomplete batch for more samples; 0: no wait.",
        MODEL,
        "MS",
        flags="--batch-timeout",
        default=0.0,
        ge=0,
        allow_inf_nan=False,
    )
    warmup_rounds: int = option("Executions of each session before the test.", MODEL, "N", default=5, ge=1)

    scenario: Scenario = option("LoadGen's scenario.", TEST, default="SingleStream")
    benchmark: str | None = option("Apply LoadGen's own rules of this benchmark, for example resnet50.", TEST, "NAME")
    user_conf: Path | None = option("LoadGen's user.conf.", TEST, "FILE")
    target_qps: float | None = option(
        "Server: queries issued per second; Offline: samples expected per second.", TEST, "X", gt=0, allow_inf_nan=False
    )
    target_latency_ms: float | None = option(
        "Server: latency limit; SingleStream, MultiStream: expected latency of a query.",
        TEST,
        "MS",
        flags="--target-latency",
        gt=0,
        allow_inf_nan=False,
    )
    min_duration_s: float | None = option(
        "Run at least this long.", TEST, "SECONDS", flags="--min-duration", ge=0, allow_inf_nan=False
    )
    max_duration_s: float | None = option(
        "Stop after this time; the result is then INVALID.",
        TEST,
        "SECONDS",
        flags="--max-duration",
        ge=0,
        allow_inf_nan=False,
    )
    min_queries: int | None = option("Send at least N queries.", TEST, "N", ge=1)
    max_queries: int | None = option("Send at most N queries.", TEST, "N", ge=1)
    samples_per_query: int | None = option("MultiStream: samples in each query. [default: 8]", TEST, "N", ge=1)
    seed: int | None = option(
        "Sets LoadGen's three seeds. [default: those of LoadGen or its files]", TEST, "N", ge=0, allow_inf_nan=False
    )
    dataset: str = option(
        "random, an .npz with an array of samples for each input, or a function.",
        DATA,
        "FILE.npz|module:function",
        default=RANDOM,
    )
    samples: int | None = option("Use the first N samples. [default: all; random: 64]", DATA, "N", ge=1)
    performance_samples: int | None = option(
        "Samples that LoadGen holds in memory. [default: all, at most 1024]", DATA, "N", ge=1
    )

    expected_rate: float | None = None
    """Expected samples per second for LoadGen, from a first attempt; None: measured before the test."""

    @field_validator("shape", "backend_option", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Split `a,b` into two."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return tuple(value) if isinstance(value, list) else value

    @property
    def is_ours(self) -> bool:
        """Whether perfharness chooses the expected rate or latency for LoadGen."""
        return self.user_conf is None and self.asked_target is None

    @property
    def asked_target(self) -> float | None:
        """The expected rate or latency from the options."""
        return self.target_qps if self.scenario in ("Server", "Offline") else self.target_latency_ms

    @property
    def query_samples(self) -> int:
        """Samples in a query, according to the options."""
        return (self.samples_per_query or 8) if self.scenario == "MultiStream" else 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes that are executed, ascending; for Server, with batches of any size, powers of two."""
        largest = self.max_batch or self.query_samples
        if self.scenario != "Server":
            return (largest,)
        return (*(1 << power for power in range((largest - 1).bit_length())), largest)

    @property
    def model_spec(self) -> ModelSpec:
        """Settings of the model. Raises `UsageError`."""
        name, mode = backend_and_mode(self.backend)
        shapes = shapes_of(self.shape)
        return ModelSpec(backend=name, mode=mode, device=self.device, precision=self.precision, shapes=shapes)

    def case_spec(self, device: Device, batch_size: int = 1) -> CaseSpec:
        """The model as a case of `bench`. Raises `UsageError`."""
        model_source(self.model)
        extra = {}
        for text in self.backend_option:
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise UsageError(f"--backend-option {text}: must be NAME=VALUE")
            extra[key] = value
        more = {"threads": self.threads, "extra": extra, "seed": self.seed or 0}
        return self.model_spec.case_spec(self.model, device, batch_size, **more)


def check_settings(settings: MlperfSettings) -> None:
    """Raise `UsageError` if settings contradict each other or name something that does not exist."""
    if not settings.backend:
        raise UsageError("name a --backend, as in --backend onnxruntime")
    backend(settings.case_spec("cpu").case.backend)
    dataset = Path(settings.dataset) if settings.dataset.endswith(".npz") else None
    for flag, path in (("--user-conf", settings.user_conf), ("--dataset", dataset)):
        if path is not None and not path.is_file():
            raise UsageError(f"{flag}: file {path} not found")
    scenario, is_rate = settings.scenario, settings.scenario in ("Server", "Offline")
    contradictions = {
        "--batch-timeout: only for Server": settings.batch_timeout_ms and scenario != "Server",
        "--samples-per-query: only for MultiStream": settings.samples_per_query and scenario != "MultiStream",
        f"--target-qps: only for Server and Offline, not {scenario}": settings.target_qps and not is_rate,
        "--target-latency: not for Offline": settings.target_latency_ms and scenario == "Offline",
        "--min-duration is above --max-duration": (settings.min_duration_s or 0) > (settings.max_duration_s or inf),
        "--min-queries is above --max-queries": (settings.min_queries or 0) > (settings.max_queries or inf),
    }
    for problem, is_so in contradictions.items():
        if is_so:
            raise UsageError(problem)
    if settings.user_conf is not None or settings.benchmark is not None:
        with TemporaryDirectory() as folder:
            apply_rules(loadgen().TestSettings(), settings, Path(folder))


def loadgen() -> ModuleType:
    """The library. Raises `ToolNotFoundError` if it is not installed."""
    try:
        import mlperf_loadgen
    except ImportError as error:
        raise ToolNotFoundError(
            f"MLPerf LoadGen is not installed ({error}); {install_command('mlperf')}, with CPython 3.10 to 3.13"
        ) from error
    module: ModuleType = mlperf_loadgen
    return module


def apply_rules(made: Any, settings: MlperfSettings, folder: Path) -> None:
    """Apply LoadGen's rules of a benchmark, and user.conf, which is copied into the folder; LoadGen needs the file."""
    copy = folder / "user.conf"
    copy.write_bytes(b"" if settings.user_conf is None else settings.user_conf.read_bytes())
    if code := made.FromConfig(str(copy), settings.benchmark or "*", settings.scenario):
        raise UsageError(f"--user-conf {settings.user_conf}: LoadGen cannot read it, code {code}")


# ---- LoadGen's log ----

MLLOG = ":::MLLOG "
CONSTRAINTS = {
    "result_perf_constraints_met": "Performance constraints",
    "result_min_duration_met": "Min duration",
    "result_min_queries_met": "Min queries",
    "early_stopping_met": "Early stopping",
}
RATES = {
    "Server": ("Completed samples per second", "result_completed_samples_per_sec"),
    "Offline": ("Samples per second", "result_samples_per_second"),
}


@dataclass(frozen=True)
class Detail:
    """`mlperf_log_detail.txt`: the last value of each key, and the messages."""

    values: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problem: str | None = None
    """Why the file could not be read."""

    def starting(self, prefix: str) -> dict[str, Any]:
        """Values of the keys with this prefix, by the rest of the key."""
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}

    def lines(self, key: str) -> list[str]:
        """The parts of a text that LoadGen wrote as a list."""
        return [part.strip() for part in self.values.get(key, "").split("* ") if part.strip()]


def read_detail(path: Path) -> Detail:
    """Settings, results and messages; skips lines of other programs and an incomplete line."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        return Detail(problem=f"{path} cannot be read: {error.strerror}; LoadGen did not write it")
    found = Detail()
    for line in lines:
        if not line.startswith(MLLOG):
            continue
        try:
            entry = json.loads(line[len(MLLOG) :])
            key, value, meta = entry["key"], entry["value"], entry["metadata"]
        except (ValueError, KeyError, TypeError):
            continue
        found.values[key] = value
        for kind, messages in (("is_error", found.errors), ("is_warning", found.warnings)):
            if meta.get(kind):
                messages.append(f"{key}: {value}")
    return found


# ---- the test ----

WORKER = "perfharness.load.mlperf_worker"
LEAST_BEYOND = 10
"""Minimum number of values beyond a percentile."""

PADDING_SHARE = 0.01
"""Share of the executed rows; less is the last batch of an odd number of samples, at no cost."""

PERCENTS = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
"""The percentiles that LoadGen reports."""


@dataclass(frozen=True, repr=False)
class MlperfRun:
    """A completed test.

    Attributes:
        launch: the run, with tables, stages and telemetry like any run.
        result: the result from LoadGen's logs.
    """

    launch: LaunchResult
    result: MlperfResult

    def __repr__(self) -> str:
        return f"<MlperfRun {self.launch.folder}: {self.result.status}>"

    @property
    def findings(self) -> list[Finding]:
        """The findings of the run and of the test."""
        return [*self.launch.findings, *self.result.findings]


@dataclass(frozen=True)
class MlperfPlan:
    """A checked test."""

    settings: MlperfSettings
    launch: LaunchPlan
    given: Mapping[str, Any]
    """Settings of the launch."""


def run_mlperf(
    model: str, *, command: Sequence[str] | None = None, observe: Observe = unobserved, **settings: Any
) -> MlperfRun:
    """Run a test of MLPerf LoadGen on a model, as `perfharness mlperf` does.

    Args:
        model: a model file, or `module:function`.
        command: the command line, for the results.
        observe: opens an observer of the launch.
        settings: fields of `MlperfSettings`, for example `backend="onnxruntime", scenario="Offline",
            min_duration_s=60`, and of the launch, for example `output_dir="out", tracer="embedded"`.

    Raises:
        UsageError: a setting does not exist, has a wrong type, or contradicts another or the machine.
        ToolNotFoundError: LoadGen is not installed.
        LaunchError: the process could not be started.
    """
    return run_test(plan_mlperf(model, settings), command, observe)


def plan_mlperf(model: str, given: Mapping[str, Any]) -> MlperfPlan:
    """Make all checks that are possible before the start. Raises as `run_mlperf`."""
    own = {name: value for name, value in given.items() if name in MlperfSettings.model_fields}
    others = {name: value for name, value in given.items() if name not in own}
    if unknown := sorted(set(others) - set(LAUNCH_SETTINGS)):
        raise UsageError(f"the setting {unknown[0]} does not exist")
    try:
        settings = MlperfSettings(model=model, **own)
    except ValidationError as error:
        raise UsageError("\n".join(sentences_of(error))) from None
    loadgen()
    check_settings(settings)
    if settings.user_conf is not None:
        settings = settings.model_copy(update={"user_conf": settings.user_conf.absolute()})
    return _planned(settings, others)


def _planned(settings: MlperfSettings, given: Mapping[str, Any]) -> MlperfPlan:
    launch = {"warmup_batches": 0, **given, "module": True, "source": settings.model}
    (plan,) = plan_launches([launch_options(WORKER, [settings.model_dump_json(exclude_defaults=True)], launch)])
    return MlperfPlan(settings, plan, given)


def run_test(plan: MlperfPlan, command: Sequence[str] | None = None, observe: Observe = unobserved) -> MlperfRun:
    """Run a planned test, and read its logs. Raises as `run_mlperf`.

    A test that is INVALID because the rate measured by perfharness was wrong is repeated once.
    """
    words = ["perfharness", "mlperf", plan.settings.model] if command is None else command
    first = _run_once(plan, words, observe)
    rate = _rate_for_another(first.result, plan.settings)
    if rate is None:
        return first
    own = plan.settings.model_copy(update={"expected_rate": rate})
    return _run_once(_planned(own, plan.given), words, observe)


def _run_once(plan: MlperfPlan, words: Sequence[str], observe: Observe) -> MlperfRun:
    found: list[MlperfResult] = []

    def complete(run: FinishedRun) -> None:
        found.append(read_result(plan, run.folder / plan.launch.processes[0].folder, run.folder, words))
        write_json(run.folder / MLPERF_NAME, found[0].model_dump(mode="json"))

    with observe(plan.launch) as observer:
        return MlperfRun(run_plan(plan.launch, words, observer, complete=complete), found[0])


def _rate_for_another(result: MlperfResult, settings: MlperfSettings) -> float | None:
    """Samples per second for another attempt if our rate made the test too short, or Server too late.

    None: neither, or this was the second attempt.
    """
    is_ours = settings.is_ours and settings.expected_rate is None
    if not is_ours or not {"Min duration", "Min queries", "Performance constraints"} & set(result.invalid_reasons):
        return None
    if settings.scenario in RATES:
        return None if result.metric is None else result.metric.value
    return settings.query_samples * 1e3 / result.mean_latency_ms if result.mean_latency_ms else None


def read_result(plan: MlperfPlan, folder: Path, run_folder: Path, command: Sequence[str]) -> MlperfResult:
    """The result from the logs in a process's folder, as far as there are any."""
    settings, logs = plan.settings, folder / LOGS
    sut, detail = read_model(logs / SUT_NAME, SutRecord), read_detail(logs / DETAIL_LOG)
    reported = detail.starting("result_")
    queries = reported.get("query_count")
    result = MlperfResult(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        status="failed" if sut is None else sut.status,
        scenario=settings.scenario,
        model=settings.model,
        backend=settings.backend,
        asked=settings.model_dump(mode="json", exclude_defaults=True),
        sut=sut,
        validity=reported.get("validity"),
        invalid_reasons=[name for key, name in CONSTRAINTS.items() if detail.values.get(key) is False],
        recommendations=detail.lines("result_invalid_reason"),
        early_stopping=detail.lines("early_stopping_result"),
        metric=_metric(settings.scenario, detail.values),
        queries=queries,
        percentiles=percentiles_of(settings.scenario, reported, queries),
        mean_latency_ms=_ms(reported.get("mean_query_latency_ns", reported.get("mean_latency_ns"))),
        over_latency=reported.get("overlatency_query_count"),
        settings=detail.starting("effective_"),
        reported=reported,
        loadgen_errors=detail.errors,
        loadgen_warnings=detail.warnings,
        logs={
            name: str((logs / name).relative_to(run_folder))
            for name in (SUMMARY_LOG, DETAIL_LOG, "user.conf")
            if (logs / name).is_file()
        },
    )
    return result.model_copy(update={"findings": list(_findings(result, settings, detail.problem))})


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NS_PER_MS


def _percentile(scenario: str, percent: float) -> str:
    """Key of LoadGen's latency of a query."""
    return f"{percent:.2f}_percentile_{'per_query_' if scenario == 'MultiStream' else ''}latency_ns"


def _metric(scenario: str, values: Mapping[str, Any]) -> MlperfMetric | None:
    """The value that LoadGen's verdict is based on; None: not reported."""
    if scenario in RATES:
        name, key = RATES[scenario]
        return MlperfMetric(name=name, unit="samples per second", value=values[key]) if key in values else None
    percent = 100 * values.get("effective_target_latency_percentile", 0.0)
    value = values.get(f"result_{_percentile(scenario, percent)}")
    if value is None:
        return None
    which = "ss" if scenario == "SingleStream" else "ms"
    estimate = values.get(f"early_stopping_latency_{which}") or None  # 0: too few queries
    return MlperfMetric(
        name=f"{percent:.1f}th percentile latency",
        unit="ms",
        value=_ms(value),
        early_stopping_ms=_ms(estimate),
        reason=None if estimate else "too few queries for LoadGen's early stopping",
    )


def percentiles_of(scenario: str, reported: Mapping[str, Any], queries: int | None) -> list[MlperfPercentile]:
    """LoadGen's percentiles, if there are enough queries for them."""
    found = []
    for percent in PERCENTS:
        value, reason = reported.get(_percentile(scenario, percent)), None
        if value is None or queries is None:
            value, reason = None, "not reported by LoadGen"
        elif (beyond := round(queries * (100 - percent) / 100, 6)) < LEAST_BEYOND:
            value, reason = None, f"{queries} queries, {beyond:.3g} of them beyond it; {LEAST_BEYOND} are needed"
        found.append(MlperfPercentile(percent=percent, latency_ms=_ms(value), reason=reason))
    return found


def _findings(result: MlperfResult, settings: MlperfSettings, problem: str | None) -> Iterator[Finding]:
    sut = result.sut or SutRecord(problem="its process ended without a report")
    if result.status != "ok":
        why = f"The test did not finish: {sut.problem or result.status}"
        yield Finding("mlperf-incomplete", Severity.ERROR, why, "See stderr.log of the process")
    elif problem is not None:
        yield Finding("mlperf-incomplete", Severity.ERROR, f"A log of LoadGen is missing or damaged: {problem}")
    if result.validity == "INVALID":
        told = [f"{name} was {value:.4g}: perfharness measured it before the test." for name, value in sut.told.items()]
        yield Finding(
            "mlperf-invalid",
            Severity.ERROR,
            f"LoadGen's verdict is INVALID. Not satisfied: {', '.join(result.invalid_reasons) or 'not stated'}",
            " ".join([*result.recommendations, *result.early_stopping, *told]),
        )
    if sut.errors:
        kinds = ", ".join(f"{count} {kind} ({sut.first_errors.get(kind, '')})" for kind, count in sut.errors.items())
        yield Finding(
            "mlperf-failed-samples",
            Severity.ERROR,
            f"{sum(sut.errors.values())} samples failed with their batches: {kinds}",
            "LoadGen counts failed samples as answered: its figures are wrong",
        )
    if result.loadgen_errors:
        yield Finding(
            "mlperf-incomplete",
            Severity.WARNING,
            f"LoadGen logged {len(result.loadgen_errors)} errors, the first: {result.loadgen_errors[0]}",
            "mlperf_log_detail.txt has all of them",
        )
    if settings.expected_rate is not None:
        yield Finding(
            "mlperf-tried-again",
            Severity.NOTE,
            "The test ran twice: the first was INVALID because the rate measured by perfharness was wrong.",
            "The first test is in the folder previous; set the expectation with --target-qps or --target-latency",
        )
    rows = sut.samples + sut.padding
    if sut.padding and sut.padding >= PADDING_SHARE * rows:
        yield Finding(
            "mlperf-rules",
            Severity.NOTE,
            f"{sut.padding / rows:.0%} of the executed rows were padding: batches were smaller than the session",
            "Use a smaller --max-batch",
        )
    wanted = result.settings.get("performance_sample_count")
    if sut.data_samples is not None and wanted is not None and wanted > sut.data_samples:
        yield Finding(
            "mlperf-rules",
            Severity.WARNING,
            f"The rules draw from {wanted} samples, but the data set has {sut.data_samples}",
            "Use the benchmark's own data set (--dataset)",
        )
    if sut.overridden:
        names = ", ".join(f"{name} {before:g} → {now:g}" for name, (before, now) in sut.overridden.items())
        yield Finding(
            "mlperf-rules",
            Severity.WARNING,
            f"Settings differ from LoadGen's rules and user.conf: {names}",
            "Drop these options to keep the rules",
        )
    elif settings.benchmark is None and settings.user_conf is None:
        yield Finding(
            "mlperf-rules",
            Severity.NOTE,
            "No benchmark rules were applied: the verdict is based on LoadGen's defaults and the options",
            "Apply the rules of a benchmark, for example --benchmark resnet50",
        )
