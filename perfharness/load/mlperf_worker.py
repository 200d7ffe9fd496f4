"""The measured process of `perfharness mlperf`: `python -m perfharness.load.mlperf_worker SETTINGS`, as JSON.

LoadGen runs in its own thread: an exception in one of its callbacks, also that of Ctrl-C, crashes the process.
Output is in `mlperf/` of the process's folder: LoadGen's logs, and `sut.json`.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
import traceback
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from perfharness.backends import Session, backend, model_source
from perfharness.backends.arrays import read_arrays
from perfharness.bench.accuracy.data import user_function
from perfharness.bench.inputs import input_arrays, input_shapes
from perfharness.bench.spec import CaseSpec
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.files import write_model
from perfharness.load.mlperf import RANDOM, MlperfSettings, Scenario, apply_rules, loadgen
from perfharness.load.models import STEPS
from perfharness.load.record import NEVER_NS, moments
from perfharness.load.request import LONGEST_MESSAGE, kind_of
from perfharness.model import environment
from perfharness.model.bench import TensorSpec
from perfharness.model.load import REQUESTS_NAME
from perfharness.model.mlperf import LOGS, SUT_NAME, Status, SutRecord
from perfharness.model.units import NS_PER_MS
from perfharness.recorder import PerfRecorder
from perfharness.secrets import mask_text

# ---- samples ----

RANDOM_SAMPLES = 64
MOST_IN_MEMORY = 1024
"""Default number of samples that LoadGen draws from in a performance test."""

SEED_STEP = 1_000_003

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
Shapes = dict[str, tuple[int, ...]]


def sample_shapes(inputs: Sequence[TensorSpec], spec: CaseSpec) -> Shapes:
    """The shape of one sample, by input. Raises `UsageError` if the batch is not the first dimension."""
    size = spec.case.batch_size
    shapes = input_shapes(inputs, spec)
    for name, shape in shapes.items():
        if shape[:1] != (size,):
            raise UsageError(
                f"input {name!r} is {shape} for a batch of {size}: its first dimension must be the batch, to join "
                "LoadGen's samples; give the shape with --shape"
            )
    return {name: shape[1:] for name, shape in shapes.items()}


class Samples:
    """All samples (the first `count` rows), and those that LoadGen holds in memory; `shapes` are of one sample."""

    def __init__(self, rows: Sequence[Mapping[str, Array]], count: int, inputs: Sequence[TensorSpec], shapes: Shapes):
        self._data, self.count = rows, count
        self._kinds = {one.name: np.dtype(one.dtype) for one in inputs}
        self._shapes = shapes
        self._rows: dict[int, int] = {}
        self._arrays: Arrays = {}

    @staticmethod
    def of(settings: MlperfSettings, inputs: Sequence[TensorSpec], spec: CaseSpec) -> Samples:
        """The samples named by the settings. Raises `UsageError` if they do not fit the model."""
        shapes, name = sample_shapes(inputs, spec), settings.dataset
        rows: Any
        if name == RANDOM:
            one_each = {name: (1, *shape) for name, shape in shapes.items()}
            seeds = [spec.seed * SEED_STEP + index for index in range(settings.samples or RANDOM_SAMPLES)]
            drawn = (input_arrays(inputs, one_each, spec.model_copy(update={"seed": seed})) for seed in seeds)
            rows = [{name: array[0] for name, array in one.items()} for one in drawn]
        else:
            found = read_arrays(Path(name), UsageError) if name.endswith(".npz") else user_function(name)()
            rows = _rows_of(found, shapes) if isinstance(found, Mapping) else found
        if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
            raise UsageError(
                f"{name} returned {type(rows).__name__}; it must return arrays of samples by input, or a sequence of "
                "samples, each a mapping of arrays by input"
            )
        count = settings.samples or len(rows)
        if not 0 < count <= len(rows):
            raise UsageError(f"{name} has {len(rows)} samples, fewer than --samples {count}")
        return Samples(rows, count, inputs, shapes)

    def load(self, indices: Sequence[int]) -> None:
        """Hold these samples only. Raises `UsageError` if one does not fit the model."""
        self._rows = {index: row for row, index in enumerate(indices)}
        self._arrays = {
            name: np.empty((len(indices), *shape), self._kinds[name]) for name, shape in self._shapes.items()
        }
        for row, index in enumerate(indices):
            sample = self._data[index]
            for name, rows in self._arrays.items():
                value = np.asarray(sample[name]) if name in sample else None
                if value is None or value.shape != rows.shape[1:]:
                    has = "missing" if value is None else f"of shape {value.shape}"
                    raise UsageError(f"sample {index}: input {name!r} is {has}, but the model needs {rows.shape[1:]}")
                rows[row] = value

    def batch(self, indices: Sequence[int], size: int) -> Arrays:
        """The inputs of these samples; the last one is repeated up to the size."""
        if size == 1:
            row = self._rows[indices[0]]
            return {name: array[row : row + 1] for name, array in self._arrays.items()}
        rows = [self._rows[index] for index in indices]
        rows += rows[-1:] * (size - len(rows))
        return {name: array[rows] for name, array in self._arrays.items()}


def _rows_of(found: Mapping[str, Any], shapes: Shapes) -> list[Arrays]:
    """The samples in arrays by input. Raises `UsageError` if one is missing, or their lengths differ."""
    if missing := sorted(set(shapes) - set(found)):
        raise UsageError(f"the data has no array {missing[0]!r}; it has: {', '.join(sorted(found))}")
    arrays = {name: np.asarray(found[name]) for name in shapes}
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise UsageError(f"the arrays of the data have different numbers of samples: {counts}")
    return [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]


# ---- the system under test ----

FAILURES_IN_A_ROW = 10
"""Batches; a system with so many failures will not recover, and LoadGen cannot be stopped."""

STAGES = ("wait", "write_inputs", *STEPS, "respond")

Respond = Callable[[Sequence[int]], None]
"""Answers queries, by LoadGen's ids."""

