"""What a process did from its start to its first batch: from the launch, the recorder and the trace, all on UTC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.cuda_calls import NEEDS_CONTEXT, CudaCalls
from perfharness.model.journal import BarrierWait, RecorderJournal, StartupRecord
from perfharness.model.result import BatchLoop, FirstCuda
from perfharness.model.trace import Trace

NS_PER_MS = 1e6
MODEL_LOAD, CUDA_CONTEXT = "model_load", "cuda_context"


@dataclass(frozen=True)
class StartupPart:
    """A `startup_range`; `begin_ms` counts from the start of the process."""

    name: str
    begin_ms: float
    duration_ms: float
    failed: bool


@dataclass(frozen=True)
class Startup:
    """Milliseconds; what is not known is None, and `reasons` says why, by name.

    `interpreter_and_imports_ms` ends at the first thing that is known of the script's own doing: a start-up range, a
    recorder, a CUDA call. `cuda_context_ms` and `model_load_ms` are the start-up ranges of these names; without one,
    `cuda_context_ms` is the time from the first CUDA call to the end of the first that needs a context
    (`cuda_context_source`: which of them), at most, for the script may do something else in between. Parts may
    overlap or lie within each other. `other_ms` is the rest of `process_to_first_batch_ms` besides imports, ranges,
    context and the wait at the start barrier.
    """

    process_to_first_batch_ms: float | None
    interpreter_and_imports_ms: float | None
    cuda_context_ms: float | None
    cuda_context_source: str | None
    model_load_ms: float | None
    first_batch_ms: float | None
    start_barrier_wait_ms: float | None
    other_ms: float | None
    parts: list[StartupPart]
    reasons: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the files."""
        return asdict(self)


def first_cuda(trace: Trace) -> FirstCuda | None:
    """The first CUDA calls of a trace; None where it has none, or no UTC time.

    The embedded tracer keeps only calls that started GPU work: from it nothing is known of what came before.
    """
    origin, calls = trace.meta.session_start_unix_ns, trace.api
    if origin is None or not len(calls) or trace.meta.tracer == "embedded":
        return None
    working = CudaCalls(calls, trace.names).of(NEEDS_CONTEXT)
    end = None
    if working.any():
        at = np.flatnonzero(working)
        end = origin + int(calls.end_ns[at[np.argmin(calls.start_ns[at])]])
    return FirstCuda(origin + int(calls.start_ns.min()), end)


def startup(
    process_start_unix_ns: int,
    journal: RecorderJournal | None,
    loops: Iterable[BatchLoop] = (),
    cuda: FirstCuda | None = None,
    *,
    clock_is_utc: bool = True,
) -> Startup:
    """The parts of a start-up.

    Args:
        process_start_unix_ns: just before the launch started the process.
        journal: what the recorder noted; None: a script without one.
        loops: batches of the trace, where there is one; of no use where `clock_is_utc` is false.
        cuda: first calls.
    """
    record = (journal.startup if journal is not None else None) or StartupRecord()
    waits = (journal.start_barrier if journal is not None else None) or []
    batches = [(int(loop.start_ns[0]), int(loop.end_ns[0])) for loop in loops if loop.count and clock_is_utc]
    batch = min(batches, default=None)
    begin_ns = record.first_batch_unix_ns or (batch[0] if batch else None)
    signs = [record.first_recorder_unix_ns, *(part.begin_unix_ns for part in record.ranges)]
    signs.append(cuda.first_call_unix_ns if cuda is not None else None)
    own_ns = min((sign for sign in signs if sign is not None), default=None)
    context, source = _context(record, cuda, process_start_unix_ns)
    model_load = _of_name(record, MODEL_LOAD)
    unknown = {
        "cuda_context_ms": source is None
        and f'no startup_range("{CUDA_CONTEXT}") is in the script, and the trace does not hold the first CUDA calls',
        "process_to_first_batch_ms": begin_ns is None and "there was no batch, or it is not known when",
        "interpreter_and_imports_ms": own_ns is None
        and "the start of the script's own work is unknown: no recorder, no range",
        "model_load_ms": model_load is None and f'no startup_range("{MODEL_LOAD}") is in the script',
        "start_barrier_wait_ms": bool(waits)
        and begin_ns is None
        and "a thread waited, and whether that was before the first batch is not known, for there was none",
        "first_batch_ms": batch is None and "no trace has the length of the first batch",
    }
    waited = None
    if begin_ns is not None or not waits:
        waited = sum(wait.waited_ns for wait in waits if begin_ns is not None and _ends(wait) <= begin_ns)
    other = None
    if begin_ns is not None and own_ns is not None:
        parts = [(process_start_unix_ns, own_ns), *((wait.begin_unix_ns, _ends(wait)) for wait in waits)]
        parts += [(part.begin_unix_ns, part.begin_unix_ns + part.duration_ns) for part in record.ranges]
        if source == "trace" and cuda is not None and cuda.first_work_end_unix_ns is not None:
            parts.append((cuda.first_call_unix_ns, cuda.first_work_end_unix_ns))
        starts, ends = np.asarray(parts, dtype=np.int64).clip(process_start_unix_ns, begin_ns).T
        other = begin_ns - process_start_unix_ns - BusyLine(starts, ends).length
    return Startup(
        process_to_first_batch_ms=_ms(None if begin_ns is None else begin_ns - process_start_unix_ns),
        interpreter_and_imports_ms=_ms(None if own_ns is None else own_ns - process_start_unix_ns),
        cuda_context_ms=_ms(context),
        cuda_context_source=source,
        model_load_ms=_ms(model_load),
        first_batch_ms=_ms(batch[1] - batch[0] if batch else None),
        start_barrier_wait_ms=_ms(waited),
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
        reasons={name: reason for name, reason in unknown.items() if reason},
    )


def _ms(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / NS_PER_MS, 6)


def _of_name(record: StartupRecord, name: str) -> int | None:
    found = [part.duration_ns for part in record.ranges if part.name == name and not part.failed]
    return sum(found) if found else None


def _context(record: StartupRecord, cuda: FirstCuda | None, begin_ns: int) -> tuple[int | None, str | None]:
    """How long the CUDA context took, ns, and by what that is known."""
    named = _of_name(record, CUDA_CONTEXT)
    if named is not None:
        return named, "startup_range"
    if cuda is not None and cuda.first_work_end_unix_ns is not None:
        return cuda.first_work_end_unix_ns - max(cuda.first_call_unix_ns, begin_ns), "trace"
    return None, None


def _ends(wait: BarrierWait) -> int:
    return wait.begin_unix_ns + wait.waited_ns
