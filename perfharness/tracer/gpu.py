"""Recording GPU work through CUPTI: started when CUDA is first used, stopped after the script, no calls in between.

What is recorded, and why so little (docs/internals/embedded-tracer.md): kernels, copies, memsets and graph
launches as the GPU ran them, and API records of only those functions that start such work. That is enough to
attribute work to ranges (by correlation id, thread and time), and costs a third of recording all API calls. The
explaining pass may cost time, and records the calls of all other functions and CUPTI's synchronisations too.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfharness.model import environment
from perfharness.model.nsys_schema import CUPTI_NOT_STARTED
from perfharness.tracer import cupti, injection, native
from perfharness.tracer.cupti import Cupti, CuptiError
from perfharness.tracer.gpu_spool import GpuSpool
from perfharness.tracer.injection import Injection, Step
from perfharness.tracer.layouts import is_known

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER_BYTES = 1 << 20
MIN_POOL_BYTES = 256 << 20
MAX_POOL_BYTES = 32 << 30
POOL_SHARE_OF_MEMORY = 4
"""Records that are not on disk yet may take this fraction (1/4) of the process's memory limit."""

ADDRESSES = 1 << 40
"""Bytes of address space to reserve: records of 4 billion launches."""

OPERATION_KINDS = (
    cupti.KIND_CONCURRENT_KERNEL,
    cupti.KIND_MEMCPY,
    cupti.KIND_MEMCPY_PEER,
    cupti.KIND_MEMSET,
    cupti.KIND_GRAPH_TRACE,
)
ENABLE = "cuptiActivityEnable"
NVTX_INJECTION = injection.NVTX_VARIABLE
OTHER_TOOLS = (injection.CUDA_VARIABLE, "NSYS_PROFILING_SESSION_ID", NVTX_INJECTION)
"""Set where another tool will trace CUDA or NVTX in this process."""

CUDA_SUCCESS = 0

STALLED_S = 20.0
"""CUPTI that has neither returned a buffer nor ended for so long will never do so."""


class NotStartedError(Exception):
    """CUDA was used without CUPTI; the message is the reason."""


class StalledError(Exception):
    """A call of CUPTI that did not return, and that a thread is still in."""


@dataclass
class GpuTrace:
    """A running trace.

    Args:
        spool: holds the buffers.
        api_names: function names by `(domain, cbid)` of the enabled functions.
        canary: number of a function whose call must leave a record.
        all_calls: whether the calls of all functions are recorded, but for mere inquiries.
        injection: starts CUPTI when CUDA is first used; None: it was started before.
    """

    cupti: Cupti
    spool: GpuSpool
    driver: ctypes.CDLL
    api_names: dict[tuple[int, int], str] = field(default_factory=dict)
    canary: int | None = None
    all_calls: bool = False
    injection: Injection | None = None

    @property
    def has_begun(self) -> bool:
        """Whether CUPTI was started in this process."""
        return self.injection is None or self.injection.has_begun

    def stop(self) -> tuple[int, bool]:
        """Have CUPTI return all buffers; those in memory stay there until the process ends.

        Returns how many records CUPTI dropped, and whether another user of CUPTI took them during the run. Raises
        `StalledError` where CUPTI does not answer: the process then ends without the exit functions of its libraries,
        of which CUPTI's would not answer either.
        """
        if self.injection is not None:
            if not self.has_begun and cuda_was_initialised(self.driver):
                raise NotStartedError(CUPTI_NOT_STARTED)
            try:
                self.injection.check()
            except CuptiError as error:
                raise NotStartedError(failure(error)) from error
        if not self.spool.stop(STALLED_S):
            raise StalledError(f"the records could not be written to the disk within {STALLED_S:.0f} s")
        if not self.has_begun:
            return 0, False
        try:
            return _until_stalled(self._stop_cupti, lambda: self.spool.pool.completed_count)
        except StalledError:
            _exit_without_libraries()
            raise

    def _stop_cupti(self) -> tuple[int, bool]:
        taken_over = self._was_taken_over()
        self.cupti.call("cuptiActivityFlushAll", ctypes.c_uint32(cupti.FLUSH_FORCED))
        for kind in (*OPERATION_KINDS, *((cupti.KIND_SYNCHRONIZATION,) if self.all_calls else ())):
            self.cupti.library.cuptiActivityDisable(ctypes.c_int(kind))
        return self.cupti.dropped_records(), taken_over

    def in_forked_child(self, folder: str) -> GpuTrace | None:
        """The same in a child that was forked, with a file of its own; None where CUPTI was started before.

        There it lacks its threads, and a flush would wait for them for ever. What is left of it gets no buffers, of
        which nobody would take the records.
        """
        if self.has_begun:
            self.spool.pool.close()
            return None
        trace = replace(self, spool=GpuSpool(self.spool.pool, folder))
        trace.spool.start()
        return trace

    def _was_taken_over(self) -> bool:
        """Whether a call that must leave a record leaves none: then another user of CUPTI got the records."""
        if self.canary is None or not cuda_was_initialised(self.driver):
            return False
        before = self.spool.total_bytes()
        self.driver.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))
        self.cupti.call("cuptiActivityFlushAll", ctypes.c_uint32(cupti.FLUSH_FORCED))
        return self.spool.total_bytes() == before


