"""A backend without a framework: times, memory and failures come from a script. For tests of measuring code.

In a test's own process it is made with a `FakeClock`, and only the clock's time passes. For a child process,
`write_model` writes a file, the text `file.py:create` names the model and `FAKE_BACKEND` the backend;
there it sleeps.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from perfharness.backends.base import Backend, BackendOptions
from perfharness.backends.models import ModelSource, Shape, call_factory
from perfharness.backends.session import DeviceTimer, LayerTime, Session
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from perfharness.model.bench import Precision, TensorSpec

FAKE_BACKEND = "tests.support.fake_backend:FakeBackend"
"""Its name on the command line."""

NS_PER_MS = 1_000_000


class FakeClock:
    """Monotonic nanoseconds; time passes only by `advance`."""

    def __init__(self, now_ns: int = 1_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, nanoseconds: int) -> None:
        self.now_ns += nanoseconds


class RealClock(FakeClock):
    """The machine's clock; `advance` sleeps."""

    def __call__(self) -> int:
        return time.perf_counter_ns()

    def advance(self, nanoseconds: int) -> None:
        time.sleep(max(0, nanoseconds) / 1e9)


class FakeScript(BaseModel):
    """What a fake session does. Times in milliseconds; `y = scale * x + bias`, rounded to fp16 in that precision."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    features: int = 4
    """Input `x` is float32 (batch, features), output `y` likewise."""

    layout: tuple[int | None, ...] | None = None
    """Of the input without the batch, instead of `features`."""

    scale: float = 2.0
    bias: float = 0.0
    bias_of_threads: float = 0.0
    """Added for each thread that the suite sets."""

    load_ms: float = 0.0
    allocate_ms: float = 0.0
    first_extra_ms: float = 0.0
    """Additional time of the first execution after `allocate`."""

    launch_ms: float = 0.0
    """The host's time in each of `copy_in`, `execute`, `copy_out`; the started work continues after they return."""

    copy_in_ms: float = 0.0
    copy_out_ms: float = 0.0
    execute_ms: float = 1.0
    per_item_ms: float = 0.0
    """Added to `execute_ms` for each item of the batch."""

    by_batch_ms: dict[int, float] = {}
    """Instead of both, for these batch sizes."""

    series_ms: tuple[float, ...] = ()
    """Added to consecutive executions, cyclically."""

    has_device: bool = False
    """Whether there is a device timer, and device memory."""

    host_bytes_per_item: int = 0
    """Host memory allocated (and touched) in `allocate`."""

    oom_at_batch: int | None = None
    """From this batch size on, `allocate` is out of memory ..."""

    oom_in_execute: bool = False
    """... or `execute` is."""

    oom_with_threads: int | None = None

    error_at_batch: int | None = None
    crash_at_batch: int | None = None
    """From this batch size on, a signal ends the process in `execute`."""

    crash_at_execution: int | None = None
    """The n-th execution of the session, from 0, ends the process."""

    hang_at_batch: int | None = None
    """From this batch size on, `execute` takes an hour."""

    unavailable: str | None = None
    layers: dict[str, float] = {}


class FakeBackend(Backend):
    """Runs a `FakeScript`; without one, the model is a function that returns it. Without a clock, the machine's own."""

    name = "fake"
    modes = ("plain", "fast")
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    suffixes = ()
    install = "nothing to install"

    def __init__(self, script: FakeScript | None = None, clock: FakeClock | None = None) -> None:
        self._script, self._clock = script, clock or RealClock()

    def versions(self) -> dict[str, str]:
        return {"fake": "1.0"}

    def unsupported(self, options: BackendOptions) -> str | None:
        """What the script says; other problems occur when a model is loaded."""
        del options
        return self._script.unavailable if self._script is not None else None

    def open(self, model: ModelSource, options: BackendOptions) -> FakeSession:
        script: FakeScript = self._script or call_factory(model, self.name, options.precision)
        if script.unavailable is not None:
            raise BackendUnavailableError(script.unavailable)
        self._clock.advance(round(script.load_ms * NS_PER_MS))
        return FakeSession(script, options, self._clock)


