"""A stage over commits and time: one point a launch or repeat, and where the numbers step to another level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perfharness.analysis.comparison.change_points import ALPHA, change_points, is_autocorrelated, least_rate
from perfharness.errors import StoreError, UsageError
from perfharness.model.result import last_key
from perfharness.runs.comparison.compared_figure import LOAD_METRICS
from perfharness.runs.comparison.limits import LATENCY, LOAD_FIGURES, RUN_FIGURES
from perfharness.runs.store.filters import RunFilter
from perfharness.runs.store.records import (
    BUSY,
    BUSY_PER_ITEM,
    COMMITTED,
    CPU,
    CPU_PER_ITEM,
    GPU,
    GPU_PER_ITEM,
    LAUNCHED,
    SERIES,
    THROUGHPUT,
    WHOLE_RUN,
    Figure,
    StoredRun,
)

if TYPE_CHECKING:
    from perfharness.runs.store.store import RunStore

MIN_EFFECT = 0.02
"""As of `compare`."""

MOST_POINTS = 1000
"""The newest so many are looked at."""

SHORT_NAMES = {
    "cpu": CPU,
    "gpu": GPU,
    "busy": BUSY,
    "cpu_per_item": CPU_PER_ITEM,
    "gpu_per_item": GPU_PER_ITEM,
    "busy_per_item": BUSY_PER_ITEM,
    "throughput": THROUGHPUT,
    "energy": "energy_per_item_j",
    **{name: metric for name, metric in RUN_FIGURES.items() if metric in LOAD_METRICS},
    **{f"{LATENCY}.{name}": metric for name, metric in LOAD_FIGURES.items()},
    f"{LATENCY}.p99.9": LOAD_FIGURES["p99_9"],
}
"""What metrics may be called too; those of load tests as in `--fail-if`."""

QUANTILES = ("p50", "p95")
FACTS = ("tracer", "driver", "cuda_driver", "os", "kernel", "python", "perfharness", "nvtx", "packages")
DIGESTS = ("script_sha256", "input_files")
"""Of the environment: what may explain a step, beside the commit."""

SHORT_DIGEST = 12

Order = Literal["commit", "start"]
"""When its commit was made, and of one commit when the launch began; or that alone."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrendPoint(_Model):
    """A launch, the launches of a repeat, or a suite of `bench`."""

    run_id: str
    """Of the launch, or of the repeat."""

    created_unix_ns: int
    git_commit: str | None
    git_dirty: bool | None
    committed_unix_s: int | None = None
    """When its commit was made, by the committer's clock; null: not known."""

    value: float
    """Mean of the launches."""

    launches: int


class ChangedFact(_Model):
    """Something that is not the same on both sides of a step."""

    name: str
    before: str | None
    after: str | None


class TrendChange(_Model):
    """A step to another level."""

    place: int
    """Of the first point of the new level, from 0."""

    run_id: str
    """Of that point."""

    p_value: float
    """How often points of one level have as large a step somewhere."""

    before: float
    after: float
    """Medians of the levels on both sides."""

    ratio: float | None
    facts: list[ChangedFact]
    """Differences between the last point before and the first one after it."""


class Trend(_Model):
    """One metric of one stage, or of the run, in launches of one setup; that of the oldest commit or launch first."""

    stage: str
    """Path; empty: the run."""

    metric: str
    unit: str
    setup: str
    setup_facts: dict[str, Any]
    alpha: float
    """Rate at which points of one level, in any order, have a step."""

    min_effect: float
    """Relative steps that are smaller are left out."""

    order: Order
    points: list[TrendPoint]
    changes: list[TrendChange] = Field(default_factory=list)
    is_autocorrelated: bool = False
    """Whether points are like the one before them beyond chance: then a step may be a drift."""

    remarks: list[str] = Field(default_factory=list)
    """What was left out, and what cannot be said."""


