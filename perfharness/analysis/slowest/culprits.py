"""Who had what a thread waited for, and which line of code it was at."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.host_samples.host_profile import lines_during
from perfharness.analysis.slowest.parts import host_events
from perfharness.analysis.slowest.results import Line, Reason
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.analysis.timeline.grouping import distinct
from perfharness.model.host_samples import HostEventKind
from perfharness.model.result import path_text
from perfharness.model.trace import PROCESS_MASK, Int64, tid_of

NS_PER_MS = 1e6
MOST_OF_IT = 0.5
"""Of a wait: what another thread did for less of it is not named."""
WAITS = (Reason.LOCK, Reason.INTERPRETER_LOCK, Reason.OFF_CPU, Reason.CROWDED)


class Culprits:
    """Of one trace."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def meanwhile(self, reason: Reason, thread: int, start_ns: Int64, end_ns: Int64) -> str | None:
        """What another thread of the process did while this one waited so, for most of the time; None: not known."""
        if reason not in WAITS or not len(start_ns):
            return None
        waits = BusyLine(start_ns, end_ns)
        holder = self._lock_holder(thread, waits) if reason is Reason.INTERPRETER_LOCK else None
        stage = self._stage_of_others(thread, waits, holder)
        if holder is not None:
            return f"held by thread {_tid(holder)}" + ("" if stage is None else f" in {stage[1]}")
        return None if stage is None else f"meanwhile thread {_tid(stage[0])} was in {stage[1]}"

    def in_service_meanwhile(self, row: int, queue_ns: float) -> str | None:
        """Which batches of the process were in service while the request of this one waited for that long before it
        began; None: none was.
        """
        stages = self._analysis.stages
        stop = int(stages.start_ns[row])
        begin = stop - round(queue_ns)
        others = self._analysis.stage_times.outermost_batches()
        others = others[(others != row) & (stages.start_ns[others] < stop) & (stages.end_ns[others] > begin)]
        if not len(others):
            return None
        shared = np.minimum(stages.end_ns[others], stop) - np.maximum(stages.start_ns[others], begin)
        longest, most_of_it = int(np.argmax(shared)), int((shared >= MOST_OF_IT * queue_ns).sum())
        if not most_of_it:
            return (
                f"meanwhile {len(others)} requests were in service"
                if len(others) > 1
                else "meanwhile 1 request was in service"
            )
        ms = shared[longest] / NS_PER_MS
        name = f"request {stages.batch_index[others[longest]]} was in service, for {ms:.3f} ms of it"
        return f"meanwhile {name}" if most_of_it == 1 else f"meanwhile {most_of_it} at a time; {name}"

    def line(self, thread: int, start_ns: Int64, end_ns: Int64) -> Line | None:
        """The line that the thread was at in most samples of these stretches; None: there are none."""
        probe = self._analysis.host_probe
        if probe is None or not len(start_ns):
            return None
        lines = lines_during(probe.samples, thread, start_ns, end_ns, own_code=True)
        return None if not lines else Line(function=lines[0].function, file=lines[0].file, line=lines[0].line)

    def _lock_holder(self, thread: int, waits: BusyLine) -> int | None:
        """The thread that held the interpreter lock for most of it."""
        held: dict[int, float] = {}
        for events in host_events(self._analysis, HostEventKind.GIL_HELD):
            at = np.flatnonzero((events.kind == HostEventKind.GIL_HELD) & (events.thread != thread))
            length = waits.within(events.start_ns[at], events.end_ns[at])
            for one in distinct(events.thread[at]):
                held[one] = held.get(one, 0.0) + float(length[events.thread[at] == one].sum())
        probe = self._analysis.host_probe
        if not held and probe is not None:
            samples = probe.samples
            at = np.flatnonzero((samples.thread == thread) & (samples.gil_holder != 0) & (samples.gil_holder != thread))
            length = waits.within(samples.time_ns[at] - samples.length_ns[at], samples.time_ns[at])
            for one in distinct(samples.gil_holder[at]):
                held[one] = float(length[samples.gil_holder[at] == one].sum())
        best = max(held, key=lambda one: held[one], default=None)
        return best if best is not None and held[best] >= MOST_OF_IT * waits.length else None

    def _stage_of_others(self, thread: int, waits: BusyLine, holder: int | None) -> tuple[int, str] | None:
        """The innermost stage of another thread (or of the holder) that was open for most of it."""
        stages = self._analysis.stages
        begin, stop = int(waits.start.min()), int(waits.end.max())
        other = (stages.thread != thread) & (stages.thread & PROCESS_MASK == thread & PROCESS_MASK)
        other &= (stages.start_ns < stop) & (stages.end_ns > begin)
        if holder is not None:
            other &= stages.thread == holder
        at = np.flatnonzero(other)
        open_ns: dict[tuple[int, int], float] = {}
        length = waits.within(stages.start_ns[at], stages.end_ns[at])
        pairs = zip(stages.thread[at].tolist(), stages.paths.code[at].tolist(), length.tolist(), strict=True)
        for of_thread, path, took in pairs:
            open_ns[of_thread, path] = open_ns.get((of_thread, path), 0.0) + took
        enough = [one for one, took in open_ns.items() if took >= MOST_OF_IT * waits.length]
        if not enough:
            return None
        of_thread, path = max(enough, key=lambda one: (len(stages.paths.names(one[1])), open_ns[one]))
        return of_thread, path_text(stages.paths.names(path))


def _tid(thread: int) -> int:
    return int(tid_of(np.asarray([thread]))[0])
