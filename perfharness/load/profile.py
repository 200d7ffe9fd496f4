"""The requested load: phases, arrivals, the mix; from a TOML file, or from a few options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.base import Settings
from perfharness.model.checks import refuse_booleans
from perfharness.model.load import Loop, Objective

TABLE = "load"
TARGET_TABLE = "target"
UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}

LAUNCH_SETTINGS = (
    "num_processes", "num_gpus", "gpu_offset", "gpus", "gpus_per_process", "cpu_bind", "require_exclusive", "python",
    "timeout_s", "log_level", "annotate", "annotate_torch",
    "tracer", "nsys", "trace_os", "telemetry", "metrics", "measure_idle_s", "cool_down_c", "cool_down_limit_s",
    "maximize_clocks", "output_dir", "history",
)  # fmt: skip
"""Fields of `LaunchOptions` that also apply to a load test."""


def parse_seconds(value: Any) -> Any:
    """`10`, `"10s"`, `"1.5m"`, `"200ms"`, `"1h"` -> seconds. Raises `ValueError` for another text."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(ms|s|m|h|)\s*", value)
    if match is None:
        raise ValueError(f"{value}: must be a time, as in 30s or 10m")
    return float(match[1]) * UNITS_S[match[2]]


Seconds = Annotated[float, BeforeValidator(parse_seconds)]


OBJECTIVE = re.compile(r"(?:p(?P<percentile>\d+(?:\.\d+)?)\s*(?:=|<=?)\s*)?(?P<time>[\d.]+\s*(?:ms|s|m))")
ERRORS = re.compile(r"errors\s*(?:=|<=?)\s*(?P<share>\d+(?:\.\d+)?)\s*(?P<percent>%?)")


def parse_objective(value: Any) -> Any:
    """`50ms`, `p95<=50ms`, `p99<=1s, errors<=0.5%` -> an objective."""
    if not isinstance(value, str):
        return value
    latency, *rest = (clause.strip() for clause in value.split(","))
    match, limits = OBJECTIVE.fullmatch(latency), [ERRORS.fullmatch(clause) for clause in rest]
    seconds = parse_seconds(match["time"]) if match else None
    percentile = float(match["percentile"] or 99) if match else 0.0
    shares = [float(one["share"]) / (100 if one["percent"] else 1) for one in limits if one]
    is_wrong = len(limits) > 1 or None in limits or any(share >= 1 for share in shares)
    if is_wrong or not isinstance(seconds, float) or seconds <= 0 or not 0 < percentile < 100:
        raise ValueError(
            f"{value!r} is not an objective; write a latency (50ms), a percentile (p95<=50ms), or also a limit of "
            "errors (p99<=20ms,errors<=1%)"
        )
    return Objective(latency_ms=seconds * 1000, percentile=percentile, max_error_rate=next(iter(shares), None))