def trend(
    store: RunStore,
    stage: str = "",
    metric: str | None = None,
    which: RunFilter | None = None,
    *,
    setup: str | None = None,
    alpha: float = ALPHA,
    min_effect: float = MIN_EFFECT,
    order: Order | None = None,
) -> Trend:
    """A metric over time.

    Args:
        stage: path or last name, or the id of a case of `bench`; empty: the run as a whole.
        metric: a name of the results, a short one (`cpu`, `busy`, …), or that with `_p50` or `_p95`; of a load test
            `latency.p99`, `goodput`, …; None: the CPU time of a batch, or of the run its throughput.
        which: of which launches.
        setup: of this setup; None: that of the newest launch.
        alpha: rate of false alarms.
        min_effect: smallest relative step that counts.
        order: of the points; None: by commit where the date of every commit is known, else by start.

    Raises `StoreError` where there is none, `UsageError` where several stages have the name.
    """
    if not 0 < alpha < 0.5:
        raise UsageError(f"--alpha {alpha:g}: must be more than 0 and less than 50%")
    if not 0 <= min_effect < 1:
        raise UsageError(f"--min-effect {min_effect:g}: must be a part of 1, as 0.02")
    name, statistic = _metric(metric, stage)
    of_these = replace(which or RunFilter(), top_level=False)
    found = store.values(name, of_these, stage or WHOLE_RUN)
    found = [(run, figure) for run, figure in found if run.kind not in SERIES]  # whose launches are there
    path = _path_of(stage, [figure.path for _, figure in found], f"{store.location}")
    own = [(run, _value(figure, statistic)) for run, figure in found if figure.path == path]
    if not own:
        there = _there(store.figure_names(of_these), stage, name)
        where = f"the run store {store.location} has no {name} of {stage or 'a run'} in such launches"
        raise StoreError(f"{where}; {there}" if there else where)
    remarks: list[str] = []
    usable = _usable(own, store.kinds(), remarks)
    chosen = setup or (usable[-1][0].setup if usable else own[-1][0].setup)
    of_setup = [(run, value) for run, value in usable if run.setup.startswith(chosen)]
    if setup is not None and len({run.setup for run, _ in of_setup}) > 1:
        raise UsageError(f"--setup {setup} is the beginning of several; give more of it")
    if len(of_setup) < len(usable):
        others = len({run.setup for run, _ in usable} - {run.setup for run, _ in of_setup})
        remarks.append(f"{len(usable) - len(of_setup)} launches of {others} other setups are left out (--setup)")
    groups = _groups(of_setup)
    ordered = order or _order(groups, remarks)
    if ordered == "commit":
        groups = _by_commit(groups, remarks)
    if not groups:
        raise StoreError(f"no launch in {store.location} is a point of {name}: {'; '.join(remarks) or 'none is there'}")
    if len(groups) > MOST_POINTS:
        remarks.append(f"the oldest {len(groups) - MOST_POINTS} points are left out")
        groups = groups[-MOST_POINTS:]
    points = [_point(members) for members in groups]
    values = [point.value for point in points]
    steps = change_points(values, alpha, min_effect)
    autocorrelated = is_autocorrelated(values, [step.place for step in steps])
    if autocorrelated:
        remarks.append("points are like the one before them: the machine drifts, or has states; a step may be that")
    if least_rate(len(points)) > alpha:
        remarks.append(f"{len(points)} points: too few for any step to be found at a rate of {alpha:g}")
    first = [members[0][0] for members in groups]
    last = [members[-1][0] for members in groups]
    newest = of_setup[-1][0]
    return Trend(
        stage=path,
        metric=name if statistic == "mean" else f"{name}_{statistic}",
        unit=found[-1][1].unit,
        setup=newest.setup,
        setup_facts=newest.setup_facts,
        alpha=alpha,
        min_effect=min_effect,
        order=ordered,
        points=points,
        changes=[
            TrendChange(
                place=step.place,
                run_id=points[step.place].run_id,
                p_value=step.p_value,
                before=step.before,
                after=step.after,
                ratio=step.ratio,
                facts=_changed(last[step.place - 1], first[step.place]),
            )
            for step in steps
        ],
        is_autocorrelated=autocorrelated,
        remarks=remarks,
    )


def _metric(metric: str | None, stage: str) -> tuple[str, str]:
    """The metric, and which figure of it."""
    if metric is None:
        return (CPU if stage else THROUGHPUT), "mean"
    if metric in LOAD_METRICS or metric in SHORT_NAMES:
        return SHORT_NAMES.get(metric, metric), "mean"
    statistic = next((one for one in QUANTILES if metric.endswith(f"_{one}")), "mean")
    name = metric if statistic == "mean" else metric.removesuffix(f"_{statistic}")
    return SHORT_NAMES.get(name, name), statistic


def _value(figure: Figure, statistic: str) -> float | None:
    value = getattr(figure, statistic)
    return None if value is None else float(value)


def _there(names: set[tuple[str, str]], stage: str, metric: str) -> str:
    """What there is in place of a metric or a stage that is not."""
    if stages := sorted({path for path, name in names if name == metric and path}):
        return f"stages with it are: {', '.join(stages)}"
    if metrics := sorted({name for path, name in names if bool(path) == bool(stage)}):
        return f"metrics there are: {', '.join(metrics)}"
    return ""


