"""Plan a launch from options and facts. Pure: all conflicts are found here, before anything starts."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfharness.distribution import VERSION, recorder_install_command
from perfharness.errors import LaunchError, PerfHarnessError, ToolNotFoundError, UsageError
from perfharness.model import environment
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import EXPLAIN_NAME, GpuRecord, NodeRecord, TracerKind, TracerRecord
from perfharness_launcher.gpus import choose_gpus, place
from perfharness_launcher.machine import MachineFacts
from perfharness_launcher.nsys import (
    CAPTURE_OPTIONS,
    INSTALL_NSYS,
    NSYS_RECORDS,
    NVTX_BY_NAME,
    NVTX_PINNED,
    NsysInstall,
    NsysTracing,
    dotted,
    records_nvtx,
    too_old_for_driver,
)
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.process import ProcessSpec

MOST_PROCESSES = 4096
"""Per GPU; more is a typing error."""

Gpus = tuple[GpuRecord, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """Processes to start, and findings known beforehand.

    Args:
        explaining: whether this is the profiling pass of `--explain`.
        measured_s: duration of the measured pass before it.
        node: this machine in a launch on several.
    """

    options: LaunchOptions
    facts: MachineFacts
    tracer: TracerRecord
    nsys: NsysTracing | None
    gpus: Gpus
    processes: tuple[ProcessSpec, ...]
    placement_reason: str = ""
    findings: tuple[Finding, ...] = ()
    explaining: bool = False
    measured_s: float | None = None
    node: NodeRecord | None = None


def make_plan(options: LaunchOptions, facts: MachineFacts) -> LaunchPlan:
    """Plan a launch.

    Raises `UsageError` for problems of the command line, one sentence per line, `LaunchError` for those of the machine.
    """
    problems: list[PerfHarnessError] = [UsageError(text) for text in _conflicts(options, facts)]
    groups, cpus, placement_reason = list[Gpus](), list[tuple[int, ...]](), ""
    try:
        tracer, install, faults = _tracer(options, facts)
        problems += map(UsageError, _tracer_conflicts(options, facts, tracer.kind, install))
    except (UsageError, ToolNotFoundError) as error:
        problems.append(error)
    try:
        number = min(options.num_processes, MOST_PROCESSES)
        groups = [group for group in _groups(_gpus(options, facts), options) for _ in range(number)]
        cpus, placement_reason = place(groups, options.cpu_bind, facts.cpus)
    except UsageError as error:
        problems.append(error)
    if problems:
        is_usage = any(isinstance(problem, UsageError) for problem in problems)
        kind = UsageError if is_usage else type(problems[0]) if len(problems) == 1 else LaunchError
        raise kind("\n".join(map(str, problems)))
    gpus = tuple(dict.fromkeys(gpu for group in groups for gpu in group))
    needs_gpu = {"--require-exclusive": options.require_exclusive, "-m": options.maximize_clocks}
    for name in (name for name, is_asked in needs_gpu.items() if is_asked and not gpus):
        raise UsageError(f"{name} needs a GPU ({facts.gpus.problem or 'none is visible'}); drop it")
    captures = options.capture_batches is not None
    nsys = None if install is None else NsysTracing(install, bool(gpus), options.trace_os, captures=captures)
    return LaunchPlan(
        options=options,
        facts=facts,
        tracer=tracer,
        nsys=nsys,
        gpus=gpus,
        processes=tuple(_processes(options, facts, tracer.kind, groups, cpus)),
        placement_reason=placement_reason,
        findings=(*faults, *_gpu_findings(options, facts, groups)),
    )


def explaining_pass(plan: LaunchPlan, measured_s: float | None = None) -> LaunchPlan:
    """Plan the profiling pass: the same launch in a subfolder of the measured pass.

    It does not wait for cool GPUs or check their users, because NVML may still report the measured pass. If that took
    long (`measured_s`), GPU counters are sampled less often.
    """
    changes = {"explain": False, "measure_idle_s": 0.0, "cool_down_c": None, "require_exclusive": False}
    folder = plan.options.output_dir / EXPLAIN_NAME
    return replace(
        plan,
        options=plan.options.model_copy(update={**changes, "output_dir": folder}),
        nsys=plan.nsys and replace(plan.nsys, explain=True),
        processes=tuple(
            replace(spec, environment={**spec.environment, environment.EXPLAIN: "1"}) for spec in plan.processes
        ),
        findings=(),
        explaining=True,
        measured_s=measured_s,
    )


# ---- conflicts ----


def _conflicts(options: LaunchOptions, facts: MachineFacts) -> Iterator[str]:
    problems = (facts.program.problem, facts.interpreter.problem, facts.interpreter.module_problem)
    yield from filter(None, (*problems, facts.output_problem))
    cool_down, tracer = options.cool_down_c, options.tracer
    inf, finite, positive = math.inf, sys.float_info.max, math.ulp(0)
    limits = (
        ("-np", options.num_processes, 1, MOST_PROCESSES, f"1 to {MOST_PROCESSES}"),
        ("-ng", options.num_gpus, 1, inf, "1 or more"),
        ("gpus-per-process", options.gpus_per_process, 1, inf, "1 or more"),
        ("-go", options.gpu_offset, 0, inf, "0 or more"),
        ("-w", options.warmup_batches, 0, inf, "0 or more"),
        ("--timeout", options.timeout_s, positive, inf, "more than 0 seconds"),
        ("measure-idle", options.measure_idle_s, 0, finite, "0 seconds or more"),
        ("--barrier-timeout", options.barrier_timeout_s, positive, finite, "more than 0 seconds; or use --no-barrier"),
        ("cool-down-limit", options.cool_down_limit_s, 0, inf, "0 seconds or more"),
        ("--annotate-torch", options.annotate_torch, 0, inf, "0 or more"),
    )
    for name, value, least, most, text in limits:
        if value is not None and not least <= value <= most:
            yield f"{name} {value}: must be {text}"
    if cool_down is not None and not math.isfinite(cool_down):
        yield f"--cool-down {cool_down}: must be degrees Celsius"
    if options.ray and not options.nodes:
        yield "--ray: only `perfharness launch` measures on the nodes of a Ray cluster; drop it"
    if options.num_nodes is not None and not options.ray:
        yield "--num-nodes needs --ray; other engines set the number of nodes"
    if options.metrics is not None:
        yield from _metrics_conflicts(options)
    if options.gpus and (options.num_gpus is not None or options.gpu_offset is not None):
        yield "--gpus cannot be combined with -ng or -go"
    if options.explain and tracer in ("ranges", "none"):
        yield f"--explain cannot be combined with --tracer {tracer}; drop one of them"
    if options.nsys is not None and tracer not in ("auto", "nsys"):
        yield f"--nsys is not used with --tracer {tracer}; drop one of them"
    if options.on_demand and tracer not in ("auto", "embedded"):
        yield f"--on-demand needs the embedded tracer; drop --tracer {tracer}"
    if options.on_demand and (options.explain or options.capture_batches):
        yield f"--on-demand cannot be combined with {'--explain' if options.explain else '--capture-batches'}"
    yield from _annotation_conflicts(options, facts)
    if options.batch_pattern is not None:
        try:
            re.compile(options.batch_pattern)
        except re.error as error:
            yield f"batch-pattern {options.batch_pattern!r} is not a regular expression: {error}"


def _metrics_conflicts(options: LaunchOptions) -> Iterator[str]:
    from perfharness.metrics.endpoint import address_of, client  # rarely needed

    try:
        address_of(options.metrics or "")
        client()
    except UsageError as error:
        yield f"--metrics: {error}"
    if not options.telemetry:
        yield "--metrics serves the telemetry; drop --no-telemetry"


def _tracer_conflicts(
    options: LaunchOptions, facts: MachineFacts, kind: TracerKind, install: NsysInstall | None
) -> Iterator[str]:
    if options.trace_os and kind != "nsys":
        yield f"trace-os needs nsys; the tracer is {kind}"
    if (wanted := options.capture_batches) is None:
        return
    found = re.fullmatch(r"(\d{1,12}):(\d{1,12})", wanted)
    if found is None or int(found[1]) >= int(found[2]):
        yield f"--capture-batches {wanted}: must be FIRST:LAST with FIRST below LAST, as in 10:60"
    if options.explain:
        yield "--capture-batches cannot be combined with --explain"
    if options.telemetry:
        yield "--capture-batches needs --no-telemetry, because telemetry would include the other batches"
    if kind == "none":
        yield "--capture-batches needs a tracer"
    if kind == "embedded" and facts.gpus.gpus:
        yield "--capture-batches with a GPU needs --tracer nsys: the embedded tracer records all GPU work"
    if install is not None and (missing := set(CAPTURE_OPTIONS) - install.profile_options):
        yield f"--capture-batches: nsys {install.version_text} has no --{min(missing)}; use a newer nsys"


def _annotation_conflicts(options: LaunchOptions, facts: MachineFacts) -> Iterator[str]:
    names = {
        "--annotate": options.annotate is not None,
        "--annotate-torch": options.annotate_torch is not None,
        "--annotate-collectives": options.annotate_collectives,
    }
    asked = next((name for name, is_asked in names.items() if is_asked), None)
    if asked is None:
        return
    program, interpreter = facts.program, facts.interpreter
    is_found = not (program.problem or interpreter.problem or interpreter.module_problem)
    if options.annotate is not None and facts.source.script_sha256 is None:
        if is_found:
            yield f"--annotate: the Python script that {options.script} runs is unknown; launch `python FILE` instead"
    elif is_found and not interpreter.has_perfharness and (program.python or options.annotate is not None):
        yield f"{asked} needs perfharness there: {recorder_install_command(interpreter.executable)}"
    if program.python is not None and program.python.ignored_hook:
        yield f"{asked}: {program.python.ignored_hook}"
    yield from facts.annotation_problems


# ---- the tracer: nsys if a working one records this interpreter's nvtx, else the embedded one ----

NOT_UTF8 = "nsys cannot record a command line that is not UTF-8"
Choice = tuple[TracerRecord, NsysInstall | None, Sequence[Finding]]


def _tracer(options: LaunchOptions, facts: MachineFacts) -> Choice:
    """Choose the requested tracer, or the best one.

    Raises `UsageError` if it cannot be used for this script, `ToolNotFoundError` if nsys is requested but none works.
    """
    if options.on_demand:
        return TracerRecord(kind="none", reason="windows on demand"), None, ()
    if options.tracer == "none":
        return TracerRecord(kind="none", reason="asked for"), None, ()
    if options.tracer in environment.LOGGING_TRACERS:
        return _embedded(options, facts, "asked for")
    is_asked = options.tracer == "nsys"
    unusable = [problem for install in facts.nsys for problem in install.problems]
    usable = [install for install in facts.nsys if install.usable]
    if options.nsys is not None and not usable:
        raise UsageError(f"--nsys {options.nsys} cannot be used: {'; '.join(unusable)}")
    try:
        "".join((options.script, *options.script_arguments)).encode()
    except UnicodeEncodeError:
        if is_asked:
            raise UsageError(f"--tracer nsys: {NOT_UTF8}; rename the script, or use --tracer embedded") from None
        usable, unusable = [], [*unusable, NOT_UTF8]
    for install in usable:
        faults = list(_faults(install, facts))
        severe = [finding.message for finding in faults if finding.severity is Severity.WARNING]
        if severe and not is_asked:
            unusable.append(severe[-1])
            continue
        reason = "asked for" if is_asked else f"newest that works, from {install.source}"
        record = TracerRecord(kind="nsys", version=install.version_text, path=str(install.path), reason=reason)
        return record, install, faults
    why = "; ".join(unusable) or "no nsys was found"
    if is_asked:
        raise ToolNotFoundError(f"--tracer nsys: {why}. Install one without root: `{INSTALL_NSYS}`, or use --nsys.")
    return _embedded(options, facts, why)


def _embedded(options: LaunchOptions, facts: MachineFacts, reason: str) -> Choice:
    if (python := facts.program.python) is not None:  # other programs: every Python child is traced
        if python.ignored_hook:
            raise UsageError(f"the embedded tracer: {python.ignored_hook}, or use --tracer nsys")
        if not facts.interpreter.has_perfharness and facts.interpreter.problem is None:
            install = recorder_install_command(facts.interpreter.executable)
            raise UsageError(f"the embedded tracer needs perfharness there: {install}; or use --tracer nsys")
    kind: TracerKind = "ranges" if options.tracer == "ranges" else "embedded"
    return TracerRecord(kind=kind, version=VERSION, reason=reason), None, ()


def _faults(install: NsysInstall, facts: MachineFacts) -> Iterator[Finding]:
    """Data that this nsys would lose."""
    nvtx = facts.interpreter.nvtx
    is_recorded = records_nvtx(install, nvtx)
    if facts.program.script is not None and not is_recorded:
        severity, may = (Severity.NOTE, "may record") if is_recorded is None else (Severity.WARNING, "records")
        message = f"nsys {install.version_text} {may} no ranges of nvtx {nvtx}"
        hint = f"pip install nvtx=={NVTX_PINNED}, use nsys {dotted(NSYS_RECORDS)} or newer, or --tracer embedded."
        yield Finding("tracer-too-old", severity, message, hint)
    if problem := too_old_for_driver(install, facts.gpus.cuda_driver):
        hint = f"Install Nsight Systems for CUDA {dotted(facts.gpus.cuda_driver or ())}, or add --tracer embedded."
        yield Finding("tracer-too-old", Severity.WARNING, problem, hint)


# ---- GPUs ----


def _gpus(options: LaunchOptions, facts: MachineFacts) -> Gpus:
    each = options.gpus_per_process
    number, offset = options.num_gpus or each, options.gpu_offset or 0
    if number < 1 or each < 1 or offset < 0 or (options.gpus and (options.num_gpus or options.gpu_offset)):
        return ()  # already reported
    visible, names = facts.visible_devices, options.gpus
    is_hidden = not names and visible == ""  # a run without GPUs
    if facts.gpus.gpus and not is_hidden:
        return choose_gpus(facts.gpus.gpus, names=names, number=number, offset=offset, visible_devices=visible)
    if names or number > 1 or offset > 0:
        asked = f"--gpus {','.join(names)}" if names else f"-ng {number} -go {offset}"
        reason = "CUDA_VISIBLE_DEVICES is empty" if is_hidden else facts.gpus.problem or "none was found"
        raise UsageError(f"{asked}: no usable GPU ({reason})")
    return ()


def _groups(gpus: Gpus, options: LaunchOptions) -> list[Gpus]:
    """Groups of GPUs, one per process; one empty group without a GPU."""
    each = options.gpus_per_process
    if not gpus or each < 1:
        return [()]
    if len(gpus) % each:
        raise UsageError(f"gpus-per-process {each} does not divide {len(gpus)} GPUs; change -ng or --gpus")
    return [gpus[first : first + each] for first in range(0, len(gpus), each)]


def _gpu_findings(options: LaunchOptions, facts: MachineFacts, groups: Sequence[Gpus]) -> Iterator[Finding]:
    if any(len(group) > 1 and any(gpu.mig for gpu in group) for group in groups):
        message = "A process has several GPUs, but CUDA shows it only one MIG instance."
        hint = "Use one MIG instance per process."
        yield Finding("several-mig-instances", Severity.WARNING, message, hint)
    is_numbered = not options.gpus and re.fullmatch(r"\d+(,\d+)*", facts.visible_devices or "")
    if is_numbered and len({gpu.name for gpu in facts.gpus.gpus}) > 1:
        message = f"CUDA_VISIBLE_DEVICES={facts.visible_devices} was read in PCI bus order; CUDA orders GPUs by speed."
        hint = "Name the GPUs by UUID: --gpus GPU-…"
        yield Finding("gpu-order-ambiguous", Severity.WARNING, message, hint)


# ---- processes ----


def _processes(
    options: LaunchOptions,
    facts: MachineFacts,
    tracer: str,
    groups: Sequence[Gpus],
    cpus: Sequence[tuple[int, ...]],
) -> Iterator[ProcessSpec]:
    shared = {
        environment.NUM_PROCESSES: str(len(groups)),
        environment.TRACER: tracer,
        environment.WARMUP_BATCHES: str(options.warmup_batches),
        environment.LOG_LEVEL: options.log_level,
    }
    if options.sampling and tracer in ("nsys", "embedded"):
        shared[environment.SAMPLING] = "1"
    if options.on_demand:
        shared[environment.ON_DEMAND] = "1"
    if options.capture_batches:
        shared[environment.CAPTURE_BATCHES] = options.capture_batches
        shared |= {NVTX_BY_NAME: "0"} if tracer == "nsys" else {}
    if facts.annotations:
        shared[environment.ANNOTATIONS] = facts.annotations.to_json()
    on_gpus: Counter[str] = Counter()  # MIG instances of one GPU share its index
    for index, (gpus, bound) in enumerate(zip(groups, cpus, strict=True)):
        indices = [str(gpu.index) for gpu in gpus] or ["0"]
        own = {environment.PROCESS_INDEX: str(index), environment.GPU_INDEX: ",".join(indices)}
        own |= {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}
        name = "-".join(indices)
        folder = f"proc_{on_gpus[name]}_gpu_{name}"
        yield ProcessSpec(index, gpus, folder, facts.program.command, {**shared, **own}, bound)
        on_gpus[name] += 1
