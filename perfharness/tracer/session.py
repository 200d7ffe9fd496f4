"""One traced process: hooks installed before the script, the trace written after it, however it ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

from perfharness.model import environment, range_log
from perfharness.model import nsys_schema as schema
from perfharness.script import end_by_signal, is_safe_path, own_imports
from perfharness.tracer import nvtx_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfharness.tracer.gpu import GpuTrace

TRACE_NAME = "trace.sqlite"

GPU_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu")
"""A machine with a usable NVIDIA GPU has one of these: discrete, WSL, Tegra."""


def _read_both_clocks() -> tuple[int, int]:
    """The trace's clock and UTC at one time: the closest of several pairs of readings; the first is always slow."""
    best = None
    for _ in range(5):
        before = time.perf_counter_ns()
        unix = time.time_ns()
        after = time.perf_counter_ns()
        if best is None or after - before < best[0]:
            best = after - before, (before + after) // 2, unix
    assert best is not None
    return best[1], best[2]


class Session:
    """One traced process. `start` is called once, before the script; `finish` at the first exit path."""

    def __init__(self, output_dir: str, write: Callable[[Session], object]) -> None:
        self.output_dir = output_dir
        self._write = write
        self.pid = os.getpid()
        self.origin_ns, self.origin_unix_ns = _read_both_clocks()
        self.end_ns = 0
        self.gpu_present = any(os.path.exists(path) for path in GPU_DEVICE_FILES)  # noqa: PTH110 - start-up time
        self.log = range_log.RangeLog(output_dir, gpu_present=self.gpu_present)
        self.log_name = self.log.file_name
        self.trace_name = TRACE_NAME
        self.gpu: GpuTrace | None = None
        self.gpu_reason: str | None = None
        self.diagnostics: list[str] = []
        self._finished = False
        self._exit_signal: int | None = None
        self._sys_path: list[str] = []

    @classmethod
    def start(cls, output_dir: str, write: Callable[[Session], object]) -> Session:
        """Install the logs, the GPU trace and the exit handlers.

        Args:
            output_dir: folder of the trace.
            write: writes it after the script has ended.
        """
        session = cls(output_dir, write)
        # Without the folder that `-m` adds: the tracer's later imports must not find the script's modules.
        session._sys_path = sys.path[:] if is_safe_path() else sys.path[1:]
        range_log.install(session.log)
        nvtx_hook.install(session.log, session.diagnostics)
        if os.environ.get(environment.TRACER) == environment.ONLY_RANGES:
            session.gpu_reason = schema.ONLY_RANGES
        elif session.gpu_present:
            from perfharness.tracer.gpu import start_gpu_trace

            session.gpu, session.gpu_reason = start_gpu_trace(session.output_dir)
        else:
            session.gpu_reason = "there is no NVIDIA GPU on this machine"
        # Registered before the script's, so it runs last: after its threads and its own exit functions.
        atexit.register(session.finish)
        os.register_at_fork(after_in_child=session._forget_in_child)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, session._on_sigterm)
        return session

    def finish(self) -> None:
        """Stop tracing and write the trace; a second call, and a call in a forked child, do nothing."""
        if self._finished or os.getpid() != self.pid:
            return
        self._finished = True
        self.end_ns = time.perf_counter_ns()
        try:
            with own_imports(self._sys_path):
                self._write(self)
        except Exception as error:
            sys.stderr.write(
                f"perfharness: {os.path.join(self.output_dir, TRACE_NAME)} could not be written: "  # noqa: PTH118
                f"{type(error).__name__}: {error}; this process has no trace\n"
            )
        if self._exit_signal is not None:
            end_by_signal(self._exit_signal)

    def end_by_sigint(self) -> None:
        """End the process by SIGINT after `finish`, as Python does after a KeyboardInterrupt."""
        self._exit_signal = signal.SIGINT

    def _on_sigterm(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self.pid and self._finished:
            self._exit_signal = number  # after the trace, which is being written
            return
        self.finish()
        end_by_signal(number)

    def _forget_in_child(self) -> None:
        """A forked child has its own log file; CUDA does not survive a fork."""
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
