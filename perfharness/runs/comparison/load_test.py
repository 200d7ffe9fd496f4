"""A load test of a run folder as the history, comparisons and gates see it, whoever made the load: `perfharness
stress`, or MLPerf LoadGen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from perfharness.errors import ResultError
from perfharness.files import read_regular
from perfharness.model.findings import Finding
from perfharness.model.manifest import LOAD_NAME, MLPERF_NAME
from perfharness.runs.comparison.compared_figure import PHASES, Figure
from perfharness.secrets import mask_text

if TYPE_CHECKING:
    from perfharness.model.load import LoadFigure, LoadResult, PhaseResult, Status, TargetRecord
    from perfharness.model.mlperf import MlperfResult

ERRORS = "errors"
NO_OBJECTIVE = "it had no --objective"
CLOSED = "a closed loop asks for no rate"
NO_ANSWER = "nothing was answered"
OFFLINE_LATENCY = "Offline has one query with everything"
SHORT_DIGEST = 12

SENT = ("method", "text", "max-tokens", "stream", "parameters")
SENT_FILES = ("body",)
"""Of how a server is asked: what its work depends on. Its model may differ, for that is what is compared."""

CODES: dict[Status, int] = {"ok": 0, "stopped-by-errors": 3}
"""With which exit code the command ends; any other status: 1."""

ESTIMATED = ("target_qps",)
"""Of LoadGen's settings: what perfharness says after the warm-up where nobody else does; of Server somebody does."""

ESTIMATED_OFFLINE = (*ESTIMATED, "samples_per_query", "min_sample_count")
SHOWN = {
    "min_duration_ms": "min ms", "max_duration_ms": "max ms", "min_query_count": "min queries",
    "max_query_count": "max queries", "qsl_rng_seed": "seed",
}  # fmt: skip
"""Of LoadGen's settings: what a text about the load names where it is not 0."""

LOADGEN_DATA = ("dataset", "samples")
"""Of the settings that were asked for: what LoadGen draws from."""

NO_SETTINGS = frozenset({
    "model", "scenario", "target_qps", "target_latency_ms", "min_duration_s", "max_duration_s", "min_queries",
    "max_queries", "samples_per_query", "seed", "log_queries", "benchmark", "user_conf", *LOADGEN_DATA,
})  # fmt: skip
"""Of the settings that were asked for: what is no setting of the system under test."""


@dataclass(frozen=True)
class LoadValue:
    """A figure of a load test.

    Args:
        low, high: its 95 % interval.
        count: of the answers that it is of.
        reason: why there is no value, or what is in doubt.
    """

    value: float | None
    reason: str | None = None
    low: float | None = None
    high: float | None = None
    count: int | None = None


Values = Mapping[Figure, LoadValue]


@dataclass(frozen=True)
class LoadTest:
    """What a load test comes to.

    Attributes:
        kind: the verb.
        target: what was under load, by the name that was given; secrets masked.
        arguments: settings of the target: not those of the load.
        load: the load in short, with a digest of all that has to be equal for its figures to be comparable.
        verdict: what the test says of itself: `ok` or how it ended; `VALID` or `INVALID` by LoadGen.
        verdict_reason: why it is that.
        figures: of the longest phase that counts.
        phases: figures of each phase that counts, by its name.
        findings: about the load.
        of_no_concern: codes of findings of the run that say nothing about the target.
        exit_code: of what became of the load alone: 0, 1, or 3.
        problem: why it cannot stand for a side of a comparison.
        invalid: why its figures are not to be compared, by its own verdict.
    """

    kind: Literal["stress", "mlperf"]
    target: str
    load: str
    verdict: str
    figures: Values
    arguments: Sequence[str] = ()
    verdict_reason: str | None = None
    phases: Mapping[str, Values] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    of_no_concern: frozenset[str] = frozenset()
    exit_code: int = 0
    problem: str | None = None
    invalid: str | None = None

    @property
    def figures_of_phases(self) -> Values:
        """At the path of each phase."""
        return {
            Figure((PHASES, name, *of.path), of.metric): one
            for name, found in self.phases.items()
            for of, one in found.items()
        }

    @property
    def short_target(self) -> str:
        """Without the folder of a file."""
        return self.target if "://" in self.target else Path(self.target).name or self.target


def read_load_test(folder: Path) -> LoadTest | None:
    """That of a run folder; None: the run was under no load. Raises `ResultError` where its file cannot be read."""
    if os.path.lexists(folder / LOAD_NAME):
        from perfharness.model.load import LoadResult  # here, for most runs are no load tests

        return stress_test(_read(folder / LOAD_NAME, LoadResult))
    found = read_mlperf_file(folder)
    return None if found is None else loadgen_test(found)


def read_mlperf_file(folder: Path) -> MlperfResult | None:
    """`mlperf.json`; None: there is none. Raises `ResultError` where it cannot be read."""
    if not os.path.lexists(folder / MLPERF_NAME):
        return None
    from perfharness.model.mlperf import MlperfResult

    return _read(folder / MLPERF_NAME, MlperfResult)


