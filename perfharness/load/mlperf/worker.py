"""The measured process of `perfharness mlperf`: `python -m perfharness.load.mlperf.worker SETTINGS`, as JSON.

LoadGen runs in a thread of its own: an exception in one of its callbacks crashes the process, Ctrl-C included, which
Python raises in the main thread. It writes into `mlperf/` of the process's folder: LoadGen's logs, and `sut.json`.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Literal, NoReturn

import numpy as np

from perfharness.backends import Device, Session, backend, backend_and_mode, device_for, model_source
from perfharness.bench.inputs import input_shapes
from perfharness.errors import PerfHarnessError
from perfharness.files import write_model
from perfharness.load.mlperf.data import MOST_IN_MEMORY, DataSet, LoadedSamples, open_data, sample_shapes
from perfharness.load.mlperf.loadgen import loadgen, respond, run_test, test_settings
from perfharness.load.mlperf.logs import read_trace
from perfharness.load.mlperf.queries import intended_ns, write_queries
from perfharness.load.mlperf.settings import ONE_AT_A_TIME, MlperfSettings
from perfharness.load.mlperf.sut import Executor, InlineSut, QueuedSut, Requests
from perfharness.model import environment
from perfharness.model.mlperf import LOGS, SUT_NAME, TRACE_LOG, SutRecord
from perfharness.recorder import PerfRecorder
from perfharness.secrets import mask_text

EXIT_FAILED = 1
STOP_PATIENCE_S = 2.0
"""For the batch that is executed, where a test is ended before its end."""


class Test:
    """A test of a model.

    Args:
        folder: of the process.
    """

    def __init__(self, settings: MlperfSettings, folder: Path) -> None:
        self.settings, self.folder, self.logs = settings, folder, folder / LOGS
        self.device = _device(settings)
        self.ended = threading.Event()
        self.record = SutRecord(device=self.device, batch_sizes=list(settings.sizes))
        self.problem: str | None = None
        self._perf = PerfRecorder("mlperf", settings.model_dump(mode="json"))
        self._requests = None if settings.scenario == "Offline" else Requests()
        self._stack = ExitStack()
        self._data: DataSet | None = None
        self._samples: LoadedSamples | None = None
        self._round_s: list[float] = []
        self._executors: list[Executor] = []

    def run(self) -> None:
        """Run it to its end, whatever that is."""
        try:
            with self._stack:
                self._run()
        except Exception as error:
            self._keep_problem(error)
        self.ended.set()

    def fail(self, error: Exception) -> NoReturn:
        """End it now; called in LoadGen's thread, which waits for the end of the process."""
        self._keep_problem(error)
        self.ended.set()
        threading.Event().wait()
        raise AssertionError("nobody sets it")

    def _keep_problem(self, error: Exception) -> None:
        if not isinstance(error, PerfHarnessError):
            traceback.print_exc()
        self.problem = str(error) if isinstance(error, PerfHarnessError) else f"{type(error).__name__}: {error}"

    def abort(self, reason: str) -> None:
        """End it now; called from any thread."""
        if self.problem is None:
            self.problem = reason
        self.ended.set()

    def write(self, status: Literal["ok", "interrupted", "failed"]) -> None:
        """Write what is known of it; what did not come to its end is held."""
        if status != "ok":
            for executor in self._executors:
                executor.stop(STOP_PATIENCE_S)
        outcomes = [executor.outcome for executor in self._executors]
        errors: Counter[str] = sum((one.errors for one in outcomes), Counter())
        first = {kind: mask_text(message) for one in reversed(outcomes) for kind, message in one.first.items()}
        update = {
            "status": status,
            "problem": self.problem,
            "batches": sum(one.batches for one in outcomes),
            "samples": sum(one.samples for one in outcomes),
            "padding": sum(one.padding for one in outcomes),
            "errors": dict(errors),
            "first_errors": first,
        }
        self.record = self.record.model_copy(update=update)
        write_model(self.logs / SUT_NAME, self.record)
        if self._requests is not None:
            write_queries(self.folder, self._requests, self._intended_ns())

    def _intended_ns(self) -> dict[int, int] | None:
        """When LoadGen meant to issue the queries of Server, by its trace log; not known without that."""
        if self.settings.scenario != "Server":
            return None
        path = self.logs / TRACE_LOG
        if self._requests is None or not path.is_file():
            return {}
        return intended_ns(read_trace(path), np.frombuffer(self._requests.sent_ns, np.int64))

    def _run(self) -> None:
        settings, made = self.settings, backend(self.settings.case_spec(self.device).case.backend)
        lg = loadgen()
        self._keep(loadgen=_version(lg), versions=made.versions())
        sut = self._sut()
        assert self._data is not None
        assert self._samples is not None
        gc.collect()
        gc.freeze()
        given, overridden = test_settings(settings, self.logs, min(self._round_s), settings.sizes[-1])
        count = self._data.count
        in_memory = min(
            count, settings.performance_samples or given.performance_sample_count_override or MOST_IN_MEMORY
        )
        self._keep(data_samples=count, performance_samples=in_memory, overridden=overridden)
        run_test(
            sut, self._samples, self._data, in_memory, given, self.logs, trace=settings.log_queries, fail=self.fail
        )
        sut.close()
        self._perf.finalize()

    def _sut(self) -> InlineSut | QueuedSut:
        settings = self.settings
        is_offline = settings.scenario == "Offline"
        if settings.scenario in ONE_AT_A_TIME or (is_offline and settings.workers == 1):
            return InlineSut(self._executor(), self._requests, is_offline=is_offline)
        return QueuedSut(
            [self._executor] * settings.workers,
            self._requests,
            batch_timeout_s=settings.batch_timeout_ms / 1e3,
            is_offline=is_offline,
        )

    def _executor(self) -> Executor:
        """Load and warm up what a thread executes on."""
        settings, sessions = self.settings, {}
        for size in settings.sizes:
            sessions[size] = self._session(size)
        assert self._samples is not None
        made = Executor(self._perf, sessions, self._samples, respond, self._requests, self.abort)
        with self._perf.range("warm_up"):
            self._round_s.append(made.warm_up(settings.warmup_rounds))
        self._keep(warmup_round_ms=min(self._round_s) * 1e3, backend_settings=sessions[settings.sizes[-1]].settings())
        self._executors.append(made)
        return made

    def _session(self, size: int) -> Session:
        spec = self.settings.case_spec(self.device, size)
        made = backend(spec.case.backend).load(model_source(spec.model), spec.options)
        session = self._stack.enter_context(made)
        if self._samples is None:
            shapes = sample_shapes(session.inputs, spec)
            self._data = open_data(self.settings, session.inputs, shapes, spec)
            self._samples = LoadedSamples(self._data, session.inputs, shapes)
            self._samples.load([0])
        session.allocate(input_shapes(session.inputs, spec))
        return session

    def _keep(self, **fields: object) -> None:
        self.record = self.record.model_copy(update=fields)


