"""How long the calling thread has run, and has waited for a CPU: read without letting go of the interpreter lock.

`os.read` and the like let go of it, and where other threads compute they get it back after 5 ms and more each time: of
a stage of three such threads, a reading every 5 ms was 40 % of the time.
"""

from __future__ import annotations

from ctypes import PyDLL, create_string_buffer  # a `CDLL` lets go of the lock, a `PyDLL` does not
from os import O_CLOEXEC, O_RDONLY
from time import thread_time_ns

SCHEDULE = b"/proc/thread-self/schedstat"
LENGTH = 64

_c = PyDLL(None)


def thread_times_ns() -> tuple[int, int] | None:
    """CPU time, and time ready to run without a CPU; None where the latter is not counted."""
    file = _c.open(SCHEDULE, O_RDONLY | O_CLOEXEC)
    if file < 0:
        return None
    found = create_string_buffer(LENGTH)
    _c.read(file, found, LENGTH - 1)
    _c.close(file)
    try:  # the first number is the CPU time too, but only up to the last timer tick
        return thread_time_ns(), int(found.value.split()[1])
    except (ValueError, IndexError):
        return None
