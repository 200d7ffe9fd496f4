"""What a thread does: one vocabulary for the diagnosis, the slowest batches and ranks."""

from __future__ import annotations

from enum import Enum


class Activity(str, Enum):
    """What a thread does in a stretch of time."""

    COMPUTE = "compute"
    NO_CPU = "no-cpu"
    """Ready to run, and no CPU is free."""
    GIL = "gil"
    """Waits for the interpreter lock."""
    LOCK = "lock"
    """Waits for another thread: a lock, a condition, a queue, a join."""
    SLEEP = "sleep"
    FILE = "file"
    NETWORK = "network"
    PROCESS = "process"
    """Waits for another process: its end, a pipe, a local socket."""
    GC = "gc"
    COMPILE = "compile"
    """Compiles code, loads modules of GPU code, creates a context."""
    LAUNCH = "launch"
    """In a CUDA call that starts GPU work."""
    COPY = "copy"
    """In a CUDA call that copies."""
    SYNC = "sync"
    """In a CUDA call that waits for the GPU."""
    ALLOC = "alloc"
    """In a CUDA call that allocates or frees memory."""
    OTHER = "other"
    """In another CUDA call, or blocked in something else."""
    UNKNOWN = "unknown"
    """Not recorded."""


ACTIVITIES = tuple(Activity)
"""An activity's code in columns is its place here."""
CODES = {activity: code for code, activity in enumerate(ACTIVITIES)}
