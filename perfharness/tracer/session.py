"""Session of a traced process: install hooks before the script; write the trace or end the log after it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from perfharness.boot import ranks
from perfharness.import_hook import ImportHook
from perfharness.model import environment
from perfharness.model import nsys_schema as schema
from perfharness.tracer import nvtx_hook, range_log

if TYPE_CHECKING:
    from perfharness.tracer.gpu import GpuTrace

GPU_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu")
"""Device files of NVIDIA GPUs: discrete, WSL, Tegra."""

TORCH_INITIALISERS = {"torch.cuda": ("_lazy_init",), "torch.cuda.nvtx": ("range_push", "range_start", "mark")}
"""Functions of PyTorch that initialise CUDA or NVTX, by module. CUPTI is started before them."""


class Session:
    """A traced process, or after a fork the child.

    A process that used the GPU writes its trace at exit. For others, the launch makes it from the log.

    Args:
        is_window: whether the process runs before and after the session.
    """

    current: Session | None = None
    """The session of this process."""

    def __init__(self, output_dir: str, write_trace: Callable[[Session], object], *, is_window: bool = False) -> None:
        self.output_dir, self.is_window = output_dir, is_window
        self._write_trace = write_trace
        self.pid = os.getpid()
        self.origin_ns, self.origin_unix_ns = _read_both_clocks()
        self.end_ns = 0
        self.gpu_present = any(os.path.exists(path) for path in GPU_DEVICE_FILES)  # noqa: PTH110 - start-up time
        self.log = range_log.RangeLog(output_dir, gpu_present=self.gpu_present)
        self.gpu: GpuTrace | None = None
        self.gpu_reason: str | None = None
        if os.environ.get(environment.TRACER) == environment.ONLY_RANGES:
            self.gpu_reason = schema.ONLY_RANGES
        elif not self.gpu_present:
            self.gpu_reason = "there is no NVIDIA GPU on this machine"
        self.inherited_threads: frozenset[int] = frozenset()
        """IDs of the threads that forked, in ancestors: each became the first thread of its child."""

        self._watched: set[str] = set()
        self._starting_gpu = threading.RLock()
        self._finished = False
        self._forking = threading.local()
        self._os_exit = os._exit

    @property
    def trace_name(self) -> str:
        """Name of this process's trace."""
        return schema.child_trace_name(self.pid, ranks.start_ticks())

    @classmethod
    def of_this_process(cls, output_dir: str, write_trace: Callable[[Session], object]) -> Session:
        """Return the session of this process; the first call starts it."""
        if cls.current is None:
            cls.current = cls(output_dir, write_trace)
            cls.current.install()
        return cls.current

    def install(self) -> None:
        """Install the log, the hooks and the exit functions."""
        range_log.install(self.log)
        nvtx_hook.install(self.log)
        # Registered before the script's exit functions, so it runs after them.
        atexit.register(self._finish_at_exit)
        os.register_at_fork(before=self._before_fork, after_in_child=self._begin_in_child)
        os._exit = self._finish_and_exit

    def watch(self, gpu_modules: Collection[str]) -> None:
        """Start CUPTI on import of these modules, if there is a GPU to trace."""
        new = set(gpu_modules) - self._watched
        self._watched |= new
        if self.gpu_reason is None:
            ImportHook(new, self._gpu_module_imported).install()

    def _gpu_module_imported(self, _module: ModuleType, name: str) -> None:
        """Start CUPTI, with PyTorch only when it initialises CUDA.

        PyTorch programs fork workers before that, and a forked child lacks CUPTI's threads.
        """
        if name == "torch":
            for module, functions in TORCH_INITIALISERS.items():
                names = getattr(sys.modules.get(module), "__dict__", {})
                for function in names.keys() & functions:
                    _call_before(names[function], self.start_gpu)
        else:
            self.start_gpu()

    def start_gpu(self) -> None:
        """Record GPU work from now on; a second call does nothing."""
        with self._starting_gpu:
            if self.gpu is None and self.gpu_reason is None:
                from perfharness.tracer.gpu import start_gpu_trace

                self.gpu, self.gpu_reason = start_gpu_trace()

    def finish(self) -> bool:
        """Stop tracing, and write the trace if the GPU was used; a second call does nothing.

        Returns whether a trace was due.
        """
        if self._finished or os.getpid() != self.pid:
            return False
        self._finished = True
        self.end_ns = time.perf_counter_ns()
        from perfharness.tracer.cupti import cuda_was_used

        uses_cuda = self.gpu_present and cuda_was_used()
        if not uses_cuda or self.gpu_reason == schema.ONLY_RANGES:
            self.log.note_end(cuda_used=uses_cuda, gpu_reason=self.gpu_reason or "CUDA was not used")
            return False
        try:
            self._write_trace(self)
        except Exception as error:
            path = f"{self.output_dir}/{self.trace_name}"
            message = f"cannot write {path} ({type(error).__name__}: {error})"
            sys.stderr.write(f"perfharness: {message}; GPU work of this process is lost\n")
        return True

    def _finish_at_exit(self) -> None:
        if self.finish() and getattr(sys, "last_type", None) is KeyboardInterrupt:
            _end_by_sigint()

    def _finish_and_exit(self, status: int) -> NoReturn:
        """Replaces `os._exit`, by which forked workers end without exit functions."""
        with contextlib.suppress(Exception):
            self.finish()
        self._os_exit(status)

    def _before_fork(self) -> None:
        self._forking.thread = threading.get_native_id()

    def _begin_in_child(self) -> None:
        """Begin in a forked child, without CUPTI: a flush there would wait for its threads for ever."""
        self.pid = os.getpid()
        self._finished = False
        self._starting_gpu = threading.RLock()
        self.inherited_threads |= {self._forking.thread}
        if self.gpu is not None:
            self.gpu.pool.close()
            self.gpu, self.gpu_reason = None, schema.CUPTI_FORKED


def _call_before(function: Callable[..., Any], start_gpu: Callable[[], None]) -> None:
    """Call `start_gpu` before the first call of a function of PyTorch, in all modules that import it."""

    def replace(old: Callable[..., Any], new: Callable[..., Any]) -> None:
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})
            if names.get(function.__name__) is old:
                names[function.__name__] = new

    @functools.wraps(function)
    def first(*args: Any, **kwargs: Any) -> Any:
        replace(first, function)
        start_gpu()
        return function(*args, **kwargs)

    replace(function, first)


def _read_both_clocks() -> tuple[int, int]:
    """Read the trace's clock and UTC at the same time: the fastest of several tries."""
    pairs = []
    for _ in range(5):
        before = time.perf_counter_ns()
        unix = time.time_ns()
        after = time.perf_counter_ns()
        pairs.append((after - before, (before + after) // 2, unix))
    return min(pairs)[1:]


def _end_by_sigint() -> None:
    """End as Python does after a KeyboardInterrupt. It forgets that if an exit function imports NumPy."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