clock = time.perf_counter_ns


@dataclass
class Requests:
    """Times of each query, in the order in which they were issued; monotonic nanoseconds, 0: not yet."""

    sent_ns: array[int] = field(default_factory=lambda: array("q"))
    begun_ns: array[int] = field(default_factory=lambda: array("q"))
    done_ns: array[int] = field(default_factory=lambda: array("q"))
    items: array[int] = field(default_factory=lambda: array("q"))
    errors: dict[int, str] = field(default_factory=dict)

    def add(self, sent_ns: int, items: int) -> int:
        """Add an issued query; returns its number."""
        self.sent_ns.append(sent_ns)
        self.begun_ns.append(NEVER_NS)
        self.done_ns.append(NEVER_NS)
        self.items.append(items)
        return len(self.items) - 1

    def write(self, folder: Path, *, has_schedule: bool) -> None:
        """Write a row per query. The intended time is unknown if LoadGen has a schedule."""
        count = len(self.items)
        columns = {
            "id": np.arange(count),
            "items": np.array(self.items[:count], np.int64),
            "error": pa.array([self.errors.get(number) for number in range(count)], pa.string()),
            "intended_ns": moments([NEVER_NS] * count if has_schedule else self.sent_ns[:count]),
            "sent_ns": moments(self.sent_ns[:count]),
            "begun_ns": moments(self.begun_ns[:count]),
            "done_ns": moments(self.done_ns[:count]),
        }
        pq.write_table(pa.table(columns), folder / REQUESTS_NAME, compression="zstd")


@dataclass
class Outcome:
    """Counts over all batches, as in `SutRecord`."""

    batches: int = 0
    samples: int = 0
    padding: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    first_errors: dict[str, str] = field(default_factory=dict)


@dataclass
class Work:
    """A batch: ids of LoadGen, indices of samples, and their queries."""

    number: int
    ids: list[int]
    indices: list[int]
    queries: Sequence[int] = ()


