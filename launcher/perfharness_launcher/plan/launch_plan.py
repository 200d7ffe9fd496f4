"""Options and machine -> what will be started. Pure: every conflict is found here, before anything starts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfharness.errors import LaunchError, PerfHarnessError, UsageError
from perfharness.model import environment
from perfharness.model.annotations import Annotations
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import EXPLAIN_NAME, EnvironmentRecord, GpuRecord, SourceRecord, TracerRecord
from perfharness_launcher.nsys import CAPTURE_OPTIONS, NVTX_BY_NAME, NsysTracing
from perfharness_launcher.plan.gpus import choose_gpus
from perfharness_launcher.plan.machine import InterpreterFacts, MachineFacts
from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.plan.placement import Placed, place
from perfharness_launcher.plan.program import Program
from perfharness_launcher.plan.tracers import TracerDecision, choose_tracer, ignored_hook
from perfharness_launcher.process import Placement, ProcessGroup, ProcessSpec

MOST_PROCESSES = 4096
"""Per GPU. More than a machine runs: a number with digits too many."""


@dataclass(frozen=True)
class LaunchPlan:
    """All that will be started, and the findings known beforehand."""

    options: LaunchOptions
    tracer: TracerRecord
    nsys: NsysTracing | None
    gpus: tuple[GpuRecord, ...]
    processes: tuple[ProcessSpec, ...]
    interpreter: InterpreterFacts
    program: Program
    environment: EnvironmentRecord = field(default_factory=EnvironmentRecord)
    source: SourceRecord | None = None
    placement_reason: str = ""
    annotations: Annotations | None = None
    findings: tuple[Finding, ...] = ()
    explaining: bool = False
    """Whether this is the explaining pass."""
    measured_s: float | None = None
    """Of an explaining pass: how long the measured one took, where that is known."""

    @property
    def group(self) -> ProcessGroup:
        """The processes to supervise."""
        barrier_timeout_s = self.options.barrier_timeout_s if self.options.barrier else None
        return ProcessGroup(self.processes, self.nsys, self.options.timeout_s, barrier_timeout_s)


def folders_of(plans: Sequence[LaunchPlan]) -> list[str]:
    """Names of the folders of the launches of a series."""
    return [plan.options.output_dir.name for plan in plans]


def make_plan(options: LaunchOptions, facts: MachineFacts) -> LaunchPlan:
    """The plan of a launch.

    Raises:
        UsageError: one sentence a line for everything that is wrong with the command line.
        LaunchError: the same for what is wrong with the machine.
    """
    decision = choose_tracer(options, facts)
    problems: list[PerfHarnessError] = [UsageError(text) for text in _conflicts(options, facts)]
    if decision.problem is not None:
        problems.append(decision.problem)
    elif options.trace_os and decision.record.kind != "nsys":
        problems.append(
            UsageError(f"trace-os: only nsys records the operating system's calls, not {decision.record.kind}")
        )
    problems += [UsageError(text) for text in _capture_conflicts(options, facts, decision)]
    gpus: tuple[GpuRecord, ...] = ()
    of_process: list[tuple[GpuRecord, ...]] = []  # GPU by GPU
    placed = Placed((), "")
    try:
        gpus = _gpus(options, facts)
        number = min(options.num_processes, MOST_PROCESSES)
        of_process = [group for group in _groups(gpus, options) for _ in range(number)]
        placed = place(of_process, options.cpu_bind, facts.topology, facts.near_gpus)
    except UsageError as error:
        problems.append(error)
    if problems:
        _refuse(problems)
    if options.require_exclusive and not gpus:
        raise UsageError(f"--require-exclusive: no GPU is used ({facts.gpu_problem or 'none is visible'})")
    return LaunchPlan(
        options=options,
        tracer=decision.record,
        nsys=None
        if decision.nsys is None
        else NsysTracing(
            decision.nsys, cuda=bool(gpus), os_calls=options.trace_os, captures=options.capture_batches is not None
        ),
        gpus=gpus,
        processes=tuple(_processes(options, facts, decision.record.kind, of_process, placed.placements)),
        interpreter=facts.interpreter,
        program=facts.program,
        environment=facts.environment,
        source=facts.source,
        placement_reason=placed.reason,
        annotations=facts.annotations,
        findings=(*decision.findings, *_gpu_findings(options, facts), *_group_findings(of_process)),
    )


def explaining_pass(plan: LaunchPlan, measured_s: float | None = None) -> LaunchPlan:
    """The same launch again, in a folder inside of the first one's, recording what explains its times.

    Idle GPUs are not sampled again, nor is it waited until they are cool or checked that they are without other users:
    what NVML reports may still be the first one's work.

    Args:
        plan: of the measured pass.
        measured_s: how long that took, where it is known: in a long pass counters are sampled less often.
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
    processes = (replace(spec, environment={**spec.environment, environment.EXPLAIN: "1"}) for spec in plan.processes)
    nsys = None if plan.nsys is None else replace(plan.nsys, explain=True)
    return replace(
        plan, options=options, nsys=nsys, processes=tuple(processes), findings=(), explaining=True,
        measured_s=measured_s,
    )  # fmt: skip


