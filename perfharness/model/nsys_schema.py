"""Names and numbers of the nsys sqlite schema that perfharness reads and its embedded tracer writes.

Facts read off exports of nsys 2022.4 to 2025.3 (schema versions 2.x and 3.x). Data only, no SQL.
"""

from __future__ import annotations

TRACE_NAME = "trace.sqlite"  # journals next to a file of another name may belong to another trace


def child_trace_name(pid: int, start_ticks: int | None) -> str:
    """Name of the trace of a process that a launched one started, until it has a folder of its own.

    Pids come again; a pid with its start time (`boot.ranks.start_ticks`) does not.
    """
    return f"trace_{pid}.sqlite" if start_ticks is None else f"trace_{pid}_{start_ticks}.sqlite"


NVTX_CATEGORY_EVENT = 33
NVTX_MARK_EVENT = 34
NVTX_PUSH_POP_RANGE = 59
NVTX_START_END_RANGE = 60
NVTXT_PUSH_POP_RANGE = 70
NVTXT_START_END_RANGE = 71
NVTX_DOMAIN_CREATE = 75

PUSH_POP_EVENTS = (NVTX_PUSH_POP_RANGE, NVTXT_PUSH_POP_RANGE)
START_END_EVENTS = (NVTX_START_END_RANGE, NVTXT_START_END_RANGE)

EVENT_CLASS_RUNTIME = 0
EVENT_CLASS_DRIVER = 1

PID_SHIFT = 24
ID_MASK = 0xFFFFFF
"""globalTid = … | pid << 24 | tid; globalPid is the same with tid 0. The bits above 48 are hardware and VM."""


def global_tid(pid: int, tid: int) -> int:
    """Serialised id of a thread, as nsys writes it for VM 1 (bit 48)."""
    return 1 << 48 | (pid & ID_MASK) << PID_SHIFT | tid & ID_MASK


TABLE_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
TABLE_MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
TABLE_MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
TABLE_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
TABLE_SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
TABLE_API = "CUPTI_ACTIVITY_KIND_RUNTIME"
TABLE_NVTX = "NVTX_EVENTS"
TABLE_STRINGS = "StringIds"

TABLE_PERFHARNESS = "PERFHARNESS_META"
"""`name TEXT, value TEXT`; only the embedded tracer writes it. Names below; a name may repeat for DIAGNOSTIC."""
META_TRACER_VERSION = "tracer_version"
META_CUDA_TRACED = "cuda_traced"  # "yes" | "no"
META_CUDA_UNTRACED_REASON = "cuda_untraced_reason"  # one sentence, where cuda_traced is "no"
META_CUDA_USED = "cuda_used"  # "yes" | "no": was libcuda loaded in the process when it ended
META_GPU_PRESENT = "gpu_present"  # "yes" | "no": has the machine an NVIDIA GPU
META_DROPPED_RECORDS = "dropped_records"  # what CUPTI says it dropped, decimal
META_ALL_CALLS = "all_calls"  # "yes" | "no": are the calls of all functions in it, but for mere inquiries, as by nsys
META_CUPTI_VERSION = "cupti_version"
META_CLOCK_ORIGIN_NS = "clock_origin_ns"  # perf_counter_ns at trace time 0
META_LOST_EVENTS = "lost_events"  # NVTX events of a process for which the disk had no room, decimal; once a process
META_ENDLESS = "endless_ranges"  # JSON, by "DOMAIN NAME": ranges of a library without an end, which are left out
META_MERGED_LOG = "merged_log"  # name of the log of a process whose events are in the trace; once a process
META_PROCESS = "process"  # JSON of `range_log.LogFacts`: whose log it was; once a log
META_DIAGNOSTIC = "diagnostic"  # a sentence for the user

# Why GPU work is not in the trace.
ONLY_RANGES = "only ranges were recorded (--tracer ranges)"
CUPTI_FORKED = "CUPTI was in use before the process was forked, and does not work in the child"
CUPTI_NOT_STARTED = "CUDA was used by a library that the embedded tracer does not know"
CUPTI_STALLED = "CUPTI did not return its records at the end of the process"