class System:
    """The system under test: executes batches in one thread, with a session for each size.

    The thread is LoadGen's own; for Server, the one that calls `serve`.

    Args:
        sessions: by batch size, allocated in this thread.
        fail: called with the reason if every batch fails.
        batch_timeout_s: Server: maximum wait of an incomplete batch for more samples; 0: no wait.
    """

    def __init__(
        self,
        perf: PerfRecorder,
        sessions: Mapping[int, Session],
        samples: Samples,
        respond: Respond,
        fail: Callable[[str], None],
        scenario: Scenario,
        batch_timeout_s: float = 0.0,
    ) -> None:
        self._perf, self._samples, self._respond, self._fail_all = perf, samples, respond, fail
        self._sessions = sorted(sessions.items())
        self._largest = self._sessions[-1][0]
        self._batch_timeout_s = batch_timeout_s
        self._stages = {name: perf.range(name) for name in STAGES}
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._failures_in_a_row = 0
        self.requests, self.outcome = Requests(), Outcome()
        self.executing = threading.Lock()
        """Held while a batch is executed."""

        self.issue = {"Server": self._enqueue, "Offline": self._execute_all}.get(scenario, self._answer)
        """Called by LoadGen with a query."""

    def _answer(self, samples: Sequence[Any]) -> None:
        number = self.requests.add(clock(), len(samples))
        self.execute(Work(number, [one.id for one in samples], [one.index for one in samples], (number,)))

    def _execute_all(self, samples: Sequence[Any]) -> None:
        """One query with all samples: a batch per execution."""
        ids, indices = [one.id for one in samples], [one.index for one in samples]
        for number, first in enumerate(range(0, len(ids), self._largest)):
            part = slice(first, first + self._largest)
            self.execute(Work(number, ids[part], indices[part]))

    def _enqueue(self, samples: Sequence[Any]) -> None:
        now = clock()
        for sample in samples:
            number = self.requests.add(now, 1)
            self._queue.put(Work(number, [sample.id], [sample.index], (number,)))

    def flush(self) -> None:
        """Called by LoadGen after its last query; queued samples are executed at once in any case."""
        self._queue.put(None)

    def serve(self) -> None:
        """Answer the queries of Server, until the last one."""
        while (work := self._queue.get()) is not None:
            self.execute(work, is_filled=self._largest == 1)

    def execute(self, work: Work, *, is_filled: bool = True) -> None:
        """Execute a batch, in parts if it is larger than the largest session, and answer it. Never raises.

        If it is not filled, wait for more samples first.
        """
        answered = 0
        with self.executing:
            try:
                with self._perf.batch(work.number) as batch:
                    if not is_filled:
                        with self._stages["wait"]:
                            self._fill(work)
                    self._mark(self.requests.begun_ns, work)
                    batch.total_items = len(work.ids)
                    for first in range(0, len(work.ids), self._largest):
                        part = slice(first, first + self._largest)
                        self._run(work.indices[part])
                        with self._stages["respond"]:
                            if part.stop >= len(work.ids):
                                self._mark(self.requests.done_ns, work)
                            self._respond(work.ids[part])
                        answered = min(part.stop, len(work.ids))
            except Exception as error:
                self._fail(error, work, answered)
            else:
                self.outcome.batches += 1
                self.outcome.samples += len(work.ids)
                self._failures_in_a_row = 0

    def _fill(self, work: Work) -> None:
        """Add queued samples until the batch is full or its wait is over."""
        deadline = time.monotonic() + self._batch_timeout_s
        while len(work.ids) < self._largest:
            try:
                left_s = deadline - time.monotonic()
                more = self._queue.get(timeout=left_s) if left_s > 0 else self._queue.get_nowait()
            except Empty:
                break
            if more is None:  # the end, for `serve`
                self._queue.put(None)
                break
            work.ids += more.ids
            work.indices += more.indices
            work.queries = (*work.queries, *more.queries)

    def warm_up(self, rounds: int, seconds: float) -> float:
        """Execute the first sample on every session; on the largest for `seconds`. Returns its mean time, s.

        The mean over some time is more stable than the minimum of a few rounds.
        """
        for size, _ in self._sessions:
            for _ in range(rounds):
                self._run([0] * size)
        count, begin = 0, clock()
        while not count or clock() - begin < seconds * 1e9:
            self._run([0] * self._largest)
            count += 1
        return (clock() - begin) / 1e9 / count

    def _run(self, indices: list[int]) -> None:
        size, session = next(one for one in self._sessions if one[0] >= len(indices))
        self.outcome.padding += size - len(indices)
        with self._stages["write_inputs"]:
            session.write_inputs(self._samples.batch(indices, size))
        for step in STEPS:
            with self._stages[step]:
                getattr(session, step)()

    def _fail(self, error: Exception, work: Work, answered: int) -> None:
        kind, message, left = kind_of(error), f"{type(error).__name__}: {error}", work.ids[answered:]
        self.outcome.errors[kind] += len(left)
        self.outcome.first_errors.setdefault(kind, mask_text(message[:LONGEST_MESSAGE]))
        self.requests.errors.update(dict.fromkeys(work.queries, kind))
        self._mark(self.requests.done_ns, work)
        self._respond(left)
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= FAILURES_IN_A_ROW:
            self._fail_all(f"{FAILURES_IN_A_ROW} batches in a row failed; the last: {message}")

    def _mark(self, times_ns: array[int], work: Work) -> None:
        now = clock()
        for query in work.queries:
            times_ns[query] = now