def _until_stalled(function: Callable[[], tuple[int, bool]], progress: Callable[[], int]) -> tuple[int, bool]:
    """The answer of a function that calls CUPTI, which runs in another thread, for such a call may never return."""
    answers: list[tuple[int, bool]] = []
    errors: list[Exception] = []
    ended = _thread.allocate_lock()
    ended.acquire()

    def call() -> None:
        try:
            answers.append(function())
        except Exception as error:
            errors.append(error)
        finally:
            ended.release()

    _thread.start_new_thread(call, ())
    seen = progress()
    while not ended.acquire(timeout=STALLED_S):
        before, seen = seen, progress()
        if seen == before:
            raise StalledError(f"CUPTI did not return its buffers within {STALLED_S:.0f} s")
    if errors:
        raise errors[0]
    return answers[0]


def _exit_without_libraries() -> None:
    """Have this process end with the status it will have been given, but without the exit functions of libraries.

    What was registered last runs first: C's files are closed, then the process ends.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # not in every C library
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


def start_gpu_trace(folder: str) -> tuple[GpuTrace | None, str | None]:
    """The running trace, or None and the reason why the GPU is not traced, one sentence.

    Args:
        folder: for records that do not fit into memory.
    """
    tool = _other_tool()
    if tool is not None:
        return None, f"another tool traces CUDA in this process ({tool} is set), and CUPTI admits one"
    if not native.supported():
        return None, f"the embedded tracer has no CUPTI callbacks for {os.uname().machine}; use nsys"
    driver = cupti.driver_library()
    if driver is None:
        return None, "the CUDA driver (libcuda.so.1) is not installed"
    try:
        major = cupti.driver_cuda_version(driver) // 1000
        reason = f"there is no libcupti.so.{major}; pip install 'nvidia-cuda-cupti=={major}.*'"
        for path in cupti.find_libraries(major):
            library = Cupti(path)
            if is_known(library.version):
                return _start_with(library, driver, folder)
            reason = (
                f"the record layouts of {path} (CUPTI {library.version}) are not known to this version of perfharness; "
                "update it, or use nsys"
            )
    except CuptiError as error:
        return None, failure(error)
    except (OSError, AttributeError) as error:
        return None, f"CUPTI could not be started: {error}"
    return None, reason


def failure(error: CuptiError) -> str:
    """Why the GPU is not traced, where CUPTI could not be started."""
    if error.code == cupti.ERROR_MULTIPLE_SUBSCRIBERS:
        return "another CUPTI subscriber (nsys, ncu or a profiler) is active in this process"
    return f"CUPTI could not be started: {error}"


def _other_tool() -> str | None:
    for name in OTHER_TOOLS:
        value = os.environ.get(name, "")
        is_ours = injection.FILE_PREFIX in value or (name == NVTX_INJECTION and "libcupti.so" in value)
        if value and not is_ours:
            return name
    return None


def _start_with(library: Cupti, driver: ctypes.CDLL, folder: str) -> tuple[GpuTrace | None, str | None]:
    pool = native.BufferPool(BUFFER_BYTES, _pool_bytes() // BUFFER_BYTES, ADDRESSES // BUFFER_BYTES)
    trace = GpuTrace(library, GpuSpool(pool, folder), driver, all_calls=os.environ.get(environment.EXPLAIN) == "1")
    steps = _steps(trace)
    if injection.supported() and not cuda_was_initialised(driver):
        with contextlib.suppress(OSError):  # as where no file of the folder may be run
            trace.injection = injection.Injection(steps, library, folder)
    if trace.injection is None:
        injection.make_calls(steps, library)
        ctypes.CDLL(None).setenv(NVTX_INJECTION.encode(), str(library.path).encode(), 1)
    trace.spool.start()
    return trace, None


def _steps(trace: GpuTrace) -> list[Step]:
    """The calls that have CUPTI record into the trace's buffers."""
    pool = trace.spool.pool
    size, flag = native.keep(ctypes.c_size_t(1)), native.keep(ctypes.c_uint8(1))
    clock = pool.clock_address
    steps = [
        # CUPTI has one subscriber; this one's function is never called, for no callback is enabled.
        Step("cuptiSubscribe", (native.keep(ctypes.c_void_p()), clock, 0)),
        Step("cuptiActivitySetAttribute", (cupti.ATTRIBUTE_ZEROED_OUT_BUFFER, size, flag)),
        Step("cuptiSetThreadIdType", (cupti.THREAD_ID_SYSTEM,)),
        Step("cuptiActivityRegisterTimestampCallback", (clock,)),
        Step("cuptiActivityRegisterCallbacks", (pool.request_address, pool.complete_address)),
        *(Step(ENABLE, (kind,)) for kind in OPERATION_KINDS),
    ]
    if trace.all_calls:  # the calls tell most of it
        steps.append(Step(ENABLE, (cupti.KIND_SYNCHRONIZATION,), otherwise=len(steps) + 1))
    for domain, kind, enable in (
        (cupti.DOMAIN_RUNTIME, cupti.KIND_RUNTIME, "cuptiActivityEnableRuntimeApi"),
        (cupti.DOMAIN_DRIVER, cupti.KIND_DRIVER, "cuptiActivityEnableDriverApi"),
    ):
        steps += _function_steps(trace, domain, kind, enable, len(steps))
    return [*steps, Step(ENABLE, (cupti.KIND_MARKER,)), Step(ENABLE, (cupti.KIND_MARKER_DATA,))]