ModelT = TypeVar("ModelT", bound=BaseModel)


def _read(path: Path, model: type[ModelT]) -> ModelT:
    try:
        return model.model_validate_json(read_regular(path, follow=False))
    except (OSError, ValidationError) as error:
        raise ResultError(f"{path} cannot be read ({str(error).splitlines()[0]}); run the load test again") from error


# ---- perfharness stress ----


def stress_test(load: LoadResult) -> LoadTest:
    """Of `load.json`."""
    counting = [one for one in load.phases if not one.is_warmup]
    problem = None
    if load.status != "ok":
        problem = f"its load ended early: {load.status}" + (f" ({load.status_reason})" if load.status_reason else "")
    return LoadTest(
        kind="stress",
        target=mask_text(load.target.name),
        arguments=_arguments(load.target),
        load=load_text(load),
        verdict=load.status,
        verdict_reason=load.status_reason,
        figures=load_figures(load),
        phases={one.name: phase_figures(one) for one in counting},
        findings=load.findings,
        of_no_concern=of_no_concern(load),
        exit_code=CODES.get(load.status, 1),
        problem=problem,
    )


def of_no_concern(load: LoadResult) -> frozenset[str]:
    """Codes of findings of the run that say nothing about the target: over HTTP the launched process is the generator,
    or the server; and what the load test says itself, of the phase that counts.
    """
    target = load.target
    if target.started is not None:  # requests-not-traced says what is missing; nobody but the load ends a server
        return frozenset({"no-ranges", "recorder-not-finalized"})
    if target.kind in ("callable", "backend"):
        said = {
            "recorder-not-finalized": any(phase.unanswered for phase in load.phases),  # a batch that nobody ends
            "memory-grows": load.sustained is not None or load.tracer is None,  # without a trace, of loading too
            "memory-grows-under-nsys": load.sustained is not None,
            "not-traced": load.tracer is None,
        }
        return frozenset(code for code, is_said in said.items() if is_said)
    return frozenset({"not-traced", "memory-grows"}) if target.kind == "http" else frozenset()


def _arguments(target: TargetRecord) -> list[str]:
    """Of a model how it is run, of a server its command."""
    asked = {name: value for name, value in (target.request or {}).items() if name == "model"}
    settings = [f"{name}={_setting(value)}" for name, value in {**(target.model or {}), **asked}.items() if value]
    return [*settings, *(target.started or ())]


def load_figures(load: LoadResult) -> dict[Figure, LoadValue]:
    """The figures of the longest phase that counts."""
    figures: dict[Figure, LoadValue] = {}
    phase = max((one for one in load.phases if not one.is_warmup), key=lambda one: one.duration_s, default=None)
    if phase is not None:
        figures |= phase_figures(phase)
        figures |= {
            Figure((ERRORS, kind), "error_share"): LoadValue(count / _ended(phase), count=count)
            for kind, count in phase.errors.items()
        }
    slope = _largest_slope(load)
    if slope is not None:
        figures[Figure((), "memory_slope")] = slope
    return figures


def phase_figures(phase: PhaseResult) -> dict[Figure, LoadValue]:
    """The rates, latencies and errors of a phase."""
    from perfharness.model.load import PERCENTILES

    times, ended = phase.latency, _ended(phase)
    found = {f"load_{name}": _of(getattr(times, name), times.count, times.reason) for name in ("mean", *PERCENTILES)}
    found["asked_rate"] = LoadValue(phase.asked_rate, CLOSED if phase.asked_rate is None else None)
    found["achieved_rate"] = LoadValue(phase.achieved_rate, NO_ANSWER if phase.achieved_rate is None else None)
    found["goodput"] = LoadValue(phase.goodput, NO_OBJECTIVE if phase.within_objective is None else None)
    errors = sum(phase.errors.values())
    found["error_rate"] = LoadValue(errors / ended, count=ended) if ended else LoadValue(None, NO_ANSWER)
    return {Figure((), name): value for name, value in found.items()}


def _ended(phase: PhaseResult) -> int:
    """Requests of which it is known how they ended."""
    return phase.ok + sum(phase.errors.values())


def _of(figure: LoadFigure, count: int, otherwise: str | None) -> LoadValue:
    reason = None if figure.value is not None else figure.reason or otherwise or NO_ANSWER
    return LoadValue(figure.value, reason, figure.low, figure.high, count)


def _largest_slope(load: LoadResult) -> LoadValue | None:
    """Of the memory of the processes, the one that grows the most; None: it was not judged."""
    if load.sustained is None or not load.sustained.memory:
        return None
    known = [one for one in load.sustained.memory if one.slope_mb_per_s.value is not None]
    if not known:
        one = load.sustained.memory[0]
        return LoadValue(None, one.reason or one.slope_mb_per_s.reason or one.verdict)
    most = max(known, key=lambda one: one.slope_mb_per_s.value or 0.0)
    slope = most.slope_mb_per_s
    return LoadValue(slope.value, f"{most.of}: {most.verdict}", slope.low, slope.high)


