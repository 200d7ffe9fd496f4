"""One traced process: hooks installed with the first module that makes ranges or uses the GPU."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from perfharness.model import environment, range_log, ranks
from perfharness.model import nsys_schema as schema
from perfharness.tracer import nvtx_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfharness.tracer.gpu import GpuTrace

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
    """One traced process; a forked one goes on with that of its parent. `finish` is called at the first exit path.

    The launch makes the trace of its log; only where it used the GPU does the process write its trace itself.
    """

    current: Session | None = None
    """That of this process."""

    def __init__(self, output_dir: str, write_trace: Callable[[Session], object]) -> None:
        self.output_dir = output_dir
        self._write_trace = write_trace
        self.pid = os.getpid()
        self.origin_ns, self.origin_unix_ns = _read_both_clocks()
        self.end_ns = 0
        self.gpu_present = any(os.path.exists(path) for path in GPU_DEVICE_FILES)  # noqa: PTH110 - start-up time
        self.log = range_log.RangeLog(output_dir, gpu_present=self.gpu_present)
        self.trace_name = schema.TRACE_NAME
        self.gpu: GpuTrace | None = None
        self.gpu_reason: str | None = None
        self.diagnostics = self.log.diagnostics
        self._finished = False
        self._exit_signal: int | None = None
        self._os_exit = os._exit
        self._forking = threading.local()
        self.inherited_threads: frozenset[int] = frozenset()
        """Ids of threads of processes above that forked, each of which is this process's first thread now."""

    @classmethod
    def start(cls, output_dir: str, write_trace: Callable[[Session], object]) -> Session:
        """Install the log and the exit handlers. CUPTI is left until a module is imported that uses it.

        Args:
            output_dir: folder of the log and the trace.
            write_trace: writes the trace of a process that used the GPU.
        """
        session = cls(output_dir, write_trace)
        session._name_process()
        session._install()
        return session

    def _install(self) -> None:
        Session.current = self
        range_log.install(self.log)
        nvtx_hook.install(self.log)
        # Registered before the script's, so it runs last: after its threads and its own exit functions.
        atexit.register(self.finish)
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._release_sigterm, after_in_child=self._begin_in_child
        )
        os._exit = self._finish_and_exit

    def _handle_sigterm(self) -> None:
        """Where the GPU is traced, whose work is lost without `finish`. All else is on the disk when it is recorded.

        Python calls a handler only when the main thread returns to it: one in a call of C for ever would not end.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def start_gpu(self) -> None:
        """Record the GPU's work from now on, where there is a GPU; a second call does nothing."""
        if self.gpu is not None or self.gpu_reason is not None:
            return
        if os.environ.get(environment.TRACER) == environment.ONLY_RANGES:
            self.gpu_reason = schema.ONLY_RANGES
        elif self.gpu_present:
            from perfharness.tracer.gpu import start_gpu_trace

            self.gpu, self.gpu_reason = start_gpu_trace(self.output_dir)
            if self.gpu is not None:
                self._handle_sigterm()
        else:
            self.gpu_reason = "there is no NVIDIA GPU on this machine"

    @property
    def log_name(self) -> str:
        """Name of the log of ranges of this process."""
        return self.log.file_name

    def finish(self) -> None:
        """Stop tracing and write the trace; a second call does nothing."""
        if self._finished or os.getpid() != self.pid:
            return
        self._finished = True
        self.end_ns = time.perf_counter_ns()
        try:
            self._write()
        except Exception as error:
            sys.stderr.write(
                f"perfharness: {os.path.join(self.output_dir, self.trace_name)} could not be written: "  # noqa: PTH118
                f"{type(error).__name__}: {error}; this process has no trace\n"
            )
        if self._exit_signal is not None:
            _end_by_signal(self._exit_signal)

    def _write(self) -> None:
        """Write the trace of a process that used the GPU; of others the launch makes it."""
        self.log.restore()
        used = self.gpu_present and _uses_cuda()
        if used and self.gpu is not None:
            if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
                self._exit_signal = signal.SIGINT  # Python forgets it when an exit function imports NumPy
            self._write_trace(self)
        else:
            reason = self.gpu_reason or "CUDA was used by a library that the tracer does not know"
            self.log.note_end(cuda_used=used, gpu_reason=reason)

    def _on_sigterm(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self.pid and self._finished:
            self._exit_signal = number  # after the trace, which is being written
            return
        self.finish()
        _end_by_signal(number)

    def _finish_and_exit(self, status: int) -> NoReturn:
        """Replaces `os._exit`, which calls no exit function: what the GPU did would be lost."""
        with contextlib.suppress(Exception):
            self.finish()
        self._os_exit(status)

    def _name_process(self) -> None:
        self.pid = os.getpid()
        self.trace_name = schema.child_trace_name(self.pid, ranks.start_ticks())
        self._finished, self._exit_signal = False, None

    def _begin_in_child(self) -> None:
        """In a forked child, which has a log file of its own.

        Neither CUDA nor CUPTI survives a fork: GPU work of a child whose parent has started either is not recorded.
        """
        self._name_process()
        self.inherited_threads |= {self._forking.thread}
        if self.gpu is not None:
            self.gpu = self.gpu.in_forked_child(self.output_dir)
            if self.gpu is None:
                self.gpu_reason = schema.CUPTI_FORKED
        if self.gpu is None and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._release_sigterm()

    def _before_fork(self) -> None:
        """Note the thread, and hold SIGTERM back.

        Python forgets what a child is sent before it runs, unless the signal ends it at once: a pool that is closed
        early sends its workers SIGTERM, and waits for them for ever where they do not get it.
        """
        self._forking.thread = threading.get_native_id()
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _release_sigterm(self) -> None:
        mask = self._forking.__dict__.pop("mask", None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _uses_cuda() -> bool:
    """Whether the driver is in this process's memory and initialised."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - start-up time
            if not any("libcuda.so" in line for line in maps):
                return False
    except OSError:
        pass  # the driver itself will say
    from perfharness.tracer.gpu import cuda_was_used

    return cuda_was_used()


def _end_by_signal(number: int) -> None:
    """Flush the output and end this process by a signal."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