def _refuse(problems: list[PerfHarnessError]) -> None:
    text = "\n".join(str(problem) for problem in problems)
    if any(isinstance(problem, UsageError) for problem in problems):
        raise UsageError(text)
    if len(problems) == 1:
        raise problems[0]
    raise LaunchError(text)


def _conflicts(options: LaunchOptions, facts: MachineFacts) -> Iterator[str]:
    problems = (facts.program.problem, facts.interpreter.problem, facts.interpreter.module_problem)
    yield from (problem for problem in (*problems, facts.output_problem) if problem is not None)
    if not 1 <= options.num_processes <= MOST_PROCESSES:
        yield f"-np {options.num_processes}: must be 1 to {MOST_PROCESSES} processes per GPU"
    if options.num_gpus is not None and options.num_gpus < 1:
        yield f"-ng {options.num_gpus}: at least one GPU is needed (a machine without one counts as one)"
    if options.gpus_per_process < 1:
        yield f"gpus-per-process {options.gpus_per_process}: at least one GPU is needed"
    if options.gpu_offset is not None and options.gpu_offset < 0:
        yield f"-go {options.gpu_offset}: the offset cannot be negative"
    if options.warmup_batches < 0:
        yield f"-w {options.warmup_batches}: the number of warm-up batches cannot be negative"
    if options.timeout_s is not None and not options.timeout_s > 0:
        yield f"--timeout {options.timeout_s:g}: must be more than 0 seconds"
    if not 0 <= options.measure_idle_s < math.inf:
        yield f"measure-idle {options.measure_idle_s:g}: must be 0 seconds or more"
    if not 0 < options.barrier_timeout_s < math.inf:
        yield (
            f"--barrier-timeout {options.barrier_timeout_s:g}: must be a number of seconds above 0; --no-barrier holds"
            " none"
        )
    if options.cool_down_c is not None and not math.isfinite(options.cool_down_c):
        yield f"--cool-down {options.cool_down_c:g}: must be a temperature in degrees Celsius"
    if not options.cool_down_limit_s >= 0:
        yield f"cool-down-limit {options.cool_down_limit_s:g}: must be 0 seconds or more"
    if options.gpus and (options.num_gpus is not None or options.gpu_offset is not None):
        yield "--gpus names the GPUs, so -ng and -go cannot choose them by number as well; leave one of the two away"
    if options.explain and options.tracer in ("ranges", "none"):
        yield f"--explain needs what a tracer records, and --tracer {options.tracer} is to cost nothing; leave one away"
    if options.nsys is not None and options.tracer in ("embedded", "ranges", "none"):
        yield f"--nsys names an nsys, but --tracer {options.tracer} does not use it; leave one of the two away"
    yield from _annotation_conflicts(options, facts)
    if options.batch_pattern is not None:
        try:
            re.compile(options.batch_pattern)
        except re.error as error:
            yield f"batch-pattern {options.batch_pattern!r} is no regular expression: {error}"


