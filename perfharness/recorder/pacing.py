"""A script under load: its outermost batches begin when requests are due. Only where `PERFHARNESS_PACE` names a plan.

The first thread that begins a batch is paced; batches inside of batches and of other threads are not, nor are other
processes. Each batch is appended to a file as it ends, a line of numbers, so that a kill loses none. When the plan is
over, further batches run as they come, and are not recorded here.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

from perfharness.model import environment
from perfharness.own_files import OwnFile
from perfharness.recorder.core import RecorderCore
from perfharness.recorder.spec import RangeKey
from perfharness.recorder.stacks import Node, RangeStack

SPIN_NS = 150_000
"""The last part of a wait, in which a thread only gives way to others; what waking up takes."""

LEAD_NS = 20_000_000
"""Between the first batch and the begin of the clock."""

NO_ITEMS = -1
PACED_NAME = "paced_batches.txt"

_PACED = object()
"""Part of the key of a paced batch, which no push may find."""


def sleep_until(moment_ns: int) -> None:
    """Sleep until a moment of the monotonic clock, to some ten microseconds."""
    while (left_ns := moment_ns - perf_counter_ns()) > SPIN_NS:
        sleep((left_ns - SPIN_NS) / 1e9)
    while perf_counter_ns() < moment_ns:
        sleep(0)


class Pacer:
    """When batches are due, and when they were.

    Args:
        plan: `{"grace_ns", "phases": [{"duration_ns", "offsets_ns": [...]} or {"duration_ns", "think_ns": [...]}]}`;
            the times to think are used again from the first on.
        folder: of the process, for the file.
    """

    def __init__(self, plan: Path, folder: Path) -> None:
        read = json.loads(plan.read_text("utf-8"))
        self._phases: list[dict[str, Any]] = read["phases"]
        self._grace_ns: int = read["grace_ns"]
        self._file: OwnFile | None = None
        self._folder = folder
        self._owner: tuple[int, int] | None = None
        self._due: Iterator[tuple[int, int]] | None = None
        self._free_ns = 0
        self.batch: Node | None = None
        """The one that is paced and open."""

        self._now: tuple[int, int, int, int] = (0, 0, 0, 0)

    def is_mine(self) -> bool:
        """Whether this thread is the paced one; the first to ask is, of the first process to ask."""
        me = (os.getpid(), threading.get_ident())
        if self._owner is None:
            self._owner = me
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
            try:
                self._file = OwnFile(os.path.abspath(self._folder / PACED_NAME), flags)  # noqa: PTH100
            except OSError:  # another process has it
                self._file = None
        return self._file is not None and self._owner == me

    def wait(self, batch: Node) -> None:
        """Wait until the next request is due; does nothing when the plan is over."""
        ready_ns = perf_counter_ns()
        if self._due is None:
            self._due = self._moments()
        found = next(self._due, None)
        if found is None:
            return
        phase, due_ns = found
        sleep_until(due_ns)
        self.batch = batch
        self._now = phase, due_ns, ready_ns, perf_counter_ns()

    def done(self, index: int, items: int | None, *, is_deleted: bool) -> None:
        """The paced batch has ended."""
        self._free_ns = perf_counter_ns()
        self.batch = None
        self._write("batch", *self._now, self._free_ns, index, NO_ITEMS if items is None else items, int(is_deleted))

    def _moments(self) -> Iterator[tuple[int, int]]:
        start_ns = perf_counter_ns() + LEAD_NS
        for number, phase in enumerate(self._phases):
            end_ns = start_ns + phase["duration_ns"]
            self._write("phase", number, start_ns, end_ns)
            if "offsets_ns" in phase:
                for offset_ns in phase["offsets_ns"]:
                    if perf_counter_ns() > end_ns + self._grace_ns:
                        break
                    yield number, start_ns + offset_ns
            else:
                yield number, start_ns
                think, count = phase["think_ns"], 0
                while (due_ns := self._free_ns + think[count % len(think)]) < end_ns:
                    count += 1
                    yield number, due_ns
            sleep_until(end_ns)
            self._write("phase-end", number, perf_counter_ns())
            start_ns = perf_counter_ns()
        self._write("end", perf_counter_ns())

    def _write(self, *words: object) -> None:
        assert self._file is not None
        os.write(self._file.descriptor(), (" ".join(map(str, words)) + "\n").encode())


class PacedCore(RecorderCore):
    """A recorder whose outermost batches wait for their requests."""

    def __init__(self, name: str, domain: str | None) -> None:
        super().__init__(name, domain)
        self._pacer = active()

    def add_node(self, stack: RangeStack, key: RangeKey, *, is_batch: bool = False) -> Node:
        """As of any recorder; a paced batch is kept under a key that no push uses, so that each push comes here."""
        pacer = self._pacer
        if not is_batch or pacer.batch is not None or not pacer.is_mine():
            return super().add_node(stack, key, is_batch=is_batch)
        siblings = stack.node.batch_children
        held_key = (_PACED, key)
        try:
            node = siblings[held_key]
        except (KeyError, TypeError):
            node = super().add_node(stack, key, is_batch=True)
            siblings = stack.node.batch_children  # another object, where the stack was pruned
            siblings.pop(key, None)
            siblings[held_key] = node
        pacer.wait(node)
        return node

    def close(self, stack: RangeStack, items: int | None, delete_range: bool, shared: bool = False) -> None:
        """As of any recorder; of a paced batch the end is recorded first."""
        node = stack.node
        if node is self._pacer.batch:
            self._pacer.done(node.index, items, is_deleted=delete_range)
        super().close(stack, items, delete_range, shared)


_pacer: Pacer | None = None
_making = threading.Lock()


def active() -> Pacer:
    """That of this process."""
    global _pacer
    with _making:
        if _pacer is None:
            _pacer = Pacer(Path(os.environ[environment.PACE]), Path(os.environ[environment.OUTPUT_DIR]))
        return _pacer
