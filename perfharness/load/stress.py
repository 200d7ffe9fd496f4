"""Put a target under load, traced: what `perfharness stress` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfharness.backends import backend_and_mode
from perfharness.errors import LaunchError, UsageError
from perfharness.load.histogram import require_load
from perfharness.load.inputs import Inputs
from perfharness.load.judge import judge_load
from perfharness.load.profile import Profile, profile_of
from perfharness.load.result import load_result
from perfharness.load.targets.backend import ModelSpec, check_model
from perfharness.load.windows import read_lines
from perfharness.load.worker import MODULE, WorkerSpec
from perfharness.model.findings import Finding
from perfharness.model.load import LOAD_NAME, WINDOWS_NAME, LoadResult, TargetRecord
from perfharness.runs.json_files import write_json
from perfharness.runs.launch import LaunchResult, Observe, plan_launches, run_plan, unobserved
from perfharness_launcher.launch import FinishedRun
from perfharness_launcher.plan.launch_plan import LaunchPlan
from perfharness_launcher.plan.options import launch_options, sentences_of
from perfharness_launcher.processes.outcome import log_tail
from perfharness_launcher.processes.spawn import STDERR_LOG
from perfharness_launcher.processes.supervise import Observer

MODEL = ("device", "precision", "shapes")


def model_spec(name: str | None, settings: Mapping[str, Any]) -> ModelSpec | None:
    """How a model is run, where a backend (`NAME`, or `NAME/MODE`) is given. Raises `UsageError`."""
    if name is None:
        if settings:
            raise UsageError(f"{', '.join(settings)}: of a model, and so only with a backend")
        return None
    made, mode = backend_and_mode(name)
    try:
        return ModelSpec(backend=made, mode=mode, **settings)
    except ValidationError as error:
        raise UsageError("\n".join(sentences_of(error))) from None


@dataclass(frozen=True)
class StressPlan:
    """What will be started."""

    spec: WorkerSpec
    launch: LaunchPlan


@dataclass(frozen=True)
class StressResult:
    """A load test: what was measured, and the run that it was measured in."""

    load: LoadResult
    launch: LaunchResult

    @property
    def findings(self) -> list[Finding]:
        """Those of the load, then those of the run."""
        return [*(record.to_finding() for record in self.load.findings), *self.launch.findings]


LAUNCH_SETTINGS = (
    "num_processes", "num_gpus", "gpu_offset", "gpus", "gpus_per_process", "cpu_bind", "require_exclusive", "python",
    "timeout_s", "env_allow", "log_level", "tracer", "nsys", "trace_os", "telemetry", "gpu_counters",
    "sample_interval_ms", "measure_idle_s", "cool_down_c", "cool_down_limit_s", "maximize_clocks", "clock_refusal",
    "output_dir", "store", "stored",
)  # fmt: skip
"""Fields of `LaunchOptions` that a load test takes too."""


def stress(
    target: str, *, profile: str | Path | None = None, observe: Observe = unobserved, **settings: Any
) -> StressResult:
    """Put a target under load and measure it.

    Args:
        target: `module:function` or `path/file.py:function`; with `backend`, a model as `perfharness bench` takes it.
        profile: a TOML file with a table `[load]`; None: the load is that of the settings.
        observe: opens an observer of the launch.
        settings: of a model (`backend`, `device`, `precision`, `shapes`), of the load (`rate`, `arrivals`,
            `duration_s`, `concurrency`, …) and of the launch (`num_processes`, `output_dir`, …).

    Raises:
        UsageError: a setting does not exist, has a wrong type, or contradicts another.
        LaunchError: no process could be started, or none measured anything.
    """
    launch = {name: settings.pop(name) for name in LAUNCH_SETTINGS if name in settings}
    model = model_spec(settings.pop("backend", None), {name: settings.pop(name) for name in MODEL if name in settings})
    plan = plan_stress(target, profile_of(settings, None if profile is None else Path(profile)), launch, model)
    with observe(plan.launch) as observer:
        return run_stress(plan, ["perfharness", "stress", target], observer)


def plan_stress(
    target: str, profile: Profile, settings: Mapping[str, Any], model: ModelSpec | None = None
) -> StressPlan:
    """The plan of a load test; with a `model` the target is one. Raises `UsageError`."""
    require_load("perfharness stress")
    spec = WorkerSpec(kind="callable" if model is None else "backend", target=target, profile=profile, model=model)
    if model is not None:
        check_model(target, model, profile)
    elif ":" not in target:
        raise UsageError(f"{target} is no target; give `module:function`, `path/file.py:function`, or --backend")
    Inputs(profile.mix)  # read now, so that a bad file is found before anything starts
    if unknown := sorted(set(settings) - set(LAUNCH_SETTINGS)):
        raise UsageError(f"the setting {unknown[0]} does not exist; `perfharness stress --help-all` lists all")
    given = {**settings, "module": True, "warmup_batches": 0}
    options, _ = launch_options(MODULE, [spec.to_text()], given)
    (launch,) = plan_launches([options])
    return StressPlan(spec, launch)


def run_stress(plan: StressPlan, command: Sequence[str], observer: Observer) -> StressResult:
    """Run a plan, and write `load.json` into its run folder. Raises `LaunchError`."""
    found: list[LoadResult] = []

    def complete(run: FinishedRun) -> None:
        found.append(read_load(run.folder, plan.spec, [spec.folder for spec in plan.launch.processes]))
        write_json(run.folder / LOAD_NAME, found[0].model_dump(mode="json"))

    result = run_plan(plan.launch, command, observer, complete=complete)
    return StressResult(found[0], result)


def read_load(folder: Path, spec: WorkerSpec, processes: Sequence[str]) -> LoadResult:
    """The result of the files of windows in a run folder.

    Raises `LaunchError` where no process sent anything.
    """
    files = [folder / process / WINDOWS_NAME for process in processes]
    lines = [read_lines(file) if file.is_file() else [] for file in files]
    if not any(lines):
        tail = log_tail(files[0].parent / STDERR_LOG).strip()
        said = f": {tail}" if tail else f"; its logs are in {files[0].parent}"
        raise LaunchError(f"{spec.target} was not put under load, for its process ended before{said}")
    target = TargetRecord(kind=spec.kind, name=spec.target, processes=len(processes))
    result = load_result(target, spec.profile, lines)
    return judge_load(result, folder, dict(zip(processes, lines, strict=True)))