def _capture_conflicts(options: LaunchOptions, facts: MachineFacts, decision: TracerDecision) -> Iterator[str]:
    """Of `--capture-batches`."""
    if (wanted := options.capture_batches) is None:
        return
    found = re.fullmatch(r"(\d{1,12}):(\d{1,12})", wanted)
    if found is None or int(found[1]) >= int(found[2]):
        yield f"--capture-batches {wanted}: must be FIRST:LAST with FIRST below LAST, as in 10:60"
    if options.explain:
        yield "--capture-batches: --explain samples the whole program, so it cannot go with it; leave one of them away"
    if options.telemetry:
        yield (
            "--capture-batches needs --no-telemetry: power and use of the GPU are of all batches, and which work they "
            "belong to is only known of those that are captured"
        )
    kind = decision.record.kind
    if kind == "none":
        yield "--capture-batches needs a tracer, and there is none; leave one of the two away"
    if kind == "embedded" and facts.gpus:
        yield "--capture-batches: the embedded tracer records GPU work from start to end; take --tracer nsys"
    if (
        kind == "nsys"
        and decision.nsys is not None
        and (missing := set(CAPTURE_OPTIONS) - decision.nsys.profile_options)
    ):
        yield f"--capture-batches: this nsys has no --{min(missing)}; a newer one has"


def _annotation_conflicts(options: LaunchOptions, facts: MachineFacts) -> Iterator[str]:
    asked = [
        name
        for name, value in (
            ("--annotate", options.annotate),
            ("--annotate-torch", options.annotate_torch),
            ("--annotate-collectives", options.annotate_collectives or None),
        )
        if value is not None
    ]
    if not asked:
        return
    if options.annotate is not None and (facts.source is None or facts.source.script_sha256 is None):
        yield from _no_script_to_annotate(options, facts)
    elif (
        (facts.program.is_python or options.annotate is not None)
        and not facts.interpreter.has_perfharness
        and facts.interpreter.problem is None
    ):
        yield (
            f"{asked[0]} works inside {facts.interpreter.executable}, which cannot import perfharness; install"
            " perfharness there"
        )
    if ignored := ignored_hook(facts.program):
        yield f"{asked[0]}: {ignored}"
    if options.annotate_torch is not None and options.annotate_torch < 0:
        yield f"--annotate-torch {options.annotate_torch}: the depth cannot be negative; 0 is the outermost module"
    yield from facts.annotation_problems


def _no_script_to_annotate(options: LaunchOptions, facts: MachineFacts) -> Iterator[str]:
    if facts.program.problem is None and facts.interpreter.problem is None and facts.interpreter.module_problem is None:
        yield (
            f"--annotate looks functions up before anything starts, and which Python script {options.script} runs is"
            " not known; launch `python FILE` itself, or annotate in the code"
        )


def _gpus(options: LaunchOptions, facts: MachineFacts) -> tuple[GpuRecord, ...]:
    each = options.gpus_per_process
    number, offset = options.num_gpus or each, options.gpu_offset or 0
    if number < 1 or each < 1 or offset < 0 or (options.gpus and (options.num_gpus or options.gpu_offset)):
        return ()  # already reported
    if not facts.gpus:
        if options.gpus or number > 1 or offset > 0:
            asked = f"--gpus {','.join(options.gpus)}" if options.gpus else f"-ng {number} -go {offset}"
            asked += f" gpus-per-process {each}" if each > 1 else ""
            raise UsageError(f"{asked}: no GPU can be used here ({facts.gpu_problem or 'none was found'})")
        return ()
    if not options.gpus and facts.visible_devices == "":
        if number > 1 or offset > 0:
            raise UsageError(f"-ng {number} -go {offset}: CUDA_VISIBLE_DEVICES is empty, so no GPU can be used")
        return ()  # GPUs hidden on purpose: a run without one
    return choose_gpus(
        facts.gpus,
        names=options.gpus,
        number=number,
        offset=offset,
        visible_devices=facts.visible_devices,
    )


