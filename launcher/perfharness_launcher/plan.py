"""Options and machine -> what is started. Pure: every conflict is found here, before anything starts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfharness.errors import LaunchError, PerfHarnessError, ToolNotFoundError, UsageError
from perfharness.model import environment
from perfharness.model.annotations import Annotations
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import EXPLAIN_NAME, EnvironmentRecord, GpuRecord, SourceRecord, TracerRecord
from perfharness_launcher.gpus import choose_gpus, place
from perfharness_launcher.machine import MachineFacts
from perfharness_launcher.nsys import CAPTURE_OPTIONS, NVTX_BY_NAME, NsysTracing
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.process import Placement, ProcessGroup, ProcessSpec
from perfharness_launcher.program import Program
from perfharness_launcher.tracer_choice import TracerChoice, choose_tracer

MOST_PROCESSES = 4096
"""Per GPU: more is a typing error."""

Gpus = tuple[GpuRecord, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """All that will be started, and the findings known beforehand.

    Args:
        program: with the arguments of the script.
        explaining: whether this is the profiling pass of `--explain`.
        measured_s: how long the measured pass before it took.
    """

    options: LaunchOptions
    tracer: TracerRecord
    nsys: NsysTracing | None
    gpus: Gpus
    processes: tuple[ProcessSpec, ...]
    program: Program
    environment: EnvironmentRecord = field(default_factory=EnvironmentRecord)
    source: SourceRecord | None = None
    placement_reason: str = ""
    annotations: Annotations | None = None
    findings: tuple[Finding, ...] = ()
    explaining: bool = False
    measured_s: float | None = None

    @property
    def group(self) -> ProcessGroup:
        """The processes to supervise."""
        barrier_timeout_s = self.options.barrier_timeout_s if self.options.barrier else None
        return ProcessGroup(self.processes, self.nsys, self.options.timeout_s, barrier_timeout_s)


def folders_of(plans: Sequence[LaunchPlan]) -> list[str]:
    """Names of the folders of the launches of a series."""
    return [plan.options.output_dir.name for plan in plans]


def make_plan(options: LaunchOptions, facts: MachineFacts) -> LaunchPlan:
    """Plan a launch.

    Raises:
        UsageError: what is wrong with the command line, one sentence per line.
        LaunchError: what is wrong with the machine.
    """
    problems: list[PerfHarnessError] = [UsageError(text) for text in _conflicts(options, facts)]
    choice = TracerChoice(TracerRecord(kind="none"))
    try:
        choice = choose_tracer(options, facts)
        problems += [UsageError(text) for text in _tracer_conflicts(options, facts, choice)]
    except (UsageError, ToolNotFoundError) as error:
        problems.append(error)
    groups: list[Gpus] = []
    placements: list[Placement] = []
    placement_reason = ""
    try:
        number = min(options.num_processes, MOST_PROCESSES)
        groups = [group for group in _groups(_gpus(options, facts), options) for _ in range(number)]
        placements, placement_reason = place(groups, options.cpu_bind, facts.cpus)
    except UsageError as error:
        problems.append(error)
    if problems:
        _refuse(problems)
    gpus = tuple(dict.fromkeys(gpu for group in groups for gpu in group))
    if options.require_exclusive and not gpus:
        raise UsageError(f"--require-exclusive: there is no GPU ({facts.gpu_problem or 'none is visible'})")
    captures = options.capture_batches is not None
    nsys = None
    if choice.nsys is not None:
        nsys = NsysTracing(choice.nsys, cuda=bool(gpus), os_calls=options.trace_os, captures=captures)
    return LaunchPlan(
        options=options,
        tracer=choice.record,
        nsys=nsys,
        gpus=gpus,
        processes=tuple(_processes(options, facts, choice.record.kind, groups, placements)),
        program=facts.program,
        environment=facts.environment,
        source=facts.source,
        placement_reason=placement_reason,
        annotations=facts.annotations,
        findings=(*choice.findings, *_gpu_findings(options, facts, groups)),
    )


def explaining_pass(plan: LaunchPlan, measured_s: float | None = None) -> LaunchPlan:
    """Plan the profiling pass: the same launch in a folder inside that of the measured pass.

    It does not wait for the GPUs, nor checks their users: NVML may still report the measured pass.

    Args:
        measured_s: how long the measured pass took: counters of a long pass are sampled less often.
    """
    options = plan.options.model_copy(
        update={
            "explain": False,
            "output_dir": plan.options.output_dir / EXPLAIN_NAME,
            "measure_idle_s": 0.0,
            "cool_down_c": None,
            "require_exclusive": False,
        }
    )
    return replace(
        plan,
        options=options,
        nsys=plan.nsys and replace(plan.nsys, explain=True),
        processes=tuple(
            replace(spec, environment={**spec.environment, environment.EXPLAIN: "1"}) for spec in plan.processes
        ),
        findings=(),
        explaining=True,
        measured_s=measured_s,
    )


def _refuse(problems: list[PerfHarnessError]) -> None:
    text = "\n".join(map(str, problems))
    if any(isinstance(problem, UsageError) for problem in problems):
        raise UsageError(text)
    raise type(problems[0])(text) if len(problems) == 1 else LaunchError(text)


# ---- conflicts ----


def _conflicts(options: LaunchOptions, facts: MachineFacts) -> Iterator[str]:
    problems = (facts.program.problem, facts.interpreter.problem, facts.interpreter.module_problem)
    yield from filter(None, (*problems, facts.output_problem))
    timeout, cool_down = options.timeout_s, options.cool_down_c
    numbered_gpus = options.num_gpus is not None or options.gpu_offset is not None
    checks = (
        (1 <= options.num_processes <= MOST_PROCESSES, f"-np {options.num_processes}: must be 1 to {MOST_PROCESSES}"),
        (options.num_gpus is None or options.num_gpus >= 1, f"-ng {options.num_gpus}: must be 1 or more"),
        (options.gpus_per_process >= 1, f"gpus-per-process {options.gpus_per_process}: must be 1 or more"),
        ((options.gpu_offset or 0) >= 0, f"-go {options.gpu_offset}: must be 0 or more"),
        (options.warmup_batches >= 0, f"-w {options.warmup_batches}: must be 0 or more"),
        (timeout is None or timeout > 0, f"--timeout {timeout}: must be more than 0 seconds"),
        (0 <= options.measure_idle_s < math.inf, f"measure-idle {options.measure_idle_s}: must be 0 seconds or more"),
        (
            0 < options.barrier_timeout_s < math.inf,
            f"--barrier-timeout {options.barrier_timeout_s}: must be more than 0 seconds; or use --no-barrier",
        ),
        (cool_down is None or math.isfinite(cool_down), f"--cool-down {cool_down}: must be degrees Celsius"),
        (options.cool_down_limit_s >= 0, f"cool-down-limit {options.cool_down_limit_s}: must be 0 seconds or more"),
        ((options.annotate_torch or 0) >= 0, f"--annotate-torch {options.annotate_torch}: must be 0 or more"),
        (not options.gpus or not numbered_gpus, "--gpus cannot be combined with -ng or -go"),
        (
            not options.explain or options.tracer not in ("ranges", "none"),
            f"--explain needs more than --tracer {options.tracer} records; drop one of them",
        ),
        (
            options.nsys is None or options.tracer in ("auto", "nsys"),
            f"--nsys is not used with --tracer {options.tracer}; drop one of them",
        ),
    )
    yield from (text for is_fine, text in checks if not is_fine)
    yield from _annotation_conflicts(options, facts)
    if options.batch_pattern is not None:
        try:
            re.compile(options.batch_pattern)
        except re.error as error:
            yield f"batch-pattern {options.batch_pattern!r} is not a regular expression: {error}"


def _tracer_conflicts(options: LaunchOptions, facts: MachineFacts, choice: TracerChoice) -> Iterator[str]:
    kind = choice.record.kind
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
        yield "--capture-batches needs --no-telemetry: power and use of the GPU would be those of all batches"
    if kind == "none":
        yield "--capture-batches needs a tracer"
    if kind == "embedded" and facts.gpus:
        yield "--capture-batches with a GPU needs --tracer nsys: the embedded tracer records all GPU work"
    if choice.nsys is not None and (missing := set(CAPTURE_OPTIONS) - choice.nsys.profile_options):
        yield f"--capture-batches: nsys {choice.nsys.version_text} has no --{min(missing)}; use a newer nsys"


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
    if options.annotate is not None and (facts.source is None or facts.source.script_sha256 is None):
        if is_found:
            yield f"--annotate: the Python script that {options.script} runs is unknown; launch `python FILE` itself"
    elif is_found and not interpreter.has_perfharness and (program.python or options.annotate is not None):
        yield f"{asked} needs perfharness in {interpreter.executable}; install it there"
    if program.python is not None and program.python.ignored_hook:
        yield f"{asked}: {program.python.ignored_hook}"
    yield from facts.annotation_problems


# ---- GPUs ----


def _gpus(options: LaunchOptions, facts: MachineFacts) -> Gpus:
    each = options.gpus_per_process
    number, offset = options.num_gpus or each, options.gpu_offset or 0
    if number < 1 or each < 1 or offset < 0 or (options.gpus and (options.num_gpus or options.gpu_offset)):
        return ()  # already reported
    reason = facts.gpu_problem or "none was found"
    available = facts.gpus
    if not options.gpus and facts.visible_devices == "":
        available, reason = (), "CUDA_VISIBLE_DEVICES is empty"  # a run without GPUs
    if available:
        return choose_gpus(
            available, names=options.gpus, number=number, offset=offset, visible_devices=facts.visible_devices
        )
    if options.gpus or number > 1 or offset > 0:
        asked = f"--gpus {','.join(options.gpus)}" if options.gpus else f"-ng {number} -go {offset}"
        raise UsageError(f"{asked}: there is no usable GPU ({reason})")
    return ()


def _groups(gpus: Gpus, options: LaunchOptions) -> list[Gpus]:
    """The GPUs that processes see together; one empty group without a GPU."""
    each = options.gpus_per_process
    if not gpus or each < 1:
        return [()]
    if len(gpus) % each:
        raise UsageError(
            f"gpus-per-process {each}: {len(gpus)} GPUs are not a multiple of {each}; change -ng or --gpus"
        )
    return [gpus[first : first + each] for first in range(0, len(gpus), each)]


def _gpu_findings(options: LaunchOptions, facts: MachineFacts, groups: Sequence[Gpus]) -> Iterator[Finding]:
    if any(len(group) > 1 and any(gpu.mig for gpu in group) for group in groups):
        yield Finding(
            "several-mig-instances",
            Severity.WARNING,
            "A process has several GPUs, one of them a MIG instance; CUDA shows a process only one MIG instance",
            "use one MIG instance per process, or a program whose ranks set CUDA_VISIBLE_DEVICES themselves",
        )
    is_numbered = not options.gpus and re.fullmatch(r"\d+(,\d+)*", facts.visible_devices or "")
    if is_numbered and len({gpu.name for gpu in facts.gpus}) > 1:
        yield Finding(
            "gpu-order-ambiguous",
            Severity.WARNING,
            f"CUDA_VISIBLE_DEVICES={facts.visible_devices} was read in PCI bus order, but CUDA orders GPUs by speed",
            "name the GPUs by UUID: --gpus GPU-…",
        )


# ---- processes ----


def _processes(
    options: LaunchOptions,
    facts: MachineFacts,
    tracer: str,
    groups: Sequence[Gpus],
    placements: Sequence[Placement],
) -> Iterator[ProcessSpec]:
    on_gpus: Counter[str] = Counter()  # MIG instances of one GPU share its index
    for index, (gpus, placement) in enumerate(zip(groups, placements, strict=True)):
        indices = [str(gpu.index) for gpu in gpus] or ["0"]
        name = "-".join(indices)
        yield ProcessSpec(
            index=index,
            gpus=gpus,
            folder=f"proc_{on_gpus[name]}_gpu_{name}",
            command=facts.program.command,
            environment={
                environment.PROCESS_INDEX: str(index),
                environment.NUM_PROCESSES: str(len(groups)),
                environment.GPU_INDEX: ",".join(indices),
                environment.TRACER: tracer,
                environment.WARMUP_BATCHES: str(options.warmup_batches),
                environment.LOG_LEVEL: options.log_level,
                **({environment.SAMPLING: "1"} if options.sampling and tracer in ("nsys", "embedded") else {}),
                **({environment.CAPTURE_BATCHES: options.capture_batches} if options.capture_batches else {}),
                **({NVTX_BY_NAME: "0"} if options.capture_batches and tracer == "nsys" else {}),
                **({environment.ANNOTATIONS: facts.annotations.to_json()} if facts.annotations else {}),
                **({"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}),
            },
            placement=placement,
        )
        on_gpus[name] += 1
