"""Several processes of one case on one device at once, each with a model and a CUDA context of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from perfharness.bench.at_once import Process, finished_at_once, measured_at_once, started
from perfharness.bench.latency import Timed
from perfharness.bench.outcome import case_outcome, read_arrays
from perfharness.bench.spec import CASE_ENTRY, CaseSpec
from perfharness.model import environment
from perfharness.model.bench import CaseResult, InstancesRecord
from perfharness_launcher.barrier import start_barrier

FOLDER = "instances"
POLL_S = 0.01
BARRIER_TIMEOUT_S = 600.0


def measure_instances(spec: CaseSpec, folder: Path) -> InstancesRecord:
    """Start `spec.instances` processes, hold them before their timed rounds until all are there, and let them go."""
    folders = [folder / FOLDER / str(number) for number in range(spec.instances)]
    codes = _run(measured_at_once(spec), folders)
    results = [case_outcome(one, spec.case, code) for one, code in zip(folders, codes, strict=True)]
    return conclude(folders, results, spec.case.batch_size)


def conclude(folders: Sequence[Path], results: Sequence[CaseResult], batch_size: int) -> InstancesRecord:
    """What the instances left, put together."""
    for number, result in enumerate(results):
        if result.status != "ok":
            why = f"instance {number} of {len(results)} is {result.status}: {result.reason}"
            return InstancesRecord(instances=len(results), reason=why)
    # The monotonic clock is the machine's, so that the processes can be laid side by side.
    arrays = [read_arrays(one) for one in folders]
    timed = [Timed(one["start_ns"], one["wall_ns"]) for one in arrays]
    warmup = sum(result.latency.warmup_iterations for result in results if result.latency is not None)
    return InstancesRecord(instances=len(results), **finished_at_once(timed, batch_size, warmup, "instances"))


def _run(spec: CaseSpec, folders: Sequence[Path]) -> list[int]:
    """Exit codes of the processes, in order; none is left when this returns."""
    with ExitStack() as stack:
        control = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfharness-")))
        names = {number: str(number) for number in range(len(folders))}
        barrier = stack.enter_context(start_barrier(control, names, BARRIER_TIMEOUT_S))
        processes: list[Process] = []
        for number, folder in enumerate(folders):
            own = {environment.START_BARRIER: str(barrier.folder), environment.PROCESS_INDEX: str(number)}
            told = spec.model_copy(update={"spawned_unix_ns": time.time_ns()})
            processes.append(stack.enter_context(started(CASE_ENTRY, told, folder, own)))
        while any(process.poll() is None for process in processes):
            barrier.look({number for number, process in enumerate(processes) if process.poll() is not None})
            if barrier.is_open:
                break
            time.sleep(POLL_S)
        return [process.wait() for process in processes]