def load_text(load: LoadResult) -> str:
    """The profile and the target's kind in short, with a digest of the whole profile and of what is sent over HTTP."""
    phases = [
        f"{one.name} {'closed' if one.asked_rate is None else f'{one.asked_rate:.4g}/s'} for {one.duration_s:.4g} s"
        for one in load.phases
        if not one.is_warmup
    ]
    shown = ", ".join(phases[:2]) + (f" and {len(phases) - 2} more" if len(phases) > 2 else "")
    sent = _sent(load.target.request or {})
    asked = {**load.profile, **({"request": sent} if sent else {})}
    return f"{load.target.kind}, {shown} ({_digest(asked)})"


def _sent(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a server has to work on, of how it is asked; of files their names."""
    found = {name: request[name] for name in SENT if name in request}
    found |= {name: Path(request[name]).name for name in SENT_FILES if name in request}
    if "inputs" in request:
        found["inputs"] = {entry: _sent(one) for entry, one in request["inputs"].items()}
    return found


def _digest(settings: Mapping[str, Any]) -> str:
    return sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()[:SHORT_DIGEST]


# ---- MLPerf LoadGen ----


def loadgen_test(result: MlperfResult) -> LoadTest:
    """Of `mlperf.json`."""
    verdict, why, invalid = loadgen_verdict(result)
    own = {name: value for name, value in result.asked.items() if name not in NO_SETTINGS}
    return LoadTest(
        kind="mlperf",
        target=mask_text(result.model),
        arguments=[f"{name}={_setting(value)}" for name, value in {"backend": result.backend, **own}.items()],
        load=loadgen_text(result),
        verdict=verdict,
        verdict_reason=why,
        figures=dict(loadgen_figures(result)),
        findings=result.findings,
        exit_code=0 if result.status == "ok" else 1,
        problem=None if result.status == "ok" else f"the test of LoadGen did not come to its end: {result.status}",
        invalid=invalid,
    )


def loadgen_verdict(result: MlperfResult) -> tuple[str, str | None, str | None]:
    """The verdict, why it is that, and why the figures are not to be compared."""
    if result.status != "ok":
        return result.status, result.sut.problem if result.sut is not None else None, None
    if result.validity is None:
        reason = "LoadGen gave no verdict"
        return "no verdict", reason, reason
    if result.validity == "VALID":
        return "VALID", None, None
    reason = ", ".join(result.invalid_reasons) or "it names nothing"
    return "INVALID", reason, f"LoadGen's verdict is INVALID; not satisfied: {reason}"


def loadgen_figures(result: MlperfResult) -> Iterator[tuple[Figure, LoadValue]]:
    """LoadGen's figures, as it reports them."""
    metric = result.metric
    if metric is not None:
        name = "loadgen_latency" if metric.unit == "ms" else "loadgen_rate"
        why = None if metric.value is not None else metric.reason or "LoadGen reported none"
        yield Figure((), name), LoadValue(metric.value, why, count=result.queries)
        if metric.unit == "ms":
            early = metric.early_stopping_ms
            yield Figure((), "loadgen_early_stopping"), LoadValue(early, metric.reason if early is None else None)
    if result.percentiles:
        from perfharness.model.load import PERCENTILES

        is_offline = result.scenario == "Offline"
        mean = None if is_offline else result.mean_latency_ms
        no_mean = OFFLINE_LATENCY if is_offline else "LoadGen reported none"
        yield Figure((), "load_mean"), LoadValue(mean, no_mean if mean is None else None, count=result.queries)
        for one in result.percentiles:
            percentile = next((name for name, percent in PERCENTILES.items() if percent == one.percent), None)
            if percentile is not None:
                unknown = OFFLINE_LATENCY if is_offline else one.reason
                yield Figure((), f"load_{percentile}"), LoadValue(one.latency_ms, unknown, count=result.queries)
    if result.over_latency is not None and result.queries:
        yield Figure((), "over_latency_share"), LoadValue(result.over_latency / result.queries, count=result.queries)


def loadgen_text(result: MlperfResult) -> str:
    """The scenario, with a digest of LoadGen's settings and of its data.

    What perfharness tells LoadGen to expect after the warm-up differs from launch to launch, and is no setting.
    """
    estimated = {"Server": (), "Offline": ESTIMATED_OFFLINE}.get(result.scenario, ESTIMATED)
    settings = {name: value for name, value in result.settings.items() if name not in estimated}
    data = {name: result.asked.get(name) for name in LOADGEN_DATA}
    rules = {name: result.asked.get(name) for name in ("benchmark",)}
    shown = [
        f"{label} {value}"
        for label, value in (
            ("target qps", result.settings.get("target_qps") if result.scenario == "Server" else None),
            ("samples a query", result.settings.get("samples_per_query") if result.scenario == "MultiStream" else None),
            *((label, result.settings.get(name) or None) for name, label in SHOWN.items()),
        )
        if value is not None
    ]
    digest = _digest({"scenario": result.scenario, **settings, **data, **rules})
    return f"LoadGen {', '.join([result.scenario, *shown])} ({digest})"


def _setting(value: object) -> str:
    return mask_text(",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
