"""What the samples of the explaining pass say of a stage's causes: which lines of the user's code they lead to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfharness.analysis.diagnosis.call_roles import ROLE_NAMES
from perfharness.analysis.diagnosis.issuing import stretches
from perfharness.analysis.diagnosis.rules.evidence import HostEvidence
from perfharness.analysis.diagnosis.workload import StageEvents
from perfharness.analysis.frames import is_library
from perfharness.analysis.host_profile import (
    collections_of_stage,
    functions_inside,
    inside,
    lines_during,
    own_functions,
)
from perfharness.model.diagnosis import FunctionTime
from perfharness.model.host_samples import Frame, HostEventKind, HostProbe, HostSamples, HostState
from perfharness.model.trace import Bool, Int64

MIN_SAMPLES = 5
"""Samples inside of calls of a kind that name a line by themselves."""
NEAR_NS = 50_000
"""With fewer, those this close to one count too: a thread's stack is read about that long after its time is."""

COMPILERS = (
    "torch/_dynamo/convert_frame.py", "torch/utils/cpp_extension.py", "triton/compiler/code_generator.py",
    "triton/backends/nvidia/compiler.py", "jax/_src/interpreters/partial_eval.py", "jax/_src/interpreters/mlir.py",
    "jax/_src/compiler.py", "cupy/cuda/compiler.py", "numba/core/compiler.py", "re/_compiler.py", "re/_parser.py",
    "/sre_compile.py", "/sre_parse.py",
)  # fmt: skip
"""Ends of files that are on a stack only while something is compiled, not while it runs."""
LOADERS = (
    "torch/utils/data/dataloader.py", "multiprocessing/queues.py", "multiprocessing/pool.py", "/queue.py",
)  # fmt: skip
"""Ends of files that are on a stack while a thread waits for what others prepare. A bare pipe may be anything's."""
CHILDREN = ("/subprocess.py", "/asyncio/subprocess.py")
"""Ends of files that are on a stack while a thread reads a program's output until that ends."""
WAITING = (HostState.LOCK, HostState.SOCKET, HostState.SLEEP, HostState.OTHER)
COMPUTING = (HostState.RUNNING, HostState.RUNNABLE, HostState.UNKNOWN)


KINDS: tuple[tuple[str, tuple[str, ...], tuple[HostState, ...]], ...] = (
    ("compiler", COMPILERS, tuple(HostState)),
    ("loader", LOADERS, WAITING),
    ("child", CHILDREN, (HostState.SOCKET,)),
)
"""Kinds of libraries, their files, and the states of a thread in which being inside of them counts."""


def stacks_of_libraries(samples: HostSamples) -> dict[str, Bool]:
    """Which stacks have a frame of each kind of library; a last entry, False, is for samples without a stack."""
    found = {}
    for kind, files, _ in KINDS:
        is_of = [_is_of(frame, files) for frame in samples.frames]
        has = [any(is_of[frame] for frame in stack) for stack in samples.stacks]
        found[kind] = np.asarray([*has, False], dtype=np.bool_)
    return found


def host_evidence(events: StageEvents, in_library: Mapping[str, Bool]) -> HostEvidence | None:
    """None where the process's threads were not sampled.

    Args:
        in_library: `stacks_of_libraries`.
    """
    probe, profile = events.workload.host_probe, events.profile
    if probe is None or profile is None:
        return None
    samples, rows = probe.samples, events.sample_rows
    state = samples.state[rows]
    total = float(samples.length_ns[rows].sum())
    ms_per_ns = events.ms(events.wall) / total if total else 0.0

    def busiest(chosen: Int64) -> FunctionTime | None:
        return next(iter(own_functions(samples, chosen, ms_per_ns)), None)

    in_state = {kind.name.lower(): line for kind in HostState if (line := busiest(rows[state == kind])) is not None}
    work_ms, work_lines = {}, {}
    for kind, _, states in KINDS:
        chosen = rows[np.isin(state, states) & in_library[kind][samples.stack[rows]]]
        line = busiest(chosen)
        if line is not None:
            work_ms[kind] = float(samples.length_ns[chosen].sum()) * ms_per_ns
            work_lines[kind] = line
    computing = rows[np.isin(state, COMPUTING)]
    own = busiest(computing)
    called = [] if own is None else functions_inside(samples, computing, ms_per_ns, own)
    return HostEvidence(
        profile=profile,
        busiest=own,
        in_libraries=[function for function in called if is_library(function.file)],
        in_state=in_state,
        during=_lines_of_calls(samples, events) | _lines_of_collections(probe, events),
        work_ms=work_ms,
        work_lines=work_lines,
        recorder=next(iter(own_functions(samples, rows, ms_per_ns, of_recorder=True)), None),
        crowded_ms=(profile.state_ms.get("runnable") or 0.0) * _crowded_share(probe, rows),
    )


def _crowded_share(probe: HostProbe, rows: Int64) -> float:
    """Of the time in which the threads were ready without a CPU: while the process had more threads ready than CPUs."""
    events, samples = probe.events, probe.samples
    crowded = events.kind == HostEventKind.CROWDED
    is_inside = inside(samples.time_ns[rows], events.start_ns[crowded], events.end_ns[crowded])
    waited = np.maximum(samples.runnable_ns[rows], 0)
    return float(waited[is_inside].sum()) / max(float(waited.sum()), 1.0)


def _is_of(frame: Frame, files: tuple[str, ...]) -> bool:
    return frame.file.replace("\\", "/").endswith(files)


def _lines_of_collections(probe: HostProbe, events: StageEvents) -> dict[str, FunctionTime]:
    """The line of the user's code at which most of the garbage collector's time passed."""
    runs, mine = probe.events, collections_of_stage(probe, events.spans)
    stretch = runs.thread[mine], runs.start_ns[mine], runs.end_ns[mine]
    lines = lines_during(probe.samples, *stretch, own_code=True)
    return {"collections": lines[0].scaled(events.per_batch)} if lines else {}


def _lines_of_calls(samples: HostSamples, events: StageEvents) -> dict[str, FunctionTime]:
    """By the kind of call, the line of the user's code that most of its time was spent at."""
    found = {}
    for role, name in ROLE_NAMES.items():
        thread, start, end = stretches(events, role)
        if not len(start):
            continue
        lines = lines_during(samples, thread, start, end, own_code=True)
        if sum(line.self_ms for line in lines) * 1e6 < MIN_SAMPLES * samples.interval_ns:
            lines = lines_during(samples, thread, start - NEAR_NS, end + NEAR_NS, own_code=True)
        if lines:
            found[name] = lines[0].scaled(events.per_batch)
    return found
