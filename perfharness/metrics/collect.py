"""Adds up the ranges of a service over threads and processes. Standard library only.

Each thread and asyncio task has one list per stage. A range appends its duration at its end, without a lock. A thread
adds up the lists and empties them.

Each process writes its sums to its own file every `WRITE_S`, and before a scrape reads all files. Sums only grow, so a
scrape is right whichever process answers. Files of ended processes are joined into one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import time, time_ns

from perfharness.boot import ranks
from perfharness.recorder.core import Core
from perfharness.recorder.ranges import Range
from perfharness.recorder.stacks import Stack

TOTAL_NS = -1
"""Place of the total time of a stage. Place n counts its ranges of n bits: below 2**n ns, and not below 2**(n-1)."""

MOST_AT_ONCE = 1000
"""Durations added up without releasing the interpreter lock (about 0.1 ms)."""

MAX_STAGES = 200
"""Stages with their own histogram, per recorder and process: names may contain ids."""

OTHER_STAGES = "(other)"
COUNTERS = ("items", "batches", "failed_batches")
NO_STAGE = ""
"""Stage of the counters; their places are the indices of `COUNTERS`."""

WRITE_S = 1.0
"""Also the longest time that a killed process loses."""

GAP_S = 30.0
"""A service without processes for this long has ended; workers may all restart at once."""

MOST_ENDED = 16
"""More files of ended processes are joined."""

ENDED = "ended.json"
"""The sums of processes that have ended."""

Sums = Counter[tuple[str, str, int]]
"""Number by recorder, stage and place."""


class Meter:
    """Durations and counts of a recorder in this process."""

    def __init__(self, recorder: Core) -> None:
        self.shared: SharedSums | None = None
        self._recorder = recorder
        self.begin_in_child()

    def begin_in_child(self) -> None:
        """Start at 0."""
        self._lock = threading.RLock()  # reentrant: a signal handler may record
        self._lists: dict[tuple[Stack, str], list[int]] = {}
        self._sums: Sums = Counter()
        self._paths: set[str] = {NO_STAGE}

    def times_of(self, stack: Stack, node: Range) -> list[int]:
        """Return the list for the durations of a range, in nanoseconds."""
        if self.shared is not None:
            self.shared.keep_writing()
        names, around = [node.message], node.parent
        while around is not stack.root:
            names.append(around.message)
            around = around.parent
        return self._list(stack, "/".join(reversed(names)))

    def item_counter(self, stack: Stack, node: Range) -> Callable[[], None]:
        """Return a function that counts the items of an ended batch, unless it was deleted or failed."""
        counts = self._list(stack, NO_STAGE)

        def count() -> None:
            if node.items is not None and not node.is_deleted:
                counts.append(node.items)

        return count

    def _list(self, stack: Stack, path: str) -> list[int]:
        with self._lock:
            if path not in self._paths and len(self._paths) > MAX_STAGES:
                path = OTHER_STAGES
            self._paths.add(path)
            return self._lists.setdefault((stack, path), [])

    def sums(self) -> Sums:
        """Add up all threads."""
        name = self._recorder.name
        with self._lock:
            for (stack, path), numbers in list(self._lists.items()):
                if not stack.thread.is_alive():  # checked before reading: a thread appends until it ends
                    del self._lists[stack, path]
                taken = numbers[:]
                del numbers[: len(taken)]
                for first in range(0, len(taken), MOST_AT_ONCE):
                    self._add(path, taken[first : first + MOST_AT_ONCE])
            totals = self._recorder.totals()
            found = Counter(self._sums)
            found.update({(name, NO_STAGE, place): totals[COUNTERS[place]] for place in (1, 2)})
            return found

    def _add(self, path: str, numbers: list[int]) -> None:
        name = self._recorder.name
        if path == NO_STAGE:
            self._sums[name, NO_STAGE, COUNTERS.index("items")] += sum(numbers)
            return
        self._sums[name, path, TOTAL_NS] += sum(numbers)
        for bucket, count in Counter(map(int.bit_length, numbers)).items():
            self._sums[name, path, bucket] += count


class SharedSums:
    """Sums of all processes that share a folder."""

    def __init__(self, folder: Path, *, is_temporary: bool) -> None:
        self._folder, self._is_temporary = folder, is_temporary
        self._meters: list[Meter] = []
        self._lock = threading.RLock()
        self._in_use: int | None = None
        self.now_and_then: Callable[[], object] = lambda: None
        self._begin()
        os.register_at_fork(after_in_child=self._begin_in_child)
        atexit.register(self._leave)

    def add(self, meter: Meter) -> None:
        """Share one more meter."""
        meter.shared = self
        self._meters.append(meter)

    def _begin(self) -> None:
        self._name = f"{os.getpid()}-{ranks.start_ticks() or 0}-{time_ns()}.json"  # changes with `os.exec…`
        self._written: Sums = Counter()
        self._writer: threading.Thread | None = None
        self._has_warned = False
        self._join()

    def _join(self) -> None:
        """Lock the folder as in use; remove files of an ended service."""
        before, self._in_use = self._in_use, None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.stat().st_uid != os.getuid():
                raise PermissionError("it belongs to another user")
            lock = os.open(self._folder / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _is_last(lock) and os.fstat(lock).st_mtime < time() - GAP_S:
                for path in self._folder.glob("*.json*"):
                    path.unlink()
            fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(lock)
            self._in_use = lock
        except OSError as error:
            self._warn(error)
        if before is not None:
            os.close(before)  # closed, not unlocked: the parent process holds it too

    def _warn(self, error: OSError) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        message = f"{self._folder} cannot be written ({error}): metrics are those of process {os.getpid()} alone"
        warnings.warn(f"{message}; set PROMETHEUS_MULTIPROC_DIR to another folder", RuntimeWarning, stacklevel=2)

    def _begin_in_child(self) -> None:
        self._lock = threading.RLock()
        self._begin()

    def keep_writing(self) -> None:
        """Start to write every `WRITE_S`; later calls do nothing."""
        with self._lock:
            if self._writer is not None:
                return
            self._writer = threading.Thread(target=self._write_on, name="perfharness-metrics", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
                self._writer.start()
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, self.write, exitpriority=0)  # its processes run no exit functions

    def _write_on(self) -> None:
        never = threading.Event()
        while not never.wait(WRITE_S):
            self.write()
            self.now_and_then()
            if self._in_use is not None:
                os.utime(self._in_use)

    def write(self) -> Sums:
        """Write the sums of this process if they changed, and return them."""
        with self._lock:
            sums: Sums = Counter()
            for meter in self._meters:
                sums.update(meter.sums())
            if sums != self._written and self._in_use is not None:
                try:
                    self._replace(self._name, sums)
                    self._written = sums
                except OSError as error:
                    self._warn(error)
            return sums

    def sums(self) -> Sums:
        """Add up all processes, including ended ones."""
        found = Counter(self.write())
        if self._in_use is not None:
            with self._alone():
                others, joined = self._others()
                for sums in others.values():
                    found.update(sums)
                ended = [name for name in others if not _is_running(name)]
                if len(ended) > MOST_ENDED:
                    self._join_files({name: others[name] for name in ended}, joined)
        return found

    def _others(self) -> tuple[dict[str, Sums], list[str]]:
        """Sums by file, without this process; and the files already joined."""
        read = {path.name: json.loads(path.read_bytes()) for path in sorted(self._folder.glob("*.json"))}
        joined = [name for content in read.values() for name in content["joined"]]
        sums = {
            name: Counter({(recorder, stage, place): value for recorder, stage, place, value in content["sums"]})
            for name, content in read.items()
            if name != self._name and name not in joined
        }
        return sums, joined

    def _join_files(self, ended: dict[str, Sums], joined: list[str]) -> None:
        """Join files into one, which names them: a process killed meanwhile leaves nothing counted twice."""
        total: Sums = Counter()
        for sums in ended.values():
            total.update(sums)
        names = {*joined, *ended} - {ENDED}
        self._replace(ENDED, total, sorted(name for name in names if (self._folder / name).exists()))
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def _replace(self, name: str, sums: Sums, joined: Sequence[str] = ()) -> None:
        temporary = self._folder / f"{name}.{threading.get_native_id()}"
        content = {"joined": joined, "sums": [[*key, value] for key, value in sums.items()]}
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self._folder / name)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude other processes from joining files."""
        lock = os.open(self._folder / "joining", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a child forked meanwhile holds it too
            os.close(lock)

    def _leave(self) -> None:
        """Write a last time; the last process removes a temporary folder."""
        self.write()
        if self._in_use is not None and self._is_temporary and _is_last(self._in_use):
            shutil.rmtree(self._folder, ignore_errors=True)


def _is_last(lock: int) -> bool:
    """Try to hold the lock alone."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_running(name: str) -> bool:
    """Whether the process of a file is running."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid, ticks = name.split("-")[:2]
        return Path(f"/proc/{int(pid)}/stat").read_bytes().rpartition(b")")[2].split()[19] == ticks.encode()
    return False