# ---- LoadGen ----

EXPECTED_FASTER = 2.0
"""LoadGen makes the queries of a test in advance, for an expected latency or rate. The expectation is higher than the
measured rate by this factor, so that the queries suffice."""

EXPECTED_OFFLINE = 1.1
"""The same for Offline, where the length of the test grows with it."""

SERVER_SHARE, SERVER_SHARE_AGAIN = 0.9, 0.85
"""Shares of the measured rate, and of the rate of a first test: queries of Server arrive at random, and some have to
wait."""

MEASURED_SHARE, LEAST_S, MOST_S = 0.1, 0.5, 10.0
"""How long perfharness measures the rate: a share of the test's minimum duration, within these limits."""

MOST_GENERATED = 10_000_000
"""Maximum samples that LoadGen prepares if there is no expected rate; each takes about 330 bytes."""

TARGETS: Mapping[Scenario, str] = {
    "SingleStream": "single_stream_expected_latency_ns",
    "MultiStream": "multi_stream_expected_latency_ns",
    "Server": "server_target_qps",
    "Offline": "offline_expected_qps",
}
"""The setting of LoadGen's expectation."""


def respond(ids: Sequence[int]) -> None:
    """Complete samples, without data."""
    import mlperf_loadgen as lg

    lg.QuerySamplesComplete([lg.QuerySampleResponse(one, 0, 0) for one in ids])


def test_settings(settings: MlperfSettings, folder: Path) -> tuple[Any, dict[str, list[int | float]]]:
    """LoadGen's settings: its defaults, then its own rules of the benchmark and user.conf, then our settings; and which
    of ours differ from the rules and user.conf, if these were applied. Raises `UsageError`.

    LoadGen applies its rules only once in a process.
    """
    lg = loadgen()
    made = lg.TestSettings()
    has_rules = settings.user_conf is not None or settings.benchmark is not None
    if has_rules:
        apply_rules(made, settings, folder)
    before = _numbers(made)
    made.scenario = getattr(lg.TestScenario, settings.scenario)
    made.mode = lg.TestMode.PerformanceOnly
    bound_ms = settings.target_latency_ms if settings.scenario == "Server" else None
    given = {
        "min_duration_ms": None if settings.min_duration_s is None else round(settings.min_duration_s * 1e3),
        "max_duration_ms": None if settings.max_duration_s is None else round(settings.max_duration_s * 1e3),
        "min_query_count": settings.min_queries,
        "max_query_count": settings.max_queries,
        "multi_stream_samples_per_query": settings.samples_per_query,
        "server_target_latency_ns": None if bound_ms is None else round(bound_ms * NS_PER_MS),
        **dict.fromkeys(("qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed"), settings.seed),
        "performance_sample_count_override": settings.performance_samples,
    }
    for name, value in given.items():
        if value is not None:
            setattr(made, name, value)
    changed = {name: [before[name], value] for name, value in _numbers(made).items() if value != before[name]}
    return made, changed if has_rules else {}