def _function_steps(trace: GpuTrace, domain: int, kind: int, enable: str, first: int) -> list[Step]:
    """API records of the functions that start GPU work, or of all but inquiries; of all where CUPTI cannot choose.

    In the explaining pass, of all too where it does not know one of a thousand by its number.
    """
    functions = trace.cupti.functions(domain)
    wanted = {cbid for cbid, name in functions.items() if _is_wanted(name, all_calls=trace.all_calls)}
    if domain == cupti.DOMAIN_DRIVER:
        trace.canary = next((cbid for cbid, name in functions.items() if name == "cuDriverGetVersion"), None)
        wanted |= {trace.canary} if trace.canary is not None else set()
    chosen = trace.cupti.has(enable)
    named = wanted if chosen and not trace.all_calls else set(functions)
    trace.api_names |= {(domain, cbid): name for cbid, name in functions.items() if cbid in named}
    if not chosen or not wanted:
        return [] if chosen else [Step(ENABLE, (kind,))]
    of_all = first + len(wanted)
    otherwise = of_all if trace.all_calls else None
    steps = [Step(enable, (cbid, 1), otherwise=otherwise) for cbid in sorted(wanted)]
    if not trace.all_calls:
        return steps
    return [*steps[:-1], replace(steps[-1], then=of_all + 1), Step(ENABLE, (kind,))]


def _is_wanted(function: str, *, all_calls: bool) -> bool:
    return not cupti.is_inquiry(function) if all_calls else cupti.starts_gpu_work(function)


def _pool_bytes() -> int:
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as stream:  # noqa: PTH123 - start-up time
                text = stream.read().strip()
        except OSError:
            continue
        if text.isdigit():
            available = min(available, int(text))
    return max(MIN_POOL_BYTES, min(MAX_POOL_BYTES, available // POOL_SHARE_OF_MEMORY))


def cuda_was_used() -> bool:
    """Whether this process has loaded and initialised the driver: otherwise there was no GPU work."""
    driver = cupti.driver_library()
    return driver is not None and cuda_was_initialised(driver)


def cuda_was_initialised(driver: ctypes.CDLL) -> bool:
    """Whether anything in this process has called cuInit: without it there is no context and no GPU work."""
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) == CUDA_SUCCESS
