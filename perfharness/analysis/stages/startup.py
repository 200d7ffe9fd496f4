"""Start-up of a process until its first batch, from the launch, the recorder and the trace, all on UTC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.cuda_calls import NEEDS_CONTEXT, calls_named
from perfharness.model.journal import RecorderJournal, StartupRecord
from perfharness.model.result import BatchLoop, FirstCuda
from perfharness.model.trace import Trace
from perfharness.model.units import NS_PER_MS

MODEL_LOAD, CUDA_CONTEXT = "model_load", "cuda_context"
NO_RANGE = 'the script has no startup_range("{}")'
WHY_UNKNOWN = {
    "process_to_first_batch_ms": "there was no batch, or its start is unknown",
    "interpreter_and_imports_ms": "the start of the script's own work is unknown, without a recorder or range",
    "cuda_context_ms": f"{NO_RANGE.format(CUDA_CONTEXT)}, and the trace lacks the first CUDA calls",
    "model_load_ms": NO_RANGE.format(MODEL_LOAD),
    "first_batch_ms": "no trace has the length of the first batch",
    "container_to_first_batch_ms": "the launch is not in a container, or the start of the first batch is unknown",
    "start_barrier_wait_ms": "a thread waited, but there was no batch to tell whether the wait came before it",
}


@dataclass(frozen=True)
class StartupPart:
    """A `startup_range`; `begin_ms` counts from the start of the process."""

    name: str
    begin_ms: float
    duration_ms: float
    failed: bool


@dataclass(frozen=True)
class Startup:
    """Start-up times in milliseconds; unknown ones are None, with a reason in `reasons`. Parts may overlap.

    `interpreter_and_imports_ms` ends at the first start-up range, recorder or CUDA call. `cuda_context_ms` and
    `model_load_ms` are start-up ranges of these names. Without such a range, the context takes at most the time from
    the first CUDA call to the end of the first that needs it. `other_ms` is the unexplained rest of
    `process_to_first_batch_ms`.
    """

    process_to_first_batch_ms: float | None
    interpreter_and_imports_ms: float | None
    cuda_context_ms: float | None
    cuda_context_source: str | None
    model_load_ms: float | None
    first_batch_ms: float | None
    start_barrier_wait_ms: float | None
    other_ms: float | None
    container_to_first_batch_ms: float | None
    parts: list[StartupPart]
    reasons: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The tree for the result files."""
        return asdict(self)


def first_cuda(trace: Trace) -> FirstCuda | None:
    """The first CUDA calls of a trace. None without calls or UTC time, and for the embedded tracer, which keeps only
    calls that started GPU work.
    """
    origin, calls = trace.meta.session_start_unix_ns, trace.api
    if origin is None or not len(calls) or trace.meta.tracer == "embedded":
        return None
    at = np.flatnonzero(calls_named(trace, NEEDS_CONTEXT))
    end = origin + int(calls.end_ns[at[np.argmin(calls.start_ns[at])]]) if len(at) else None
    return FirstCuda(origin + int(calls.start_ns.min()), end)


def startup(
    process_start_unix_ns: int,
    journal: RecorderJournal | None,
    loops: Iterable[BatchLoop] = (),
    cuda: FirstCuda | None = None,
    *,
    clock_is_utc: bool = True,
    container_start_unix_ns: int | None = None,
) -> Startup:
    """Divide a start-up into parts. `process_start_unix_ns`: just before the launch; `loops`: used if on UTC."""
    record = (journal.startup if journal is not None else None) or StartupRecord()
    waits = (journal.start_barrier if journal is not None else None) or []
    batches = [(int(loop.start_ns[0]), int(loop.end_ns[0])) for loop in loops if loop.count and clock_is_utc]
    batch = min(batches, default=None)
    begin_ns = record.first_batch_unix_ns or (batch[0] if batch else None)
    signs = [record.first_recorder_unix_ns, *(part.begin_unix_ns for part in record.ranges)]
    signs.append(cuda.first_call_unix_ns if cuda is not None else None)
    own_ns = min((sign for sign in signs if sign is not None), default=None)
    parts = [(wait.begin_unix_ns, wait.begin_unix_ns + wait.waited_ns) for wait in waits]
    waited = 0 if not waits else None
    if begin_ns is not None:
        waited = sum(end - start for start, end in parts if end <= begin_ns)
    parts += [(part.begin_unix_ns, part.begin_unix_ns + part.duration_ns) for part in record.ranges]
    context, source = _of_name(record, CUDA_CONTEXT), "startup_range"
    if context is None and cuda is not None and cuda.first_work_end_unix_ns is not None:
        parts.append((cuda.first_call_unix_ns, cuda.first_work_end_unix_ns))
        context = cuda.first_work_end_unix_ns - max(cuda.first_call_unix_ns, process_start_unix_ns)
        source = "trace"
    other = None
    if begin_ns is not None and own_ns is not None:
        every = np.asarray([(process_start_unix_ns, own_ns), *parts], dtype=np.int64)
        other = begin_ns - process_start_unix_ns - BusyLine(*every.clip(process_start_unix_ns, begin_ns).T).length
    known = {
        "process_to_first_batch_ms": _between(process_start_unix_ns, begin_ns),
        "interpreter_and_imports_ms": _between(process_start_unix_ns, own_ns),
        "cuda_context_ms": context,
        "model_load_ms": _of_name(record, MODEL_LOAD),
        "first_batch_ms": None if batch is None else batch[1] - batch[0],
        "start_barrier_wait_ms": waited,
        "container_to_first_batch_ms": _between(container_start_unix_ns, begin_ns),
    }
    return Startup(
        **{name: _ms(value) for name, value in known.items()},
        cuda_context_source=None if context is None else source,
        other_ms=_ms(other),
        parts=[
            StartupPart(
                part.name,
                (part.begin_unix_ns - process_start_unix_ns) / NS_PER_MS,
                part.duration_ns / NS_PER_MS,
                part.failed,
            )
            for part in sorted(record.ranges, key=lambda part: part.begin_unix_ns)
        ],
        reasons={name: WHY_UNKNOWN[name] for name, value in known.items() if value is None},
    )


def _between(start_ns: int | None, end_ns: int | None) -> int | None:
    return None if start_ns is None or end_ns is None else end_ns - start_ns


def _ms(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / NS_PER_MS, 6)


def _of_name(record: StartupRecord, name: str) -> int | None:
    found = [part.duration_ns for part in record.ranges if part.name == name and not part.failed]
    return sum(found) if found else None