def set_target(made: Any, settings: MlperfSettings, rate: float) -> dict[str, float]:
    """Give LoadGen the expected rate or latency from the options; otherwise, without a user.conf, one derived from the
    measured rate (samples per second), which is returned.
    """
    if settings.user_conf is not None and settings.asked_target is None:
        return {}
    name = TARGETS[settings.scenario]
    most_per_s = MOST_GENERATED / max(made.min_duration_ms / 1e3, 1e-3)
    if settings.scenario in ("Server", "Offline"):
        of_server = SERVER_SHARE if settings.expected_rate is None else SERVER_SHARE_AGAIN
        share = of_server if settings.scenario == "Server" else EXPECTED_OFFLINE
        value = settings.target_qps or min(share * rate, most_per_s)
    elif settings.target_latency_ms is not None:
        value = max(settings.target_latency_ms * NS_PER_MS, 1.0)
    else:
        value = settings.query_samples / min(EXPECTED_FASTER * rate, most_per_s) * 1e9
    setattr(made, name, value)
    return {name: value} if settings.is_ours else {}


def _numbers(made: Any) -> dict[str, int | float]:
    named = {name: getattr(made, name) for name in dir(made) if not name.startswith("_")}
    return {name: value for name, value in named.items() if isinstance(value, int | float)}


