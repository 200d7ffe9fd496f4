"""Calls of the operating system in which a thread waits, where nsys recorded them (`--trace osrt`)."""

from __future__ import annotations

import re

import numpy as np

from perfharness.model.trace import OsCalls, OsWaitKind
from perfharness.trace.names import NameTable
from perfharness.trace.source import MISSING, TraceSource

TABLE_OSRT = "OSRT_API"

PATTERNS = (
    (OsWaitKind.LOCK, r"pthread_(cond_\w*wait|(mutex|spin)_\w*lock$|rwlock_\w*(rd|wr)lock|\w*join\w*|barrier_wait)"),
    (OsWaitKind.LOCK, r"sem_\w*wait|futex"),
    (OsWaitKind.SLEEP, r"(u|nano|clock_nano)?sleep$|pause$|sigwait|sigtimedwait"),
    (OsWaitKind.PROCESS, r"wait(pid|id|3|4)?$"),
    (OsWaitKind.FILE, r"p?(read|write)v?(64)?$|f(read|write|gets|sync|datasync)|p?poll$|p?select$|epoll_p?wait"),
    (OsWaitKind.FILE, r"(recv|send)\w*$|accept4?$|connect$|f?open(at)?(64)?$|flock$"),
)
"""Kind and the names of its functions, as nsys's documentation lists them. `ioctl` is CUDA's own, and not looked at."""


def read_os_calls(source: TraceSource, names: NameTable) -> OsCalls | None:
    """The waiting calls of all threads; None where the operating system's calls were not recorded."""
    if not source.has(TABLE_OSRT):
        return None
    rows = source.integers(TABLE_OSRT, ["start", "end", "globalTid", "nameId"])
    name = names.codes_of_ids(rows["nameId"])
    compiled = [(kind, re.compile(pattern)) for kind, pattern in PATTERNS]
    kind_of = np.full(len(names.values) + 1, -1, dtype=np.int64)
    for code in np.unique(name[name >= 0]).tolist():
        text = names.values[code]
        kind_of[code] = next((kind for kind, pattern in compiled if pattern.match(text)), -1)
    kind = kind_of[name]
    whole = (rows["start"] != MISSING) & (rows["end"] >= rows["start"]) & (rows["globalTid"] != MISSING)
    keep = whole & (kind >= 0)
    return OsCalls(rows["start"][keep], rows["end"][keep], rows["globalTid"][keep], kind[keep], name[keep])