class Spelled(Settings, alias_generator=lambda name: name.removesuffix("_s").replace("_", "-")):
    """Keys are field names without the unit, with dashes or underscores."""

    @model_validator(mode="before")
    @classmethod
    def _spelled(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        spelled = {str(key).replace("_", "-").removesuffix("-s"): value for key, value in values.items()}
        refuse_booleans(spelled, {field.alias: field for field in cls.model_fields.values()})
        return spelled


SpelledModel = TypeVar("SpelledModel", bound=Spelled)


class MixEntry(Spelled):
    """One kind of request."""

    name: str
    items: int = Field(default=1, ge=1)
    """The batch size."""

    input: Path | None = None
    """Content of the requests: .npz, .npy, .json, or lines (.txt, .jsonl); `items` lines each."""

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Frequency relative to the other entries."""


class Phase(Spelled):
    """A part of the profile: an open loop with a rate, a closed loop without one."""

    name: str = ""
    duration_s: Seconds = Field(gt=0, allow_inf_nan=False)
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Requests per second; at the begin of a ramp."""

    arrivals: Literal["constant", "poisson", "bursty"] = "constant"
    rate_to: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Rate at the end of a ramp."""

    burst: int = Field(default=10, ge=2)
    """Bursty arrivals: requests that arrive at the same time."""

    times_file: Path | None = None
    """Arrival times in seconds from the begin of the phase, one per line; instead of a rate."""

    concurrency: int | None = Field(default=None, ge=1)
    """Users of a closed loop, each with one request at a time; at most the profile's."""

    warmup: bool = False

    @property
    def loop(self) -> Loop:
        """Whether requests are due at given times, or when the previous one is answered."""
        return "open" if self.rate is not None or self.times_file is not None else "closed"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.times_file is not None and self.rate is not None:
            raise ValueError("a times-file has its own rate; drop rate")
        if self.rate is None and (self.rate_to is not None or self.arrivals != "constant"):
            raise ValueError("arrivals and rate-to need a rate")
        if self.loop == "open" and self.concurrency is not None:
            raise ValueError("concurrency is for a closed loop, which has no rate; drop one")
        if "burst" in self.model_fields_set and self.arrivals != "bursty":
            raise ValueError('burst needs arrivals = "bursty"')
        return self


class Profile(Spelled):
    """The load sent by `perfharness stress`."""

    seed: int = Field(default=0, ge=0)
    concurrency: int = Field(default=1, ge=1, le=10_000)
    """Workers per process: how many requests can be in service at a time."""

    phases: tuple[Phase, ...] = Field(min_length=1)
    mix: tuple[MixEntry, ...] = ()
    request_timeout_s: Seconds | None = Field(default=None, gt=0, allow_inf_nan=False)
    """An answer that takes longer after sending is an error."""

    grace_s: Seconds = Field(default=10.0, ge=0, allow_inf_nan=False)
    """Maximum wait for late answers after a phase; later ones are `unanswered`."""

    max_error_rate: float | None = Field(default=None, ge=0, le=1)
    """Maximum share of errors in the measured phases, all processes together. A process stops if its own share is
    larger for `error_window_s`."""

    error_window_s: Seconds = Field(default=10.0, gt=0, allow_inf_nan=False)

    objective: Annotated[Objective | None, BeforeValidator(parse_objective)] = None

    @field_validator("phases")
    @classmethod
    def _named(cls, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        names = [one.name or ("warm-up" if one.warmup else f"phase {index}") for index, one in enumerate(phases, 1)]
        if len(set(names)) < len(names):
            raise ValueError("two phases have the same name")
        return tuple(one.model_copy(update={"name": name}) for one, name in zip(phases, names, strict=True))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len({entry.name for entry in self.mix}) < len(self.mix):
            raise ValueError("two entries of the mix have the same name")
        for phase in self.phases:
            if (phase.concurrency or 1) > self.concurrency:
                raise ValueError(
                    f"{phase.name} has {phase.concurrency} users, but the profile's concurrency is {self.concurrency}"
                )
        if all(phase.warmup for phase in self.phases):
            raise ValueError("all phases are warm-up, so nothing would be measured")
        return self

    @property
    def uncounted(self) -> frozenset[str]:
        """Names of the phases whose requests are not batches of the trace."""
        return frozenset(phase.name for phase in self.phases if phase.warmup)

    @property
    def duration_s(self) -> float:
        """Length of all phases, without grace periods."""
        return sum(phase.duration_s for phase in self.phases)

    def to_json(self) -> dict[str, Any]:
        """The settings in the form of a file, without defaults; the seed is always included."""
        return {"seed": self.seed, **self.model_dump(mode="json", by_alias=True, exclude_defaults=True)}


PHASE_SETTINGS = ("rate", "rates", "arrivals", "duration_s", "warmup_s")


def profile_of(given: Mapping[str, Any], file: Path | None = None) -> Profile:
    """The profile of a file, overridden by the options; or of the options alone.

    Args:
        given: fields of `Profile`; of its only phase: `rate`, `arrivals`, `duration_s`; of its only kind of request:
            `items`, `input`. `rates` instead of `rate` adds a phase for each; `warmup_s` adds a warm-up phase of the
            same load before the others.

    Raises:
        UsageError: a setting does not exist, has a wrong type, or contradicts another.
    """
    values = {name: value for name, value in given.items() if value is not None}
    of_phase = {name: values.pop(name) for name in PHASE_SETTINGS if name in values}
    entry = {name: values.pop(name) for name in ("items", "input") if name in values}
    table = None if file is None else _table_of(file)
    if table is not None and of_phase:
        names = ", ".join(sorted(of_phase))
        raise UsageError(f"{file} defines the phases of the load and excludes {names}; drop one")
    table = {"phases": _phases_of(of_phase)} if table is None else table
    if entry and "mix" in table:
        raise UsageError(f"{file} defines the mix of requests and excludes {' and '.join(entry)}; drop one")
    if entry:
        table["mix"] = [{"name": "request", **entry}]
    return checked_profile({**table, **values}, "the load" if file is None else str(file))


def _phases_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One phase, or one for each of several rates, after a warm-up. Raises `UsageError`."""
    phase = {"duration_s": "10s", "name": "load", **given}
    rates, warmup_s = phase.pop("rates", None), phase.pop("warmup_s", None)
    phases = [phase]
    if rates is not None and "rate" in phase:
        raise UsageError("rate and rates contradict each other; drop one")
    if rates is not None:
        try:
            numbers = [float(rate) for rate in (rates.split(",") if isinstance(rates, str) else rates)]
        except (TypeError, ValueError):
            raise UsageError(f"rates {rates}: must be requests per second, as in 10,20,40") from None
        phases = [{**phase, "name": f"{rate:g}/s", "rate": rate} for rate in numbers]
    warm = {"name": "warm-up", "duration_s": warmup_s, "warmup": True}
    return [*({**one, **warm} for one in phases[:1] if warmup_s is not None), *phases]


def checked_profile(values: Mapping[str, Any], where: str = "the load") -> Profile:
    """The profile from its settings. Raises `UsageError`."""
    return checked(Profile, values, where)


def checked(kind: type[SpelledModel], values: Mapping[str, Any], where: str) -> SpelledModel:
    """Settings from a file or options. Raises `UsageError` with one sentence per problem."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UsageError("\n".join(f"{where}: {_sentence(one)}" for one in error.errors())) from None


def _sentence(problem: Any) -> str:
    from perfharness.bench.suite import sentence_of  # slow import, not needed for most command lines

    if problem["type"] != "value_error":
        return f"{sentence_of(problem)}; docs/examples/load.toml has all settings"
    place = ".".join(map(str, problem["loc"]))  # without the value, which may be a secret
    return f"{place} {problem['msg'].removeprefix('Value error, ')}".strip()


def _table_of(file: Path) -> dict[str, Any] | None:
    """The table of the load; None: the file has the table of the target only."""
    content = read_toml(file, "--profile")
    if content.keys() == {TARGET_TABLE}:
        return None
    table = content.get(TABLE, content if "phases" in content else None)
    if TABLE in content and (unknown := sorted(content.keys() - {TABLE, TARGET_TABLE})):
        raise UsageError(
            f"{file}: {unknown[0]} is not in a table of a profile; the tables are [{TABLE}] and [{TARGET_TABLE}]"
        )
    if not isinstance(table, dict):
        raise UsageError(f"{file} has no table [{TABLE}]; docs/examples/load.toml is an example")
    for part, key in (("phases", "times-file"), ("phases", "times_file"), ("mix", "input")):
        entries = table.get(part)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get(key), str):
                entry[key] = str(file.absolute().parent / entry[key])
    return table
