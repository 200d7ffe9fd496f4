"""Read a load test (`perfharness stress` or MLPerf LoadGen) for the history, comparisons and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from perfharness.files import read_model
from perfharness.model.findings import Finding, listed
from perfharness.model.manifest import LOAD_NAME, MLPERF_NAME
from perfharness.runs.figures import ERRORS, LATENCY, PHASES, Figure, Value
from perfharness.secrets import mask_text

if TYPE_CHECKING:
    from perfharness.model.load import LoadFigure, LoadResult, PhaseResult, TargetRecord
    from perfharness.model.mlperf import MlperfResult

AGAIN = "run the load test again"
NO_ANSWER = "no request was answered"
OFFLINE_LATENCY = "Offline sends everything in one query"

SENT = ("method", "text", "max-tokens", "stream", "parameters")
"""Settings of a request that determine the work of the server."""

EXIT_CODES = {"ok": 0, "stopped-by-errors": 3}
"""Exit codes by status; 1 for any other status."""

ESTIMATED = {"Server": (), "Offline": ("target_qps", "samples_per_query", "min_sample_count")}
"""Settings of LoadGen estimated during warm-up, by scenario; `target_qps` for any other."""

SHOWN = (
    *("target_qps", "samples_per_query", "min_duration_ms", "max_duration_ms", "min_query_count", "max_query_count"),
    "qsl_rng_seed",
)
"""Settings of LoadGen to show if they are not 0."""

LOAD_SETTINGS = frozenset(
    {"model", "scenario", "target_qps", "target_latency_ms", "min_duration_s", "max_duration_s", "min_queries"}
    | {"max_queries", "samples_per_query", "seed", "benchmark", "user_conf", "dataset", "samples"}
)
"""Settings of LoadGen, as opposed to settings of the system under test."""


@dataclass(frozen=True)
class LoadTest:
    """A load test.

    Attributes:
        load: short description, with a digest of settings that must be equal in a comparison.
        figures: of the longest measured phase, of kinds of errors, and of each phase.
        of_no_concern: codes of findings of the run to ignore, because they are not about the target.
        problem: why the test is not usable in a comparison, or None.
        invalid: why LoadGen rejects the figures, or None.
    """

    kind: Literal["stress", "mlperf"]
    target: str
    load: str
    figures: Mapping[Figure, Value]
    arguments: Sequence[str] = ()
    validity: str | None = None
    findings: Sequence[Finding] = ()
    of_no_concern: frozenset[str] = frozenset()
    exit_code: int = 0
    problem: str | None = None
    invalid: str | None = None

    @property
    def short_target(self) -> str:
        """Target, without the folder of a file."""
        return self.target if "://" in self.target else Path(self.target).name or self.target

    @property
    def environment(self) -> dict[str, str]:
        """Target and load, in place of the launched script, which is perfharness's own worker."""
        found = {
            "load": self.load,
            "script": self.short_target,
            "arguments": " ".join(self.arguments) or "none",
        }
        return found | ({} if self.validity is None else {"validity": self.validity})


def read_load_test(folder: Path) -> LoadTest | None:
    """Read the load test of a run folder, or return None. Raises `ResultError`."""
    if (folder / LOAD_NAME).is_file():
        from perfharness.model.load import LoadResult  # rarely needed

        load = read_model(folder / LOAD_NAME, LoadResult, AGAIN)
        return None if load is None else stress_test(load)
    found = read_mlperf_file(folder)
    return None if found is None else loadgen_test(found)


def read_mlperf_file(folder: Path) -> MlperfResult | None:
    """Read `mlperf.json`, or return None. Raises `ResultError`."""
    if not (folder / MLPERF_NAME).is_file():
        return None
    from perfharness.model.mlperf import MlperfResult

    return read_model(folder / MLPERF_NAME, MlperfResult, AGAIN)


def _setting(name: str, value: object) -> str:
    return mask_text(f"{name}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}")


def _digest(settings: Mapping[str, Any]) -> str:
    return sha256(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]


def _of_whole(values: Mapping[str, Value]) -> dict[Figure, Value]:
    """Figures of the whole test; latencies belong to the stage `latency`."""
    return {Figure(LATENCY if Figure((), name).is_latency else (), name): one for name, one in values.items()}


