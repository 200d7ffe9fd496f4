"""What one stage costs the whole: the trace played again with that stage taking no time.

The model: each host thread does its work in order; a GPU operation begins when its call has reached the GPU and
everything before it on its stream has ended; a blocking call returns when what it waited for has ended. Durations and
latencies are those of the trace. A stage that takes no time leaves no host time and no operations behind; a wait in it
for other stages' work stays. Where waits are not in the trace, the loop is played twice: as if the host had waited only
for what it copied from the GPU, and as if it had wherever it can have; what both agree on is known. Limits of the
model: docs/guides/diagnosis.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfharness.analysis.diagnosis.host.calls import TO_HOST
from perfharness.analysis.diagnosis.workload import NS_PER_MS, Workload
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.diagnosis import StageCost
from perfharness.model.trace import Bool, Int64

MAX_EVENTS = 20_000
"""Launches and waits that are played: enough for many batches of most pipelines, in a fraction of a second a stage."""
MAX_ERROR = 0.10
"""Of the measured time. A model that misses the run itself by more predicts nothing about another run."""


SEVERAL_THREADS = "the loop's batches run on several threads, whose waiting for each other is not in a trace"


@dataclass(frozen=True)
class Window:
    """The stretch of one loop that is played: batches that follow each other, and the events of their thread in it.

    Events are in order of time. `is_wait` marks blocking calls, others are launches; a copy that blocks is a launch
    followed by a wait. `own_start` and `own_end` are the operation's times (launches only), `stream` its stream, or the
    one that is waited for (-1: all of `gpu`, and of all GPUs where that is -1 too).
    """

    thread: int
    start_ns: int
    end_ns: int
    batches: int
    call_start: Int64
    call_end: Int64
    is_wait: Bool
    own_start: Int64
    own_end: Int64
    stream: Int64
    gpu: Int64
    if_waiting: Window | None = None
    """The same with every wait that may be hidden; None where waits are in the trace."""

    @cached_property
    def full_replay_ns(self) -> int:
        """Length of the loop in a replay with no stage removed."""
        nothing = np.empty(0, dtype=np.int64)
        return _play(self, BusyLine(nothing, nothing))

    @cached_property
    def steps(self) -> list[_Step]:
        """What each event does in any replay: how long it takes by itself, and which streams it waits for.

        How long a call or operation waited in the trace does not depend on what is taken away.
        """
        old_end: dict[int, int] = {}
        gpu_of: dict[int, int] = {}
        steps: list[_Step] = []
        queued: list[int] = []
        columns = self.call_start, self.call_end, self.is_wait, self.own_start, self.own_end, self.stream, self.gpu
        for call_start, call_end, is_wait, own_start, own_end, stream, gpu in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            if is_wait:
                awaited = [
                    s
                    for s, ended in old_end.items()
                    if ended <= call_end + SLACK_NS and stream in (-1, s) and gpu in (-1, gpu_of[s])
                ]
                was = max((old_end[s] for s in awaited), default=0)
                steps.append((call_end - max(call_start, min(was, call_end)), 0, awaited, stream))
                continue
            latency, before = max(own_start - call_start, 0), old_end.get(stream)
            is_queued = before is not None and before > call_start
            if is_queued:
                queued.append(len(steps))
            steps.append((latency, max(own_start - before, 0) if before is not None and is_queued else 0, None, stream))
            old_end[stream] = own_end if before is None else max(before, own_end)
            gpu_of[stream] = gpu
        waited = set(queued)
        alone = [step[0] for number, step in enumerate(steps) if step[2] is None and number not in waited]
        usual = int(np.median(alone)) if alone else 0
        for number in queued:  # what is usual, but never more than measured
            latency, gap, _, stream = steps[number]
            steps[number] = (min(usual, latency), gap, None, stream)
        return steps


_Step = tuple[int, int, list[int] | None, int]
"""Latency of a launch, or what a wait takes by itself; how long after the operation before it a queued one begins; the
streams that a wait is for (None: a launch); the stream."""


def find_window(workload: Workload, rows: Int64) -> Window | str:
    """The part of a loop that can be played, or why none can.

    Args:
        workload: the trace.
        rows: batches of one loop that are kept, in order of start.
    """
    if not len(rows):
        return "no batch is left without the warm-up"
    stages = workload.stages
    thread = stages.thread[rows]
    if (thread != thread[0]).any():
        return SEVERAL_THREADS
    start, end = stages.start_ns[rows], stages.end_ns[rows]
    if (start[1:] < end[:-1]).any():
        return "the loop's batches overlap on their thread"
    calls, lines = workload.calls, workload.launch_lines
    columns = np.repeat(thread[:1], len(end)), np.repeat(start[:1], len(end)), end
    first_launch, last_launch = lines.slices(*columns)
    first_call, last_call = calls.lines.slices(*columns)
    events = last_launch - first_launch + calls.waits_before[last_call] - calls.waits_before[first_call]
    count = int(np.searchsorted(events, MAX_EVENTS, side="right"))
    if not count:
        return f"one batch has {int(events[0])} launches and waits, more than the {MAX_EVENTS} that are played"
    at = count - 1
    launch = lines.order[first_launch[at] : last_launch[at]]
    wait = np.arange(first_call[at], last_call[at])
    wait = wait[calls.is_blocking[wait]]
    api, operations = workload.trace.api, workload.trace.operations
    operation, call = workload.launches.operation[launch], workload.launches.call[launch]
    nothing = np.full(len(wait), -1, dtype=np.int64)
    call_start = np.r_[api.start_ns[call], calls.start_ns[wait]]
    own_start = np.r_[operations.start_ns[operation], nothing]
    is_wait = np.r_[np.zeros(len(launch), dtype=np.bool_), np.ones(len(wait), dtype=np.bool_)]
    order = np.lexsort((own_start, is_wait, call_start))
    window = Window(
        int(thread[0]), int(start[0]), int(end[at]), count,
        call_start=call_start[order],
        call_end=np.r_[api.end_ns[call], calls.end_ns[wait]][order],
        is_wait=is_wait[order],
        own_start=own_start[order],
        own_end=np.r_[operations.end_ns[operation], nothing][order],
        stream=np.r_[workload.gpus.stream_of[operation], calls.scope[wait]][order],
        gpu=np.r_[workload.gpus.of[operation], calls.scope_gpu[wait]][order],
    )  # fmt: skip
    if workload.api_is_complete:
        return window
    reads = np.r_[np.isin(workload.details.copy_kind[operation], TO_HOST), np.zeros(len(wait), dtype=np.bool_)][order]
    return replace(_with_hidden_waits(window, reads), if_waiting=_with_hidden_waits(window, np.ones_like(reads)))


def _with_hidden_waits(window: Window, where: Bool) -> Window:
    """With waits right after some events, where all work launched until then ended before the next event."""
    done = np.maximum.accumulate(np.where(window.is_wait, window.call_end, window.own_end))
    returned = np.maximum.accumulate(window.call_end)
    at = np.flatnonzero(where & (returned < done) & (done <= np.r_[window.call_start[1:], window.end_ns]))
    added = np.full(len(at), -1, dtype=np.int64)
    order = np.argsort(np.r_[np.arange(len(done)), at], kind="stable")
    return replace(
        window,
        call_start=np.r_[window.call_start, returned[at]][order],
        call_end=np.r_[window.call_end, done[at]][order],
        is_wait=np.r_[window.is_wait, np.ones(len(at), dtype=np.bool_)][order],
        own_start=np.r_[window.own_start, added][order],
        own_end=np.r_[window.own_end, added][order],
        stream=np.r_[window.stream, added][order],
        gpu=np.r_[window.gpu, added][order],
    )


def stage_cost(window: Window | str, start_ns: Int64, end_ns: Int64) -> StageCost:
    """What the stage whose ranges these are costs the loop of the window, per batch."""
    if isinstance(window, str):
        return StageCost(None, None, None, window)
    measured = max(window.end_ns, int(window.own_end.max(initial=window.end_ns))) - window.start_ns
    played = window.full_replay_ns
    if measured <= 0 or abs(played - measured) > MAX_ERROR * measured:
        reason = (
            f"the replay of the loop as it was takes {played / NS_PER_MS:.3f} ms instead of the measured "
            f"{measured / NS_PER_MS:.3f} ms, so it says nothing about another run"
        )
        return StageCost(None, None, None, reason)
    inside = (end_ns > window.start_ns) & (start_ns < window.end_ns)
    removed = BusyLine(start_ns[inside], end_ns[inside])
    windows = [one for one in (window, window.if_waiting) if one is not None]
    # The model's own error cancels in the ratio.
    shares = [max(0.0, 1 - _play(one, removed) / one.full_replay_ns) for one in windows]
    least, most = min(shares), max(shares)
    if most - least > MAX_ERROR:
        reason = (
            f"between {100 * least:.0f} and {100 * most:.0f} %: where the host waits for the GPU is not recorded "
            "(--explain and nsys do)"
        )
        return StageCost(None, None, None, reason)
    share = (least + most) / 2
    per_batch = measured / window.batches / NS_PER_MS
    return StageCost(per_batch, per_batch * (1 - share), share)


def _play(window: Window, removed: BusyLine) -> int:
    """Length of the loop when the host spends no time, and starts nothing, inside of `removed`."""
    origin = np.asarray([window.start_ns])

    def host_time(moments: Int64) -> Int64:
        """Of each moment since the loop began, without what is removed."""
        return np.asarray(moments - window.start_ns - (removed.until(moments) - removed.until(origin)))

    host_at = host_time(window.call_start)
    after = window.call_end - window.call_start - removed.within(window.call_start, window.call_end)
    is_removed = removed.within(window.call_start, window.call_start + 1) > 0
    stop = max(int(host_time(np.asarray([window.end_ns]))[0]), 0)
    delay = 0  # how much later (or, below 0, earlier) than in the trace's own host time a moment is
    new_end: dict[int, int] = {}
    length = window.own_end - window.own_start
    columns = (host_at, after, is_removed, length)
    for (alone, gap, awaited, stream), host, call_left, gone, operation in zip(
        window.steps, *(column.tolist() for column in columns), strict=True
    ):
        now = host + delay
        if awaited is None:
            if not gone:
                begin, queued = now + alone, new_end.get(stream, -gap) + gap
                new_end[stream] = (begin if begin > queued else queued) + operation  # `max` takes half of the loop
            continue
        until = max([new_end.get(s, 0) for s in awaited], default=0)
        delay += max(now, until) + (0 if gone else alone) - now - call_left
    return max(stop + delay, 0, *new_end.values())


SLACK_NS = 2_000
"""Host and GPU clocks are matched to about this."""
