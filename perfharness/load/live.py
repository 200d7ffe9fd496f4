"""Load tests of models in this process, with the load loops of `stress`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from perfharness.bench.live import Inputs as Batch
from perfharness.bench.live import LatencyBenchmark, LiveSession, Model, batch_size_of
from perfharness.load.callables import CallableTarget, Inputs
from perfharness.load.generator import send_load
from perfharness.load.profile import Phase, Profile, parse_objective
from perfharness.load.stress import read_load
from perfharness.load.worker import WorkerSpec
from perfharness.model.load import LoadResult
from perfharness.recorder import PerfRecorder

SHARES = (0.25, 0.5, 0.9, 0.5, 0.25)
"""Rates of the variable load, as shares of the rate of one user with one request at a time."""

PROCESS = "live"


class StressTest:
    """A model under load: latency from the due time, drift, leaks, errors.

    Args:
        inputs: inputs of each request: one batch, in the form that the model takes.
        device: as for `LatencyBenchmark`.
    """

    def __init__(self, inputs: Batch, device: str | None = None) -> None:
        self.inputs, self.device = inputs, device

    def sustained_load_test(self, model: Model, duration_minutes: float = 5.0, *, concurrency: int = 1) -> LoadResult:
        """Requests one after the other, from `concurrency` threads; drift and memory growth are findings."""
        phase = Phase(name="sustained", duration_s=60 * duration_minutes)
        return self._run(model, Profile(phases=(phase,), concurrency=concurrency))

    def variable_load_test(
        self,
        model: Model,
        rates: Sequence[float] = (),
        *,
        phase_sec: float = 10.0,
        concurrency: int = 1,
        max_latency_ms: float | None = None,
    ) -> LoadResult:
        """Poisson arrivals at several rates, one after the other.

        Args:
            rates: requests per second; empty: 25, 50, 90, 50 and 25 % of the maximum rate of one thread.
            max_latency_ms: objective of the 95th percentile.
        """
        if not rates:
            mean_ms = LatencyBenchmark(model, self.device).benchmark(self.inputs, 100, 10).mean.value
            rates = [share * 1000 / mean_ms for share in SHARES]
        phases = tuple(
            Phase(name=f"{place}: {rate:.4g}/s", duration_s=phase_sec, rate=rate, arrivals="poisson")
            for place, rate in enumerate(rates, 1)
        )
        objective = parse_objective(None if max_latency_ms is None else f"p95={max_latency_ms:g}ms")
        return self._run(model, Profile(phases=phases, concurrency=concurrency, objective=objective))

    def _run(self, model: Model, profile: Profile) -> LoadResult:
        recorder = PerfRecorder("load")
        session = partial(LiveSession, model, self.inputs, self.device)

        class Rounds:
            """A session of a worker's thread; its first round is not measured."""

            def __init__(self) -> None:
                self._session = session()
                self._session.run_round()
                self.close = self._session.close

            def __call__(self) -> None:
                self._session.run_round()

        name = getattr(model, "__name__", type(model).__name__)
        spec = WorkerSpec(kind="callable", target=f"{name}, batch {batch_size_of(self.inputs)}", profile=profile)
        # the outermost session restores a module's mode
        with session(), tempfile.TemporaryDirectory(prefix="perfharness-") as folder:
            (Path(folder) / PROCESS).mkdir()
            target = partial(CallableTarget, Rounds, recorder, Inputs(()))
            send_load(profile, target, Path(folder) / PROCESS, recorder)
            return read_load(Path(folder), spec, [PROCESS])