def run_test(
    system: System,
    samples: Samples,
    performance_count: int,
    made: Any,
    folder: Path,
    fail: Callable[[str], None],
) -> None:
    """Run a test, with so many samples in memory; its logs are in the folder afterwards.

    Args:
        fail: gets the reason if a callback failed. It must not return: an exception in LoadGen crashes the process.
    """

    def guarded(callback: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                fail(problem_of(error))

        return call

    lg = loadgen()
    logs = lg.LogSettings()
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    logs.enable_trace = False
    made_sut = lg.ConstructSUT(guarded(system.issue), guarded(system.flush))
    made_qsl = lg.ConstructQSL(samples.count, performance_count, guarded(samples.load), lambda _: None)
    lg.StartTestWithLogSettings(made_sut, made_qsl, made, logs)
    lg.DestroyQSL(made_qsl)
    lg.DestroySUT(made_sut)


# ---- the process ----

EXIT_FAILED = 1
STOP_PATIENCE_S = 2.0
"""For the running batch, if a test is stopped before its end."""


def problem_of(error: Exception) -> str:
    """The reason of a failed test in one sentence; the log has the traceback of an unexpected error."""
    if isinstance(error, PerfHarnessError):
        return str(error)
    traceback.print_exc()
    return f"{type(error).__name__}: {error}"


class Test:
    """A test of a model; `folder` is that of the process."""

    def __init__(self, settings: MlperfSettings, folder: Path) -> None:
        self.settings, self.folder, self.logs = settings, folder, folder / LOGS
        self.device = settings.model_spec.device_of(has_gpu=bool(os.environ.get("CUDA_VISIBLE_DEVICES")))
        self.ended = threading.Event()
        self.facts: dict[str, Any] = {"device": self.device, "batch_sizes": list(settings.sizes)}
        """Fields of the `SutRecord`."""

        self.problem: str | None = None
        self._perf = PerfRecorder("mlperf", settings.model_dump(mode="json"))
        self._stack = ExitStack()
        self._samples: Samples | None = None
        self.system: System | None = None

    def run(self) -> None:
        """Run the test to its end, also after an error."""
        try:
            with self._stack:
                self._run()
        except Exception as error:
            self.problem = problem_of(error)
        self.ended.set()

    def fail(self, problem: str) -> None:
        """End the test now; the calling thread waits for the end of the process."""
        self.problem = problem
        self.ended.set()
        threading.Event().wait()

    def write(self, status: Status) -> None:
        """Write the results so far."""
        outcome = {} if self.system is None else vars(self.system.outcome)
        facts = {**self.facts, **outcome, "status": status, "problem": self.problem}
        write_model(self.logs / SUT_NAME, SutRecord.model_validate(facts))
        if self.system is not None and self.settings.scenario != "Offline":  # it has one query
            self.system.requests.write(self.folder, has_schedule=self.settings.scenario == "Server")

    def _run(self) -> None:
        settings, made = self.settings, backend(self.settings.model_spec.backend)
        self.facts.update(loadgen=version("mlcommons-loadgen"), versions=made.versions())
        given, overridden = test_settings(settings, self.logs)
        measured_s = min(max(MEASURED_SHARE * given.min_duration_ms / 1e3, LEAST_S), MOST_S)
        sessions = {size: self._session(size) for size in settings.sizes}
        assert self._samples is not None
        wait_s = settings.batch_timeout_ms / 1e3
        system = System(self._perf, sessions, self._samples, respond, self.fail, settings.scenario, wait_s)
        with self._perf.range("warm_up"):
            is_measured = settings.is_ours and settings.expected_rate is None
            round_s = system.warm_up(settings.warmup_rounds, measured_s if is_measured else 0.0)
        self.system = system
        self.facts.update(warmup_round_ms=round_s * 1e3, backend_settings=sessions[settings.sizes[-1]].settings())
        gc.collect()
        gc.freeze()
        size, query = settings.sizes[-1], settings.query_samples
        in_a_round = size if settings.scenario in ("Server", "Offline") else query / -(-query // size)
        rate = settings.expected_rate or in_a_round / round_s
        told = set_target(given, settings, rate)
        count = self._samples.count
        in_memory = min(
            count, settings.performance_samples or given.performance_sample_count_override or MOST_IN_MEMORY
        )
        self.facts.update(data_samples=count, performance_samples=in_memory, overridden=overridden, told=told)
        test = partial(run_test, system, self._samples, in_memory, given, self.logs, self.fail)
        if settings.scenario == "Server":  # executes in the thread that loaded the model
            thread = threading.Thread(target=test, daemon=True)
            thread.start()
            system.serve()
            thread.join()
        else:
            test()
        self._perf.finalize()

    def _session(self, size: int) -> Session:
        spec = self.settings.case_spec(self.device, size)
        session = self._stack.enter_context(backend(spec.case.backend).load(model_source(spec.model), spec.options))
        if self._samples is None:
            self._samples = Samples.of(self.settings, session.inputs, spec)
            self._samples.load([0])
        session.allocate(input_shapes(session.inputs, spec))
        return session


def main() -> None:
    """Run the test described by the first argument."""
    settings = MlperfSettings.model_validate_json(sys.argv[1])
    test = Test(settings, Path(os.environ.get(environment.OUTPUT_DIR) or ".").absolute())
    test.logs.mkdir(parents=True, exist_ok=True)
    thread = threading.Thread(target=test.run, name="loadgen", daemon=True)
    thread.start()
    status: Status
    try:
        test.ended.wait()
        status = "ok" if test.problem is None else "failed"
    except KeyboardInterrupt:
        status, test.problem = "interrupted", "it was interrupted"
        if test.system is not None:  # no batch begins from now on
            test.system.executing.acquire(timeout=STOP_PATIENCE_S)
    test.write(status)
    if test.problem is None:
        return
    sys.stderr.write(f"perfharness mlperf: {test.problem}\n")
    thread.join(timeout=1)
    if not thread.is_alive():
        sys.exit(EXIT_FAILED)
    # LoadGen cannot be stopped, and crashes a process that ends below it: write the other files, then exit.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