# ---- perfharness stress ----


def stress_test(load: LoadResult) -> LoadTest:
    """Make a load test of `load.json`."""
    counting = [one for one in load.phases if not one.is_warmup]
    longest = max(counting, key=lambda one: one.duration_s, default=None)
    figures = {} if longest is None else _of_whole(phase_values(longest))
    if (slope := _largest_slope(load)) is not None:
        figures[Figure((), "memory_slope")] = slope
    if longest is not None:
        for kind, count in longest.errors.items():
            figures[Figure((ERRORS, kind), "error_share")] = Value(count / _ended(longest), count=count)
    for phase in counting:
        figures |= {Figure((PHASES, phase.name), name): one for name, one in phase_values(phase).items()}
    why = f" ({load.status_reason})" if load.status_reason else ""
    return LoadTest(
        kind="stress",
        target=mask_text(load.target.name),
        arguments=_arguments(load.target),
        load=load_text(load),
        figures=figures,
        findings=load.findings,
        of_no_concern=of_no_concern(load),
        exit_code=EXIT_CODES.get(load.status, 1),
        problem=None if load.status == "ok" else f"the load ended early: {load.status}{why}",
    )


def of_no_concern(load: LoadResult) -> frozenset[str]:
    """Codes of findings that are not about the target, or that the load test reports itself.

    Over HTTP, the launched process is the load generator or the server.
    """
    target = load.target
    if target.started is not None:  # requests-not-traced reports missing ranges; the load ends the server
        return frozenset({"no-ranges", "recorder-not-finalized"})
    if target.kind in ("callable", "backend"):
        ignored = {
            "recorder-not-finalized": any(phase.unanswered for phase in load.phases),  # unfinished batches
            "memory-grows": load.sustained is not None or load.tracer is None,  # without a trace, includes loading
            "memory-grows-under-nsys": load.sustained is not None,
            "not-traced": load.tracer is None,
            "warmup-too-short": True,  # the test has warm-up phases
        }
        return frozenset(code for code, is_ignored in ignored.items() if is_ignored)
    return frozenset({"not-traced", "memory-grows"}) if target.kind == "http" else frozenset()


def _arguments(target: TargetRecord) -> list[str]:
    """Settings of a model, or the command of a server."""
    asked = {name: value for name, value in (target.request or {}).items() if name == "model"}
    settings = {**(target.model or {}), **asked}
    return [*(_setting(name, value) for name, value in settings.items() if value), *(target.started or ())]


def phase_values(phase: PhaseResult) -> dict[str, Value]:
    """Rates, latencies and errors of a phase."""
    from perfharness.model.load import PERCENTILES

    times, ended = phase.latency, _ended(phase)
    no_objective = "no --objective was set" if phase.within_objective is None else None
    closed = "a closed loop has no requested rate" if phase.asked_rate is None else None
    errors = Value(sum(phase.errors.values()) / ended, count=ended) if ended else Value(None, NO_ANSWER)
    return {
        **{name: _value_of(getattr(times, name), times.count, times.reason) for name in ("mean", *PERCENTILES)},
        "asked_rate": Value(phase.asked_rate, closed),
        "achieved_rate": Value(phase.achieved_rate, NO_ANSWER if phase.achieved_rate is None else None),
        "goodput": Value(phase.goodput, no_objective),
        "error_rate": errors,
    }


def _ended(phase: PhaseResult) -> int:
    """Number of requests with a known end."""
    return phase.ok + sum(phase.errors.values())


def _value_of(figure: LoadFigure, count: int, otherwise: str | None) -> Value:
    reason = None if figure.value is not None else figure.reason or otherwise or NO_ANSWER
    return Value(figure.value, reason, figure.low, figure.high, count)


def _largest_slope(load: LoadResult) -> Value | None:
    """Memory growth of the process that grows most, or None if not judged."""
    processes = [] if load.sustained is None else load.sustained.memory
    if not processes:
        return None
    most = max(processes, key=lambda one: -1e300 if one.slope_mb_per_s.value is None else one.slope_mb_per_s.value)
    slope = most.slope_mb_per_s
    if slope.value is None:
        return Value(None, most.reason or slope.reason or most.verdict)
    return Value(slope.value, f"{most.of}: {most.verdict}", slope.low, slope.high)


