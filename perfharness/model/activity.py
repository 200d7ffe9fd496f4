"""Activities of threads: a common vocabulary for the diagnosis, the slowest batches and ranks."""

from __future__ import annotations

from enum import Enum


class Activity(str, Enum):
    """What a thread does during some time."""

    COMPUTE = "compute"
    NO_CPU = "no-cpu"  # ready to run, but no CPU is free
    GIL = "gil"  # waits for the interpreter lock
    LOCK = "lock"  # waits for another thread: a lock, a condition, a queue, a join
    SLEEP = "sleep"
    FILE = "file"
    NETWORK = "network"
    PROCESS = "process"  # waits for another process: its end, a pipe, a local socket
    GC = "gc"
    COMPILE = "compile"  # compiles code, loads GPU modules, creates a context
    LAUNCH = "launch"  # in a CUDA call that starts GPU work
    COPY = "copy"  # in a CUDA call that copies
    SYNC = "sync"  # in a CUDA call that waits for the GPU
    ALLOC = "alloc"  # in a CUDA call that allocates or frees memory
    OTHER = "other"  # in another CUDA call, or blocked in something else
    UNKNOWN = "unknown"  # not recorded


DOING = {
    Activity.COMPUTE: "computing",
    Activity.NO_CPU: "waiting for a CPU",
    Activity.GIL: "waiting for the interpreter lock",
    Activity.LOCK: "waiting for another thread",
    Activity.SLEEP: "sleeping",
    Activity.FILE: "waiting for a file",
    Activity.NETWORK: "waiting for the network",
    Activity.PROCESS: "waiting for another process",
    Activity.GC: "collecting garbage",
    Activity.COMPILE: "compiling or loading code",
    Activity.LAUNCH: "launching GPU work",
    Activity.COPY: "copying in CUDA calls",
    Activity.SYNC: "waiting for the GPU",
    Activity.ALLOC: "allocating or freeing GPU memory",
    Activity.OTHER: "in other calls or waits",
    Activity.UNKNOWN: "not recorded",
}
"""Each activity as a phrase for sentences."""

ACTIVITIES = tuple(Activity)  # an activity's code is its index
CODES = {activity: code for code, activity in enumerate(ACTIVITIES)}
