"""`perfharness mlperf`, callable: a test of LoadGen in a launched, traced process, and what its logs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from perfharness.errors import ResultError, UsageError
from perfharness.load.mlperf.loadgen import check_rules, loadgen
from perfharness.load.mlperf.logs import Detail, Summary, read_detail, read_summary
from perfharness.load.mlperf.settings import LAUNCH_SETTINGS, MlperfSettings, check_settings
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import MLPERF_NAME
from perfharness.model.mlperf import (
    DETAIL_LOG,
    LOGS,
    SUMMARY_LOG,
    SUT_NAME,
    TRACE_LOG,
    MlperfMetric,
    MlperfPercentile,
    MlperfResult,
    SutRecord,
    Validity,
)
from perfharness.model.units import NS_PER_MS
from perfharness.runs.files.json_files import write_json
from perfharness.runs.launch import LaunchResult, Observe, plan_launches, run_plan, unobserved
from perfharness_launcher.launch import FinishedRun
from perfharness_launcher.options import launch_options, sentences_of
from perfharness_launcher.plan import LaunchPlan

WORKER = "perfharness.load.mlperf.worker"
LEAST_BEYOND = 10
"""A percentile needs that many values beyond it."""

PADDING_SHARE = 0.01
"""Of the executed rows: less is the last batch of an odd number of samples, and costs nothing."""

PERCENTS = (50.0, 90.0, 95.0, 97.0, 99.0, 99.9)
"""That LoadGen reports."""

DEFAULTS: Mapping[str, Any] = {"warmup_batches": 0}
"""Where they are not those of `launch`: the system is warm before the test, whose batches all count."""


@dataclass(frozen=True, repr=False)
class MlperfRun:
    """A test that was run.

    Attributes:
        launch: the run: its tables, stages and telemetry are as of every run.
        result: what LoadGen found.
    """

    launch: LaunchResult
    result: MlperfResult

    def __repr__(self) -> str:
        return f"<MlperfRun {self.launch.folder}: {self.result.status}>"

    @property
    def findings(self) -> list[Finding]:
        """Of the run and of the test."""
        return [*self.launch.findings, *self.result.findings]


@dataclass(frozen=True)
class MlperfPlan:
    """A test, checked."""

    settings: MlperfSettings
    launch: LaunchPlan


def run_mlperf(
    model: str, *, command: Sequence[str] | None = None, observe: Observe = unobserved, **settings: Any
) -> MlperfRun:
    """Run a test of MLPerf LoadGen on a model; what `perfharness mlperf` does.

    Args:
        model: a model file, or `module:function`.
        command: the command line, for the results.
        observe: opens an observer of the launch.
        settings: fields of `MlperfSettings`, as `backend="onnxruntime", scenario="Offline", min_duration_s=60`, and of
            the launch, as `output_dir="out", tracer="embedded"`.

    Raises:
        UsageError: a setting does not exist, has a wrong type, or contradicts another or the machine.
        ToolNotFoundError: LoadGen is not installed.
        LaunchError: the process could not be started.
    """
    return run_test(plan_mlperf(model, settings), command, observe)


def plan_mlperf(model: str, given: Mapping[str, Any]) -> MlperfPlan:
    """Check everything that can be checked before anything starts. Raises as `mlperf`."""
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
    check_rules(settings)
    if settings.user_conf is not None:
        settings = settings.model_copy(update={"user_conf": settings.user_conf.absolute()})
    words = [settings.model_dump_json(exclude_defaults=True)]
    options = launch_options(WORKER, words, {**DEFAULTS, **others, "module": True, "source": model})
    (plan,) = plan_launches([options])
    return MlperfPlan(settings, plan)


def run_test(plan: MlperfPlan, command: Sequence[str] | None = None, observe: Observe = unobserved) -> MlperfRun:
    """Run a planned test, and read its logs. Raises as `mlperf`."""
    words = ["perfharness", "mlperf", plan.settings.model] if command is None else command
    found: list[MlperfResult] = []
    process = plan.launch.processes[0].folder

    def complete(run: FinishedRun) -> None:
        found.append(read_result(plan, run.folder / process, run.folder, words))
        write_json(run.folder / MLPERF_NAME, found[0].model_dump(mode="json"))

    with observe(plan.launch) as observer:
        launched = run_plan(plan.launch, words, observer, complete=complete)
    return MlperfRun(launched, found[0])


def read_result(plan: MlperfPlan, folder: Path, run_folder: Path, command: Sequence[str]) -> MlperfResult:
    """The result of the logs in a process's folder, whatever there is."""
    settings, logs = plan.settings, folder / LOGS
    sut = _sut(logs / SUT_NAME)
    summary, detail, problem = Summary(), Detail(), None
    try:
        detail = read_detail(logs / DETAIL_LOG)
        summary = read_summary(logs / SUMMARY_LOG)
    except ResultError as error:
        problem = str(error)
    status = sut.status if sut is not None else "failed"
    reported = detail.starting("result_")
    queries = reported.get("query_count")
    validity: Validity | None = summary.validity if summary.validity in get_args(Validity) else None  # type: ignore[assignment]
    result = MlperfResult(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        status=status,
        scenario=settings.scenario,
        model=settings.model,
        backend=settings.backend,
        asked=settings.model_dump(mode="json", exclude_defaults=True),
        sut=sut,
        validity=validity,
        invalid_reasons=summary.unsatisfied,
        recommendations=summary.recommendations,
        early_stopping=summary.early_stopping,
        metric=_metric(settings.scenario, summary, detail),
        queries=queries,
        percentiles=_percentiles(settings.scenario, reported, queries),
        mean_latency_ms=_ms(reported.get("mean_query_latency_ns", reported.get("mean_latency_ns"))),
        over_latency=reported.get("overlatency_query_count"),
        settings=detail.starting("effective_"),
        reported=reported,
        loadgen_errors=detail.errors,
        loadgen_warnings=detail.warnings,
        logs={
            name: str((logs / name).relative_to(run_folder))
            for name in (SUMMARY_LOG, DETAIL_LOG, TRACE_LOG, "user.conf")
            if (logs / name).is_file()
        },
    )
    return result.model_copy(update={"findings": list(_findings(result, plan, problem))})