def load_text(load: LoadResult) -> str:
    """Short profile and kind of target, with a digest of the profile and the HTTP request."""
    phases = [
        f"{one.name} {'closed' if one.asked_rate is None else f'{one.asked_rate:.4g}/s'} for {one.duration_s:.4g} s"
        for one in load.phases
        if not one.is_warmup
    ]
    sent = _sent(load.target.request or {})
    asked = {**load.profile, **({"request": sent} if sent else {})}
    return f"{load.target.kind}, {listed(phases, 2)} ({_digest(asked)})"


def _sent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a request that determine the work of the server; names of files only."""
    found = {name: request[name] for name in SENT if name in request}
    if "body" in request:
        found["body"] = Path(request["body"]).name
    if "inputs" in request:
        found["inputs"] = {entry: _sent(one) for entry, one in request["inputs"].items()}
    return found


# ---- MLPerf LoadGen ----


def loadgen_test(result: MlperfResult) -> LoadTest:
    """Make a load test of `mlperf.json`."""
    verdict, why, invalid = loadgen_verdict(result)
    own = {name: value for name, value in result.asked.items() if name not in LOAD_SETTINGS}
    is_ok = result.status == "ok"
    return LoadTest(
        kind="mlperf",
        target=mask_text(result.model),
        arguments=[_setting(name, value) for name, value in {"backend": result.backend, **own}.items()],
        load=loadgen_text(result),
        validity=f"{verdict} ({why})" if why else verdict,
        figures=_of_whole(loadgen_values(result)),
        findings=result.findings,
        exit_code=0 if is_ok else 1,
        problem=None if is_ok else f"LoadGen did not finish: {result.status}",
        invalid=invalid,
    )


def loadgen_verdict(result: MlperfResult) -> tuple[str, str | None, str | None]:
    """Verdict, its reason, and why the figures cannot be compared (or None)."""
    if result.status != "ok":
        return result.status, result.sut.problem if result.sut is not None else None, None
    if result.validity is None:
        reason = "LoadGen gave no verdict"
        return "no verdict", reason, reason
    if result.validity == "VALID":
        return "VALID", None, None
    reason = ", ".join(result.invalid_reasons) or "no reason given"
    return "INVALID", reason, f"LoadGen's verdict is INVALID: {reason}"


def loadgen_values(result: MlperfResult) -> dict[str, Value]:
    """Figures that LoadGen reports."""
    found: dict[str, Value] = {}

    def add(name: str, value: float | None, reason: str | None, count: int | None = result.queries) -> None:
        found[name] = Value(value, None if value is not None else reason or "LoadGen reported none", count=count)

    if (metric := result.metric) is not None:
        is_latency = metric.unit == "ms"
        add("loadgen_latency" if is_latency else "loadgen_rate", metric.value, metric.reason)
        if is_latency:
            add("early_stopping", metric.early_stopping_ms, metric.reason, None)
    if result.percentiles:
        from perfharness.model.load import PERCENTILES

        names = {percent: name for name, percent in PERCENTILES.items()}
        is_offline = result.scenario == "Offline"
        add("mean", None if is_offline else result.mean_latency_ms, OFFLINE_LATENCY if is_offline else None)
        for one in result.percentiles:
            if one.percent in names:
                add(names[one.percent], one.latency_ms, OFFLINE_LATENCY if is_offline else one.reason)
    if result.over_latency is not None and result.queries:
        add("over_latency", result.over_latency / result.queries, None)
    return found


def loadgen_text(result: MlperfResult) -> str:
    """Scenario and settings of LoadGen, with a digest that includes the data."""
    estimated = ESTIMATED.get(result.scenario, ("target_qps",))
    settings = {name: value for name, value in result.settings.items() if name not in estimated}
    asked = {name: result.asked.get(name) for name in ("dataset", "samples", "benchmark")}
    shown = [f"{name} {settings[name]}" for name in SHOWN if settings.get(name)]
    digest = _digest({"scenario": result.scenario, **settings, **asked})
    return f"LoadGen {', '.join([result.scenario, *shown])} ({digest})"