def _version(loadgen: ModuleType) -> str | None:
    """Of the installed package; the module itself has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return str(getattr(loadgen, "__version__", None) or version("mlcommons-loadgen"))
    except PackageNotFoundError:
        return None


def _device(settings: MlperfSettings) -> Device:
    name, mode = backend_and_mode(settings.backend)
    return device_for(settings.device, backend(name), mode, has_gpu=bool(os.environ.get("CUDA_VISIBLE_DEVICES")))


def main() -> None:
    """Run the test that the first argument describes."""
    settings = MlperfSettings.model_validate_json(sys.argv[1])
    test = Test(settings, Path(os.environ.get(environment.OUTPUT_DIR) or ".").absolute())
    test.logs.mkdir(parents=True, exist_ok=True)
    thread = threading.Thread(target=test.run, name="loadgen", daemon=True)
    thread.start()
    status: Literal["ok", "interrupted", "failed"]
    try:
        test.ended.wait()
        status = "ok" if test.problem is None else "failed"
    except KeyboardInterrupt:
        status, test.problem = "interrupted", "it was interrupted"
    test.write(status)
    if test.problem is None:
        return
    sys.stderr.write(f"perfharness mlperf: {test.problem}\n")
    thread.join(timeout=1)
    if not thread.is_alive():
        sys.exit(EXIT_FAILED)
    # LoadGen cannot be stopped, and a process that ends below it crashes: write what others have to, and leave.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
