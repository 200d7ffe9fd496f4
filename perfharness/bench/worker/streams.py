"""The process with several streams: `python -m perfharness.bench.worker.streams FOLDER/spec.json`.

Each session has a thread of its own from `allocate` on, since frameworks keep state per thread (PyTorch its current
stream and the algorithms chosen by cuDNN). Sessions are prepared one after the other, and start together.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from perfharness.backends import Session, backend, model_source
from perfharness.bench.spec import CaseSpec, LatencySettings
from perfharness.bench.worker.concurrent import STREAMS_ENTRY, concurrent_figures
from perfharness.bench.worker.equality import Outputs, Tolerance, compare_outputs, tolerance_of
from perfharness.bench.worker.frame import gpu_view, keep_memory, loaded, main, options_of, watched
from perfharness.bench.worker.inputs import input_arrays, input_shapes
from perfharness.bench.worker.latency import Clock, Timed, quiet_collector, timed_rounds, warm_up
from perfharness.bench.worker.record import CaseRecord
from perfharness.errors import PerfHarnessError
from perfharness.model.bench import MemoryUse, StreamsRecord

Step = Callable[[int, Session], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Stream:
    """Rounds and outputs of one stream.

    Args:
        warmup_iterations: before its timed rounds.
        first, alone: its outputs while it ran alone, of the first round and of the last.
        concurrent: its outputs after the timed rounds, of the same inputs.
    """

    warmup_iterations: int
    timed: Timed
    first: Outputs
    alone: Outputs
    concurrent: Outputs


def measure_streams(spec: CaseSpec, record: CaseRecord, stack: ExitStack) -> None:
    """Measure all sessions concurrently, and their memory."""
    view = gpu_view(spec, stack)
    watchdog = watched(spec, record, view)
    sessions = [stack.enter_context(loaded(spec, record, view))]
    while len(sessions) < spec.streams and stream_problem(spec, sessions) is None:
        made = backend(spec.case.backend)
        sessions.append(stack.enter_context(made.load(model_source(spec.model, spec.model_name), options_of(spec))))
    if (problem := stream_problem(spec, sessions)) is not None:
        record.keep(streams=StreamsRecord(streams=spec.streams, reason=problem))
        return

    def prepare(number: int, session: Session) -> None:
        record.start_phase(f"stream {number}")
        shapes = input_shapes(session.inputs, spec)
        session.allocate(shapes)
        own = spec.model_copy(update={"seed": spec.seed + number})
        session.write_inputs(input_arrays(session.inputs, shapes, own))

    def ready() -> None:
        watchdog.stop()
        record.start_phase("timed rounds of all streams")

    streams = run_streams(sessions, spec.latency, prepare, ready)
    keep_memory(spec, record, sessions, view)
    watchdog.check()
    record.keep(streams=summarize_streams(spec, streams, record.result.memory))


def stream_problem(spec: CaseSpec, sessions: Sequence[Session]) -> str | None:
    """Why these sessions could not run concurrently, each in its own stream, or None."""
    if (problem := sessions[0].threads_problem()) is not None:
        return problem
    if spec.case.device == "cpu":
        return None
    streams = [session.stream_pointer() for session in sessions]
    if None in streams:
        return (
            f"{spec.case.backend} does not report a CUDA stream for each session (Session.stream_pointer); TensorFlow "
            "puts the work of all sessions into one, so measure several instances"
        )
    if len(set(streams)) < len(streams):
        return f"two of {len(streams)} sessions have the same CUDA stream, for the framework has no more; ask for fewer"
    return None


def run_streams(
    sessions: Sequence[Session],
    settings: LatencySettings,
    prepare: Step,
    ready: Callable[[], None],
    clocks: Sequence[Clock] | None = None,
) -> list[Stream]:
    """Prepare sessions one after the other, then start them together, each in its own thread.

    Args:
        prepare: allocates the n-th session and writes its inputs.
        ready: called when all are warm, just before the start.
        clocks: one per session; None: the machine's.
    """
    count = len(sessions)
    clocks = clocks or [time.perf_counter_ns] * count
    start = threading.Barrier(count)

    def warmed(number: int) -> tuple[int, Outputs, Outputs]:
        session = sessions[number]
        prepare(number, session)
        session.run_round()
        first = session.read_outputs()
        rounds = len(warm_up(session, settings, clocks[number]).wall_ns)
        session.run_round()
        return rounds, first, session.read_outputs()

    def timed(number: int) -> tuple[Timed, Outputs]:
        session = sessions[number]
        start.wait()
        found = timed_rounds(session, settings, clocks[number])
        return found, session.read_outputs()

    with ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1, f"stream-{number}")) for number in range(count)]
        before = [_named(number, count, thread.submit(warmed, number).result) for number, thread in enumerate(threads)]
        ready()
        with quiet_collector():
            running = [thread.submit(timed, number) for number, thread in enumerate(threads)]
            after = [_named(number, count, future.result) for number, future in enumerate(running)]
    return [
        Stream(rounds, found, first, alone, concurrent)
        for (rounds, first, alone), (found, concurrent) in zip(before, after, strict=True)
    ]


def summarize_streams(spec: CaseSpec, streams: Sequence[Stream], memory: MemoryUse) -> StreamsRecord:
    """Combined figures, where no stream changed another's outputs."""
    of_one = {"model_device_bytes": None, "model_host_bytes": None}  # of the first session
    known = StreamsRecord(streams=len(streams), memory=memory.model_copy(update=of_one))
    tolerance = tolerance_of(spec.case.precision)
    if (problem := _interference(streams, tolerance)) is not None:
        return known.model_copy(update={"outputs_equal": False, "reason": problem})
    warmup = sum(stream.warmup_iterations for stream in streams)
    figures = concurrent_figures([stream.timed for stream in streams], spec.case.batch_size, warmup, "streams")
    return known.model_copy(update={**figures, "outputs_equal": True if _repeat(streams, tolerance) else None})


def _interference(streams: Sequence[Stream], tolerance: Tolerance) -> str | None:
    """How a stream's outputs next to the others differ from those alone, where those alone are reproducible."""
    for number, stream in enumerate(streams):
        if not _repeat([stream], tolerance):
            continue
        found = compare_outputs("alone", stream.alone, stream.concurrent, tolerance)
        if not found.equal:
            return (
                f"stream {number} of {len(streams)} gave other outputs next to the others than alone ({found.reason}), "
                "so sessions of this backend cannot run concurrently in threads; measure several instances"
            )
    return None


def _repeat(streams: Sequence[Stream], tolerance: Tolerance) -> bool:
    """Whether all give equal outputs for equal inputs in every round."""
    return all(compare_outputs("first", stream.first, stream.alone, tolerance).equal for stream in streams)


def _named(number: int, count: int, work: Callable[[], T]) -> T:
    try:
        return work()
    except PerfHarnessError as error:
        raise type(error)(f"stream {number} of {count}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], STREAMS_ENTRY, measure_streams, CaseSpec))
