"""Put a target under load, traced, as `perfharness stress` does."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from perfharness.backends import backend_and_mode
from perfharness.errors import LaunchError, UsageError
from perfharness.load.callables import Inputs, check_callable
from perfharness.load.http_settings import HttpSettings, check_http, http_settings, is_url
from perfharness.load.judge import judge_load
from perfharness.load.models import ModelSpec, check_model
from perfharness.load.profile import LAUNCH_SETTINGS, Profile, profile_of
from perfharness.load.record import read_lines, read_rows
from perfharness.load.result import load_result
from perfharness.load.schedule import check_arrivals
from perfharness.load.server import GENERATOR_LOG, load_of
from perfharness.load.traced import begun_in, with_begun
from perfharness.load.worker import MODULE, SAID, WorkerSpec
from perfharness.model.findings import Finding
from perfharness.model.load import REQUESTS_NAME, STREAM_NAME, WINDOWS_NAME, LoadResult, TargetRecord
from perfharness.model.manifest import LOAD_NAME
from perfharness.notebook import notebook_html
from perfharness.runs.comparison.load_tests import of_no_concern
from perfharness.runs.files.json_files import write_json
from perfharness.runs.launch import LaunchResult, Observe, plan_launches, run_plan, unobserved
from perfharness_launcher.launch import FinishedRun
from perfharness_launcher.options import launch_options, sentences_of
from perfharness_launcher.outcome import log_tail
from perfharness_launcher.plan import LaunchPlan
from perfharness_launcher.process import STDERR_LOG
from perfharness_launcher.supervise import Observer

MODEL = ("device", "precision", "shapes")


def model_spec(name: str | None, settings: Mapping[str, Any]) -> ModelSpec | None:
    """Settings of a model, if a backend (`NAME`, or `NAME/MODE`) is given. Raises `UsageError`."""
    if name is None:
        if settings:
            raise UsageError(f"{', '.join(settings)} need a model: add a backend")
        return None
    made, mode = backend_and_mode(name)
    try:
        return ModelSpec(backend=made, mode=mode, **settings)
    except ValidationError as error:
        raise UsageError("\n".join(sentences_of(error))) from None


@dataclass(frozen=True)
class StressPlan:
    """What is started; `serves`: the launched process is the server, loaded from another one."""

    spec: WorkerSpec
    launch: LaunchPlan
    serves: bool


@dataclass(frozen=True, repr=False)
class StressResult:
    """A load test: its measurements and its run."""

    load: LoadResult
    launch: LaunchResult

    @property
    def findings(self) -> list[Finding]:
        """Findings of the load, then those of the run."""
        ignored = of_no_concern(self.load)
        of_run = [finding for finding in self.launch.findings if finding.code not in ignored]
        return [*self.load.findings, *of_run]

    def __repr__(self) -> str:
        return f"<StressResult {self.load.target.name}: {self.load.status}>"

    def _repr_html_(self) -> str | None:
        return notebook_html(self)


CONNECTIONS = 1000
"""Maximum concurrent requests of an open loop over HTTP, per process."""


def stress(
    target: str,
    profile: str | Path | None = None,
    start: str | None = None,
    request: Mapping[str, Any] | None = None,
    observe: Observe = unobserved,
    *,
    command: Sequence[str] | None = None,
    **settings: Any,
) -> StressResult:
    """Put a target under load and measure it.

    Args:
        target: `module:function`, `path/file.py:function`, a URL; with `backend`, a model as for `perfharness bench`.
        profile: a TOML file with a table `[load]` or `[target]`; None: the settings define the load.
        start: for a URL: the command of its server, which is launched and traced.
        request: for a URL: request and expected answer, fields of `HttpSettings`.
        observe: opens an observer of the launch.
        command: the command line, for the manifest.
        settings: of a model (`backend`, `device`, `precision`, `shapes`), of the load (`rate`, `arrivals`,
            `duration_s`, `concurrency`, …) and of the launch (`num_processes`, `output_dir`, …).

    Raises:
        UsageError: a setting does not exist, has a wrong type, or contradicts another.
        LaunchError: no process could be started, or none measured anything.
    """
    launch = {name: settings.pop(name) for name in LAUNCH_SETTINGS if name in settings}
    model = model_spec(settings.pop("backend", None), {name: settings.pop(name) for name in MODEL if name in settings})
    file = None if profile is None else Path(profile)
    http = http_settings(target, file, request) if is_url(target) else None
    if http is None and request:
        raise UsageError(f"{', '.join(request)} need a URL; a function returns an Answer with an error")
    load = profile_of(settings, file)
    plan = plan_stress(target, load, launch, model, start=start, http=http)
    if plan.spec.http is not None and not plan.serves:
        from perfharness.load.http import http_targets  # only HTTP targets need aiohttp

        http_targets(plan.spec.http, plan.spec.profile.mix)  # one request of each input before anything starts
    with observe(plan.launch) as observer:
        return _run(plan, command or ["perfharness", "stress", target], observer)


def plan_stress(
    target: str,
    profile: Profile,
    settings: Mapping[str, Any],
    model: ModelSpec | None = None,
    *,
    start: str | None = None,
    http: HttpSettings | None = None,
) -> StressPlan:
    """The plan of a load test: of a model, a URL, or a callable. Raises `UsageError`.

    Args:
        settings: of the launch.
        start: the command of a server that is launched, traced, and loaded.
    """
    check_arrivals(profile)
    if "://" in target and http is None:
        raise UsageError(f"{target}: only http:// and https:// are supported; use a proxy for other protocols")
    if http is None and start is not None:
        raise UsageError(f"--start {start!r} starts a server: TARGET must be its URL, not {target}")
    if http is not None:
        if model is not None:
            raise UsageError(f"{target} is a URL; drop --backend")
        inputs = {entry.name: entry.input for entry in profile.mix if entry.input is not None}
        http = http.model_copy(update={"inputs": inputs})
        check_http(http)
        spec = WorkerSpec(kind="http", target=target, profile=_with_connections(profile), http=http)
    elif model is not None:
        check_model(target, model, profile)
        spec = WorkerSpec(kind="backend", target=target, profile=profile, model=model)
    elif ":" in target:
        spec = WorkerSpec(kind="callable", target=target, profile=profile)
    else:
        raise UsageError(
            f"{target} is not a target; use module:function, file.py:function, a URL, or a model with --backend"
        )
    if http is None:
        Inputs(profile.mix)  # read now, to find a bad file before the start
    given = {**settings, "warmup_batches": 0}
    if start is not None:
        if given.get("num_processes", 1) > 1:
            raise UsageError("-np: --start starts one server; use its own command to start several workers")
        words = shlex.split(start)
        if not words:
            raise UsageError("--start needs a command, as in --start 'python server.py'")
        options = launch_options(words[0], words[1:], given)
    else:
        untraced = {} if http is None else {"tracer": "none"}
        options = launch_options(MODULE, [spec.to_text()], {**untraced, **given, "module": True, "source": target})
    (launch,) = plan_launches([options])
    if spec.kind == "callable":
        check_callable(target, options.python, has_inputs=any(entry.input is not None for entry in profile.mix))
    if model is not None:
        decided = model.model_copy(update={"device": model.device_of(has_gpu=bool(launch.gpus))})
        spec = spec.model_copy(update={"model": decided})
    return StressPlan(spec, launch, serves=start is not None)


def _with_connections(profile: Profile) -> Profile:
    """Raise the number of requests that an open loop may have in flight, unless a concurrency is given."""
    is_open = all(phase.loop == "open" for phase in profile.phases)
    is_given = "concurrency" in profile.model_fields_set
    return profile.model_copy(update={"concurrency": CONNECTIONS}) if is_open and not is_given else profile


def _run(plan: StressPlan, command: Sequence[str], observer: Observer) -> StressResult:
    found: list[LoadResult] = []

    def complete(run: FinishedRun) -> None:
        folders = [process.folder for process in plan.launch.processes]
        kind, options = run.manifest.tracer.kind, plan.launch.options
        tracer = None if kind == "none" or (plan.spec.kind == "http" and not plan.serves) else kind
        started = [options.script, *options.script_arguments] if plan.serves else None
        found.append(read_load(run.folder, plan.spec, folders, started=started, tracer=tracer))
        write_json(run.folder / LOAD_NAME, found[0].model_dump(mode="json"))

    beside = [sys.executable, "-m", MODULE, plan.spec.to_text()]
    generator = [load_of(beside, plan.spec.profile.grace_s)] if plan.serves else []
    result = run_plan(plan.launch, command, observer, generator, complete=complete)
    return StressResult(found[0], result)


def read_load(
    folder: Path,
    spec: WorkerSpec,
    processes: Sequence[str],
    *,
    started: Sequence[str] | None = None,
    tracer: str | None = None,
) -> LoadResult:
    """The result from the files in a run folder; replaces each process's stream by `requests.parquet`.

    Args:
        started: command of the process if it is a traced server; the trace then has the begin of each service.
        tracer: tracer of the target's process; None: not traced.

    Raises `LaunchError` if no process sent anything.
    """
    files = {process: folder / process / WINDOWS_NAME for process in processes}
    lines = {process: read_lines(file) if file.is_file() else [] for process, file in files.items()}
    if not any(lines.values()):
        logs = [folder / processes[0] / name for name in (GENERATOR_LOG, STDERR_LOG)]
        tails = [line for log in logs for line in log_tail(log).strip().splitlines()]
        own = [line.removeprefix(SAID) for line in tails if line.startswith(SAID)]
        raise LaunchError(": ".join(filter(None, [f"{spec.target} was not put under load", "\n".join(own or tails)])))
    target = TargetRecord(
        kind=spec.kind,
        name=spec.target,
        processes=len(processes),
        request=None if spec.http is None else spec.http.to_json(),
        model=None if spec.model is None else spec.model.model_dump(mode="json"),
        started=None if started is None else list(started),
    )
    tables, findings = [read_rows(folder / process) for process in processes], list[Finding]()
    if started is not None:
        tables[0], findings = with_begun(tables[0], *begun_in(folder))
    for process, table in zip(processes, tables, strict=True):
        pq.write_table(table, folder / process / REQUESTS_NAME, compression="zstd")
        (folder / process / STREAM_NAME).unlink(missing_ok=True)
    result = load_result(target, spec.profile, lines, tables, tracer, findings)
    return judge_load(result, folder, lines, pa.concat_tables(tables))
