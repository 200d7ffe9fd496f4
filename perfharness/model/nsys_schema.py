"""Names and numbers of the nsys sqlite schema, as read by perfharness and written by its embedded tracer.

Taken from exports of nsys 2022.4 to 2025.3 (schema versions 2.x and 3.x). Data only, no SQL.
"""

from __future__ import annotations

TRACE_NAME = "trace.sqlite"  # journals next to other names may belong to another trace


def child_trace_name(pid: int, start_ticks: int | None) -> str:
    """File name for the trace of a launched process's child, until it has its own folder.

    Contains the start time (`boot.ranks.start_ticks`), because pids are reused.
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
"""globalTid = … | pid << 24 | tid; globalPid has tid 0. Bits above 48 are hardware and VM."""


def global_tid(pid: int, tid: int) -> int:
    """Serialised thread id, as nsys writes it for VM 1 (bit 48)."""
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
"""`name TEXT, value TEXT`, only in traces of the embedded tracer. Names below; DIAGNOSTIC may repeat."""
META_TRACER_VERSION = "tracer_version"
META_CUDA_TRACED = "cuda_traced"  # "yes" | "no"
META_CUDA_UNTRACED_REASON = "cuda_untraced_reason"  # one sentence if cuda_traced is "no"
META_CUDA_USED = "cuda_used"  # "yes" | "no": libcuda was loaded in the process at its end
META_GPU_PRESENT = "gpu_present"  # "yes" | "no": the machine has an NVIDIA GPU
META_DROPPED_RECORDS = "dropped_records"  # number reported by CUPTI, decimal
META_ALL_CALLS = "all_calls"  # "yes" | "no": has calls of all functions except queries, as by nsys
META_CUPTI_VERSION = "cupti_version"
META_CLOCK_ORIGIN_NS = "clock_origin_ns"  # perf_counter_ns at trace time 0
META_LOST_EVENTS = "lost_events"  # NVTX events lost to a full disk, decimal; once per process
META_ENDLESS = "endless_ranges"  # JSON by "DOMAIN NAME": ranges of a library without an end, left out
META_MERGED_LOG = "merged_log"  # log name of a process whose events are in the trace; once per process
META_PROCESS = "process"  # JSON of `range_log.LogFacts`: the process of a log; once per log
META_DIAGNOSTIC = "diagnostic"  # a sentence for the user

# Reasons for missing GPU work.
ONLY_RANGES = "only ranges were recorded (--tracer ranges)"
CUPTI_FORKED = "CUPTI was in use before the process was forked, and does not work in the child"
CUPTI_NOT_STARTED = "CUDA was used by a library that the embedded tracer does not support"
CUPTI_STALLED = "CUPTI did not return its records at the end of the process"
