"""Record GPU work through CUPTI, from the first use of CUDA to the end of the script.

Recorded: kernels, copies, memsets, graph launches, and API calls that start such work. This suffices
to attribute work to ranges, for a third of the overhead of all API calls
(docs/internals/embedded-tracer.md). The profiling pass also records other calls and synchronisations.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
from pathlib import Path

from perfharness.model import environment
from perfharness.tracer import callbacks, cupti
from perfharness.tracer.cupti import Cupti, CuptiError
from perfharness.tracer.layouts import is_known

BUFFER_BYTES = 1 << 20
MIN_POOL_BYTES = 256 << 20
MAX_POOL_BYTES = 32 << 30
POOL_SHARE_OF_MEMORY = 4
"""Records may use 1/4 of the memory limit of the process; CUPTI drops and counts further ones."""

OPERATION_KINDS = (
    cupti.KIND_CONCURRENT_KERNEL,
    cupti.KIND_MEMCPY,
    cupti.KIND_MEMCPY_PEER,
    cupti.KIND_MEMSET,
    cupti.KIND_GRAPH_TRACE,
)
OTHER_KINDS = (
    cupti.KIND_SYNCHRONIZATION,
    cupti.KIND_RUNTIME,
    cupti.KIND_DRIVER,
    cupti.KIND_MARKER,
    cupti.KIND_MARKER_DATA,
)
NVTX_INJECTION = "NVTX_INJECTION64_PATH"
OTHER_TOOLS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", NVTX_INJECTION)
"""Variables of other tools that trace CUDA or NVTX."""

CANARY = "cuDriverGetVersion"
"""Function whose call must leave a record, to notice another user of CUPTI."""

STALLED_S = 20.0
"""Time without a returned buffer after which a flush counts as stalled."""


class StalledError(Exception):
    """CUPTI did not return its buffers. A thread is still in the call."""


class GpuTrace:
    """A running trace that records into a pool of buffers.

    Attributes:
        all_calls: whether all calls except inquiries are recorded.
        api_names: recorded functions by `(domain, cbid)`.
    """

    def __init__(self, library: Cupti, driver: ctypes.CDLL) -> None:
        self.cupti, self.driver = library, driver
        self.pool = callbacks.BufferPool(BUFFER_BYTES, _pool_bytes() // BUFFER_BYTES)
        self.all_calls = os.environ.get(environment.EXPLAIN) == "1"
        self.api_names: dict[tuple[int, int], str] = {}
        self._has_canary = False
        self._asked, self._answered = _thread.allocate_lock(), _thread.allocate_lock()
        self._answer: tuple[int, bool] | Exception = (0, False)

    def start(self) -> None:
        """Have CUPTI record into the pool. Raises `CuptiError`."""
        call, clock = self.cupti.call, ctypes.c_void_p(self.pool.clock_address)
        # Become CUPTI's only subscriber. Its function is never called: no callback is enabled.
        call("cuptiSubscribe", ctypes.byref(ctypes.c_void_p()), clock, None)
        size, flag = ctypes.c_size_t(1), ctypes.c_uint8(1)
        attribute = ctypes.c_int(cupti.ATTRIBUTE_ZEROED_OUT_BUFFER)
        call("cuptiActivitySetAttribute", attribute, ctypes.byref(size), ctypes.byref(flag))
        call("cuptiSetThreadIdType", ctypes.c_int(cupti.THREAD_ID_SYSTEM))
        call("cuptiActivityRegisterTimestampCallback", clock)
        request, complete = self.pool.request_address, self.pool.complete_address
        call("cuptiActivityRegisterCallbacks", ctypes.c_void_p(request), ctypes.c_void_p(complete))
        self.record()

    def record(self) -> None:
        """Start recording, also after `stop`. Raises `CuptiError`."""
        for kind in (*OPERATION_KINDS, cupti.KIND_MARKER, cupti.KIND_MARKER_DATA):
            self._enable(kind)
        if self.all_calls:
            with contextlib.suppress(CuptiError):  # the calls alone show most waits
                self._enable(cupti.KIND_SYNCHRONIZATION)
        self._enable_calls(cupti.DOMAIN_RUNTIME, cupti.KIND_RUNTIME, "cuptiActivityEnableRuntimeApi")
        self._enable_calls(cupti.DOMAIN_DRIVER, cupti.KIND_DRIVER, "cuptiActivityEnableDriverApi")
        # Started now, because Python 3.12 starts no thread in an exit function; hidden from `threading`, because
        # scripts may join all its threads.
        self._asked.acquire(blocking=False)
        self._answered.acquire(blocking=False)
        _thread.start_new_thread(self._stop_when_asked, ())

    def _enable(self, kind: int) -> None:
        self.cupti.call("cuptiActivityEnable", ctypes.c_int(kind))

    def _enable_calls(self, domain: int, kind: int, function: str) -> None:
        """Record the functions that start GPU work, or all but inquiries in the profiling pass.

        Falls back to all functions if CUPTI is old, refuses a function in the profiling pass, or is
        started after the first use of CUDA: it would then record none of the chosen functions.
        """
        functions = self.cupti.functions(domain)
        wanted = {cbid: name for cbid, name in functions.items() if self._is_wanted(name)}
        self._has_canary |= CANARY in wanted.values()
        if hasattr(self.cupti.library, function) and not cupti.is_initialised(self.driver):
            try:
                for cbid in sorted(wanted):
                    self.cupti.call(function, ctypes.c_uint32(cbid), ctypes.c_uint8(1))
            except CuptiError:
                if not self.all_calls:
                    raise
                self._enable(kind)
        else:
            wanted = functions
            self._enable(kind)
        named = functions if self.all_calls else wanted
        self.api_names |= {(domain, cbid): name for cbid, name in named.items()}

    def _is_wanted(self, function: str) -> bool:
        is_wanted = not cupti.is_inquiry(function) if self.all_calls else cupti.starts_gpu_work(function)
        return is_wanted or function == CANARY

    def stop(self) -> tuple[int, bool]:
        """Have CUPTI return all buffers.

        Returns:
            Number of dropped records, and whether another user of CUPTI took the records.

        Raises:
            StalledError: CUPTI does not answer. The process will skip the exit functions of libraries, because
                CUPTI's would hang as well.
        """
        self._asked.release()
        seen = self.pool.completed_count
        while not self._answered.acquire(timeout=STALLED_S):
            before, seen = seen, self.pool.completed_count
            if seen == before:
                _exit_without_libraries()
                raise StalledError(f"CUPTI did not return its buffers within {STALLED_S:.0f} s")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def _stop_when_asked(self) -> None:
        self._asked.acquire()
        try:
            taken_over = self._was_taken_over()
            self._flush()
            for kind in (*OPERATION_KINDS, *OTHER_KINDS):
                self.cupti.library.cuptiActivityDisable(ctypes.c_int(kind))
            self._answer = self.cupti.dropped_records(), taken_over
        except Exception as error:
            self._answer = error
        finally:
            self._answered.release()

    def _flush(self) -> None:
        self.cupti.call("cuptiActivityFlushAll", ctypes.c_uint32(cupti.FLUSH_FORCED))

    def _was_taken_over(self) -> bool:
        """Whether another user of CUPTI gets the records: a test call leaves none here."""
        if not self._has_canary or not cupti.is_initialised(self.driver):
            return False
        before = self._recorded_bytes()
        self.driver.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))
        self._flush()
        return self._recorded_bytes() == before

    def _recorded_bytes(self) -> int:
        return sum(valid_bytes for _, valid_bytes in self.pool.completed())


def start_gpu_trace() -> tuple[GpuTrace | None, str | None]:
    """Start tracing; return the trace, or None and the reason."""
    tool = _other_tool()
    if tool is not None:
        return None, f"another tool traces CUDA in this process ({tool} is set), and CUPTI allows only one"
    if not callbacks.supported():
        return None, f"the embedded tracer has no CUPTI callbacks for {os.uname().machine}; use nsys"
    driver = cupti.driver_library()
    if driver is None:
        return None, "the CUDA driver (libcuda.so.1) is not installed"
    try:
        major = cupti.driver_cuda_version(driver) // 1000
        reason = f"libcupti.so.{major} was not found; pip install 'nvidia-cuda-cupti=={major}.*'"
        for path in cupti.find_libraries(major):
            library = Cupti(path)
            if is_known(library.version):
                trace = GpuTrace(library, driver)
                trace.start()
                # For NVTX in C and C++ libraries. `os.environ` of the script stays unchanged.
                ctypes.CDLL(None).setenv(NVTX_INJECTION.encode(), str(path).encode(), 1)
                return trace, None
            reason = (
                f"this version of perfharness does not support {path} (CUPTI {library.version}); "
                "update perfharness, or use nsys"
            )
    except CuptiError as error:
        if error.code == cupti.ERROR_MULTIPLE_SUBSCRIBERS:
            return None, "another CUPTI subscriber (nsys, ncu or a profiler) is active in this process"
        return None, f"CUPTI could not be started: {error}"
    except (OSError, AttributeError) as error:
        return None, f"CUPTI could not be started: {error}"
    return None, reason


def _other_tool() -> str | None:
    for name in OTHER_TOOLS:
        value = os.environ.get(name, "")
        is_ours = name == NVTX_INJECTION and "libcupti.so" in value  # set by a traced ancestor
        if value and not is_ours:
            return name
    return None


def _pool_bytes() -> int:
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
        available = min(available, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(MIN_POOL_BYTES, min(MAX_POOL_BYTES, available // POOL_SHARE_OF_MEMORY))


def _exit_without_libraries() -> None:
    """Have the process close C's files at exit and end, without other exit functions of libraries."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # missing in some C libraries; the last registered function runs first
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)