def _path_of(stage: str, paths: Iterable[str], where: str) -> str:
    """The path of that text or last name. Raises `UsageError`."""
    known = list(dict.fromkeys(paths))
    if stage == WHOLE_RUN or stage in known:
        return stage
    found = [path for path in known if last_key(path) == stage]
    if len(found) > 1:
        raise UsageError(f"{where} has several stages '{stage}'; give the path: {', '.join(found)}")
    return found[0] if found else stage


Values = list[tuple[StoredRun, float | None]]


def _usable(found: Values, kinds: Mapping[str, str], remarks: list[str]) -> list[tuple[StoredRun, float]]:
    """Launches that ended well and have the number; cold starts are apart, for their caches differ on purpose.

    Of a suite only the case counts: another one that failed says nothing about it.
    """
    bad = [run for run, _ in found if run.kind in LAUNCHED and run.exit_code != 0]
    cold = [run for run, _ in found if run.exit_code == 0 and kinds.get(run.series_id or "") == "cold-start"]
    left_out = {run.run_id for run in (*bad, *cold)}
    missing = [run for run, value in found if value is None and run.run_id not in left_out]
    for runs, why in ((bad, "ended with an error"), (cold, "are cold starts"), (missing, "have no such number")):
        if runs:
            remarks.append(f"{len(runs)} launches are left out, for they {why}")
    return [(run, value) for run, value in found if value is not None and run.run_id not in left_out]


Group = list[tuple[StoredRun, float]]


def _groups(launches: Sequence[tuple[StoredRun, float]]) -> list[Group]:
    """One for each point: launches of a repeat share the state of the machine, so they are no points of their own."""
    found: dict[str, Group] = {}
    for run, value in launches:
        found.setdefault(run.series_id or run.run_id, []).append((run, value))
    return list(found.values())


def _committed(run: StoredRun) -> int | None:
    """When its commit was made."""
    seconds = run.environment.get(COMMITTED)
    return seconds if isinstance(seconds, int) else None


def _order(groups: Sequence[Group], remarks: list[str]) -> Order:
    """By commit where the date of every commit is known."""
    known = sum(_committed(group[0][0]) is not None for group in groups)
    if 0 < known < len(groups):
        remarks.append(
            f"points are in the order of their starts, for the commit's date of {len(groups) - known} is not known;"
            " --order commit leaves these out"
        )
    return "commit" if 0 < known == len(groups) else "start"


def _by_commit(groups: Sequence[Group], remarks: list[str]) -> list[Group]:
    """Those of the oldest commit first; of one commit, the one that began first."""
    known = [group for group in groups if _committed(group[0][0]) is not None]
    if len(known) < len(groups):
        remarks.append(f"{len(groups) - len(known)} points are left out, for the date of their commit is not known")
    return sorted(known, key=lambda group: (_committed(group[0][0]), group[0][0].created_unix_ns))


def _point(members: Group) -> TrendPoint:
    first = members[0][0]
    return TrendPoint(
        run_id=first.series_id or first.run_id,
        created_unix_ns=first.created_unix_ns,
        git_commit=first.git_commit,
        git_dirty=first.git_dirty,
        committed_unix_s=_committed(first),
        value=fmean(value for _, value in members),
        launches=len(members),
    )


def _changed(before: StoredRun, after: StoredRun) -> list[ChangedFact]:
    """What is not the same in two launches, and may explain a step."""
    one, other = _facts(before), _facts(after)
    return [
        ChangedFact(name=name, before=one.get(name), after=other.get(name))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


def _facts(run: StoredRun) -> dict[str, str]:
    """By name, as text; those that are not known are left out."""
    dirty = " with changes" if run.git_dirty else ""
    found: dict[str, Any] = {"git_commit": None if run.git_commit is None else run.git_commit + dirty}
    for name in FACTS:
        value = run.environment.get(name)
        if name == "packages" and isinstance(value, dict):
            found |= value
        elif isinstance(value, dict):
            found[name] = " ".join(str(part) for part in value.values() if part is not None)
        else:
            found[name] = value
    script, files = (run.environment.get(name) for name in DIGESTS)
    digests = {"script": script, **(files if isinstance(files, dict) else {})}
    found |= {f"digest of {name}": value[:SHORT_DIGEST] for name, value in digests.items() if value}
    return {name: str(value) for name, value in found.items() if value is not None}
