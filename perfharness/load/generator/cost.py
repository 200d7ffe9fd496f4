"""What the generator itself costs: CPU time of a phase by what took it.

Threads are told apart by the kernel's counts of each. What a worker's thread takes inside of its target's call is the
target's; so are threads that are not the generator's: those of the target, and of what traces it.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time_ns

from perfharness.load.generator.workers import AnyWorkers

TASKS = Path("/proc/self/task")
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
SAME_LOOP = "generator and target are tasks of one event loop, in one thread"
NO_COUNTS = "the kernel does not count the CPU time of each thread here, or a worker never came back"


def thread_cpu_ns(native_id: int | None) -> int | None:
    """CPU time of a thread of this process; None: it is gone, or the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int((TASKS / str(native_id) / "schedstat").read_text().split()[0])
    with suppress(OSError, ValueError, IndexError):
        fields = (TASKS / str(native_id) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_NS
    return None


@dataclass
class PhaseCost:
    """CPU time from now on.

    Args:
        is_alone: no target is in this process.
    """

    workers: AnyWorkers
    is_alone: bool
    _begin: tuple[int, int | None, int | None] = field(init=False)

    def __post_init__(self) -> None:
        self._begin = self._now()

    def _now(self) -> tuple[int, int | None, int | None]:
        """Of the process; of the generator's threads, but for that which counts; of their targets' calls in it."""
        if self.is_alone:
            return process_time_ns(), None, None
        threads = self.workers.native_ids
        main = thread_cpu_ns(threading.main_thread().native_id)
        if threads is None or main is None:
            return process_time_ns(), None, None
        each = [thread_cpu_ns(one) for one in threads]
        known = [one for one in each if one is not None]
        return process_time_ns(), main + sum(known) if len(known) == len(each) else None, self.workers.in_target_ns

    def facts(self, counting_ns: int) -> dict[str, int | str | None]:
        """Since the begin, for a file; `counting_ns`: of the thread that counts windows."""
        process, sending, inside = (
            None if now is None or before is None else now - before
            for now, before in zip(self._now(), self._begin, strict=True)
        )
        assert process is not None
        facts: dict[str, int | str | None] = {"process_ns": process, "counting_ns": counting_ns}
        if self.is_alone:
            return {**facts, "sending_ns": process - counting_ns, "target_ns": None, "reason": None}
        if sending is None or inside is None:
            reason = SAME_LOOP if self.workers.in_target_ns is None else NO_COUNTS
            return {**facts, "sending_ns": None, "target_ns": None, "reason": reason}
        sending -= inside
        return {**facts, "sending_ns": sending, "target_ns": max(process - sending - counting_ns, 0), "reason": None}