def _sut(path: Path) -> SutRecord | None:
    try:
        return SutRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NS_PER_MS


def _metric(scenario: str, summary: Summary, detail: Detail) -> MlperfMetric | None:
    """What LoadGen judges by, in its own words; its detail log has the number with more digits."""
    if summary.headline is None:
        return None
    name, value = summary.headline
    if scenario in ("Server", "Offline"):
        key = "completed_samples_per_sec" if scenario == "Server" else "samples_per_second"
        return MlperfMetric(name=name, unit="samples per second", value=detail.values.get(f"result_{key}", value))
    key = "early_stopping_latency_ss" if scenario == "SingleStream" else "early_stopping_latency_ms"
    estimate = detail.values.get(key) or None  # 0: too few queries
    reason = None if estimate else "too few queries for LoadGen's early stopping"
    return MlperfMetric(
        name=name.replace("(ns)", "").strip(),
        unit="ms",
        value=_ms(value),
        early_stopping_ms=_ms(estimate),
        reason=reason,
    )


def _percentiles(scenario: str, reported: Mapping[str, Any], queries: int | None) -> list[MlperfPercentile]:
    """LoadGen's percentiles, as far as the number of queries supports them."""
    which = "percentile_per_query_latency_ns" if scenario == "MultiStream" else "percentile_latency_ns"
    found = []
    for percent in PERCENTS:
        value, reason = reported.get(f"{percent:.2f}_{which}"), None
        if value is None or queries is None:
            value, reason = None, "LoadGen reported none"
        elif (beyond := round(queries * (100 - percent) / 100, 6)) < LEAST_BEYOND:
            value, reason = None, f"{queries} queries, of which {beyond:.3g} are beyond it; it takes {LEAST_BEYOND}"
        found.append(MlperfPercentile(percent=percent, latency_ms=_ms(value), reason=reason))
    return found


def _findings(result: MlperfResult, plan: MlperfPlan, problem: str | None) -> Iterator[Finding]:
    """What a reader of the numbers has to know."""
    sut = result.sut
    if sut is None or result.status != "ok":
        why = "its process ended without a word" if sut is None else sut.problem or result.status
        hint = "stderr.log of the process has its last messages"
        yield Finding("mlperf-not-ended", Severity.ERROR, f"The test did not come to its end: {why}", hint)
    elif problem is not None:
        yield Finding("mlperf-log-unreadable", Severity.ERROR, f"A log of LoadGen is missing or damaged: {problem}")
    if result.validity == "INVALID":
        yield Finding(
            "mlperf-invalid",
            Severity.ERROR,
            f"LoadGen's verdict is INVALID; not satisfied: {', '.join(result.invalid_reasons) or 'it names nothing'}",
            " ".join([*result.recommendations, *result.early_stopping]),
        )
    if sut is not None and sut.errors:
        kinds = ", ".join(f"{count} {kind} ({sut.first_errors.get(kind, '')})" for kind, count in sut.errors.items())
        yield Finding(
            "mlperf-failed-samples",
            Severity.ERROR,
            f"{sum(sut.errors.values())} samples failed with their batches: {kinds}",
            "LoadGen counts them as answered, so its figures are not those of a system that works",
        )
    if result.loadgen_errors:
        yield Finding(
            "mlperf-loadgen-errors",
            Severity.WARNING,
            f"LoadGen logged {len(result.loadgen_errors)} errors, the first: {result.loadgen_errors[0]}",
            "mlperf_log_detail.txt has all of them",
        )
    yield from padding_findings(sut)
    wanted = result.settings.get("performance_sample_count")
    if sut is not None and sut.data_samples is not None and wanted is not None and wanted > sut.data_samples:
        yield Finding(
            "mlperf-few-samples",
            Severity.WARNING,
            f"The rules draw from {wanted} samples, and the data set has {sut.data_samples}",
            "give the benchmark's own data set with --dataset",
        )
    if sut is not None and sut.overridden:
        names = ", ".join(f"{name} {before:g} → {now:g}" for name, (before, now) in sut.overridden.items())
        yield Finding(
            "mlperf-rules-overridden",
            Severity.WARNING,
            f"Settings are not those of LoadGen's rules and user.conf: {names}",
            "leave the options away where the rules are to hold",
        )
    elif plan.settings.benchmark is None and plan.settings.user_conf is None:
        yield Finding(
            "mlperf-no-rules",
            Severity.NOTE,
            "No rules of a benchmark were applied, so the verdict is by LoadGen's defaults and the options",
            "--benchmark resnet50 applies LoadGen's own rules",
        )


def padding_findings(sut: SutRecord | None) -> Iterator[Finding]:
    """Rows that were executed for nothing, where they are many enough to cost time."""
    rows = 0 if sut is None else sut.samples + sut.padding
    if sut is None or sut.padding < PADDING_SHARE * rows or not sut.padding:
        return
    yield Finding(
        "mlperf-padding",
        Severity.NOTE,
        f"{sut.padding / rows:.0%} of the executed rows were padding, for batches had fewer samples than a session "
        "takes",
        "--batch-sizes names the sizes that get a session",
    )
