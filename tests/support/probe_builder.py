"""What the host probe records, from a few lines of a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.host_samples import (
    Frame,
    HostEventKind,
    HostEvents,
    HostProbe,
    HostSamples,
    HostState,
)

K = TypeVar("K")


class ProbeBuilder:
    """Collects samples and events; times are on the trace's clock, ns. By default all are of the thread 100 of the
    process 100, as those of `TraceBuilder` are.
    """

    def __init__(self, interval_ns: int = 1_000_000) -> None:
        self.interval_ns = interval_ns
        self._samples: list[tuple[int, ...]] = []
        self._events: list[tuple[int, ...]] = []
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._stages: dict[tuple[str, ...], int] = {}

    def sample(
        self,
        time_ns: int,
        stack: Sequence[str | Frame] = (),
        *,
        stage: tuple[str, ...] | None = None,
        state: HostState = HostState.RUNNING,
        length_ns: int | None = None,
        on_cpu_ns: int | None = None,
        runnable_ns: int | None = None,
        pid: int = 100,
        tid: int = 100,
        gil_holder: int | None = None,
    ) -> None:
        """A sample.

        Args:
            stack: the innermost frame first; `function@file:line`, or frames.
            stage: the recorder's name and the ranges open on its stack; None: none was read.
            on_cpu_ns: None: all of the sample's time where it is running, else 0.
            runnable_ns: None: the same where it is runnable.
            gil_holder: thread id, in the same process.
        """
        length = self.interval_ns if length_ns is None else length_ns
        on_cpu = (length if state is HostState.RUNNING else 0) if on_cpu_ns is None else on_cpu_ns
        runnable = (length if state is HostState.RUNNABLE else 0) if runnable_ns is None else runnable_ns
        frames = tuple(self._number(self._frames, _frame(frame)) for frame in stack)
        self._samples.append((
            schema.global_tid(pid, tid), time_ns, length, on_cpu, runnable, int(state),
            self._number(self._stacks, frames) if frames else -1,
            -1 if stage is None else self._number(self._stages, stage),
            0 if gil_holder is None else schema.global_tid(pid, gil_holder),
        ))  # fmt: skip

    def samples(self, start_ns: int, end_ns: int, stack: Sequence[str | Frame] = (), **facts: object) -> None:
        """One every interval, from half an interval after the start to before the end."""
        for time_ns in range(start_ns + self.interval_ns // 2, end_ns, self.interval_ns):
            self.sample(time_ns, stack, **facts)  # type: ignore[arg-type]

    def event(
        self, kind: HostEventKind, start_ns: int, end_ns: int, detail: int = 0, *, pid: int = 100, tid: int = 100
    ) -> None:
        """An interval; of a collection, `detail` is the generation."""
        self._events.append((start_ns, end_ns, schema.global_tid(pid, tid), int(kind), detail))

    @property
    def has_samples(self) -> bool:
        """Whether anything was sampled."""
        return bool(self._samples)

    def build(self) -> HostProbe:
        """The columns."""
        rows = np.asarray(sorted(self._samples), dtype=np.int64).reshape(-1, 9).T
        events = np.asarray(sorted(self._events), dtype=np.int64).reshape(-1, 5).T
        thread, time_ns, length, on_cpu, runnable, state, stack, stage, holder = rows
        return HostProbe(
            HostSamples(
                time_ns=time_ns, thread=thread, length_ns=length, on_cpu_ns=on_cpu, runnable_ns=runnable, state=state,
                stack=stack, stage=stage, gil_holder=holder,
                frames=list(self._frames), stacks=list(self._stacks),
                stage_paths=list(self._stages), interval_ns=self.interval_ns,
            ),
            HostEvents(*events),
        )  # fmt: skip

    def _number(self, numbers: dict[K, int], value: K) -> int:
        return numbers.setdefault(value, len(numbers))


def _frame(frame: str | Frame) -> Frame:
    if isinstance(frame, Frame):
        return frame
    function, _, place = frame.partition("@")
    file, _, line = place.rpartition(":")
    return Frame(function, file, int(line))