class FakeSession(Session):
    """A session whose device executes started work in order, on the given clock."""

    def __init__(self, script: FakeScript, options: BackendOptions, clock: FakeClock) -> None:
        shape = (None, *(script.layout or (script.features,)))
        super().__init__(*([TensorSpec(name=name, shape=shape, dtype="float32")] for name in "xy"))
        self.script, self.options, self.calls = script, options, list[str]()
        self.executions = 0
        self.device_free_ns = 0
        self.clock = clock
        self._y: list[npt.NDArray[Any]] = []
        self._held: npt.NDArray[Any] | None = None
        self._is_first = True

    @property
    def batch_size(self) -> int:
        return self._shapes["x"][0] if self._shapes else 0

    def _allocate(self, shapes: dict[str, Shape]) -> None:
        self.calls.append("allocate")
        script, batch = self.script, shapes["x"][0]
        self.clock.advance(round(script.allocate_ms * NS_PER_MS))
        is_full = _reached(batch, script.oom_at_batch) and not script.oom_in_execute
        if is_full or (script.oom_with_threads is not None and script.oom_with_threads == self.options.threads):
            raise OutOfMemoryError(f"the fake device has no room for a batch of {batch}")
        if script.host_bytes_per_item:
            self._held = np.ones(script.host_bytes_per_item * batch, np.uint8)
        self._host["x"], self._is_first = np.zeros(shapes["x"], np.float32), True

    def copy_in(self) -> None:
        self._start("copy_in", self.script.copy_in_ms)

    def _execute(self) -> None:
        script, batch = self.script, self.batch_size
        if _reached(batch, script.crash_at_batch) or self.executions == script.crash_at_execution:
            os.kill(os.getpid(), signal.SIGKILL)
        if _reached(batch, script.error_at_batch):
            raise BackendError(f"the fake model does not run a batch of {batch}")
        if _reached(batch, script.oom_at_batch):
            raise OutOfMemoryError(f"the fake device has no room to run a batch of {batch}")
        if _reached(batch, script.hang_at_batch):
            self.clock.advance(3_600_000 * NS_PER_MS)
        self._start("execute", self._milliseconds(batch))
        self.executions += 1
        self._is_first = False
        bias = script.bias + script.bias_of_threads * (self.options.threads or 0)
        y = (script.scale * self._host["x"] + bias).astype(np.float32)
        self._y = [y.astype(np.float16) if self.options.precision == "fp16" else y]

    def copy_out(self) -> None:
        self._start("copy_out", self.script.copy_out_ms)

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self.clock.advance(max(0, self.device_free_ns - self.clock()))

    def _results(self) -> Sequence[Any]:
        return [each.astype(np.float32) for each in self._y]

    def _free(self) -> None:
        self._held, self._y = None, []

    def _release(self) -> None:
        self.calls.append("close")

    def device_timer(self) -> DeviceTimer | None:
        return FakeTimer(self) if self.script.has_device else None

    def device_memory_bytes(self) -> int | None:
        return 1_000 if self.script.has_device else None

    def settings(self) -> dict[str, str]:
        return {"mode": self.options.mode or "plain"}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        layers = [LayerTime(name, milliseconds) for name, milliseconds in self.script.layers.items()]
        return layers or super().layer_times(rounds)

    def _start(self, what: str, milliseconds: float) -> None:
        self.calls.append(what)
        self.clock.advance(round(self.script.launch_ms * NS_PER_MS))
        begin_ns = max(self.clock(), self.device_free_ns)
        self.device_free_ns = begin_ns + round(milliseconds * NS_PER_MS)
        if not self.script.has_device:
            self.clock.advance(self.device_free_ns - self.clock())

    def _milliseconds(self, batch: int) -> float:
        script = self.script
        extra = script.first_extra_ms if self._is_first else 0.0
        base = script.by_batch_ms.get(batch, script.execute_ms + script.per_item_ms * batch)
        series = script.series_ms
        return extra + base + (series[self.executions % len(series)] if series else 0.0)


class FakeTimer(DeviceTimer):
    """Points in the fake device's queue."""

    def __init__(self, session: FakeSession) -> None:
        self._session, self._start_ns, self._stop_ns = session, 0, 0

    def start(self) -> None:
        self._start_ns = max(self._session.clock(), self._session.device_free_ns)

    def stop(self) -> None:
        self._stop_ns = max(self._session.clock(), self._session.device_free_ns)

    def milliseconds(self) -> float:
        return (self._stop_ns - self._start_ns) / NS_PER_MS


def write_model(path: Path, script: FakeScript) -> str:
    """Write a file that creates the script in another process; returns the model's name there."""
    path.write_text(
        "from tests.support.fake_backend import FakeScript\n\n\n"
        "def create(backend, precision):\n"
        f"    return FakeScript.model_validate_json({script.model_dump_json()!r})\n"
    )
    return f"{path}:create"


def _reached(batch: int, limit: int | None) -> bool:
    return limit is not None and batch >= limit