def _groups(gpus: Sequence[GpuRecord], options: LaunchOptions) -> list[tuple[GpuRecord, ...]]:
    """The GPUs that processes see together, in order; one group of none where there is no GPU. Raises `UsageError`."""
    each = options.gpus_per_process
    if not gpus or each < 1:
        return [()]
    if len(gpus) % each:
        raise UsageError(
            f"gpus-per-process {each}: {len(gpus)} GPUs cannot be divided into groups of {each}; -ng or --gpus"
            " chooses how many are used"
        )
    return [tuple(gpus[first : first + each]) for first in range(0, len(gpus), each)]


def _group_findings(groups: Sequence[Sequence[GpuRecord]]) -> Iterator[Finding]:
    """CUDA shows a process one MIG instance, whatever CUDA_VISIBLE_DEVICES names."""
    if any(len(group) > 1 and any(gpu.mig for gpu in group) for group in groups):
        yield Finding(
            "several-mig-instances",
            Severity.WARNING,
            "A process is given several GPUs of which one is a MIG instance, and CUDA shows each process one instance",
            "a program whose ranks choose their own CUDA_VISIBLE_DEVICES can use them; others see the first alone",
        )


def _gpu_findings(options: LaunchOptions, facts: MachineFacts) -> Iterator[Finding]:
    """CUDA numbers GPUs by speed unless configured otherwise, NVML by bus; they can only differ where the GPUs do."""
    if options.gpus or not re.fullmatch(r"\d+(,\d+)*", facts.visible_devices or ""):
        return
    if len({gpu.name for gpu in facts.gpus}) > 1:
        yield Finding(
            "gpu-order-ambiguous",
            Severity.WARNING,
            f"CUDA_VISIBLE_DEVICES={facts.visible_devices} was read in the order of the PCI bus, but CUDA orders"
            " unlike GPUs by speed",
            "name the GPUs by UUID: --gpus GPU-…",
        )


def _processes(
    options: LaunchOptions,
    facts: MachineFacts,
    tracer: str,
    groups: Sequence[tuple[GpuRecord, ...]],
    placements: Sequence[Placement],
) -> Iterator[ProcessSpec]:
    on_gpus: Counter[str] = Counter()  # MIG instances of one GPU share its index
    command = _command(options, facts.program, facts.interpreter)
    for index, (gpus, placement) in enumerate(zip(groups, placements, strict=True)):
        indices = [str(gpu.index) for gpu in gpus] or ["0"]
        name = "-".join(indices)
        yield ProcessSpec(
            index=index,
            gpus=gpus,
            folder=f"proc_{on_gpus[name]}_gpu_{name}",
            command=command,
            environment={
                environment.PROCESS_INDEX: str(index),
                environment.NUM_PROCESSES: str(len(groups)),
                environment.GPU_INDEX: ",".join(indices),
                environment.TRACER: tracer,
                environment.WARMUP_BATCHES: str(options.warmup_batches),
                environment.LOG_LEVEL: options.log_level,
                **({environment.CAPTURE_BATCHES: options.capture_batches} if options.capture_batches else {}),
                **({NVTX_BY_NAME: "0"} if options.capture_batches and tracer == "nsys" else {}),
                **({environment.ANNOTATIONS: facts.annotations.to_json()} if facts.annotations else {}),
                **({"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}),
            },
            placement=placement,
        )
        on_gpus[name] += 1


def _command(options: LaunchOptions, program: Program, interpreter: InterpreterFacts) -> tuple[str, ...]:
    if not program.is_python:
        return (program.path or program.name, *options.script_arguments)
    return (interpreter.executable, *program.interpreter_options, *program.target, *options.script_arguments)
