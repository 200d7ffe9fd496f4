"""`recorder.json`: the counts of this process's recorders, against which the trace is checked.

Only inside a launch. The file is claimed when the first recorder is made and written again at each finalize and when
the process ends, so a process that never finalizes, raises or is killed leaves it too, with its progress so far.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import sys
import threading
import time
import warnings
from json import dumps  # bound now: a script may have its json.dumps annotated
from pathlib import Path
from time import time_ns  # a name of our own: a script may have the module's annotated
from typing import TYPE_CHECKING, Any, NoReturn

from perfharness import compiled_code
from perfharness.model import environment, ranks
from perfharness.recorder import startup
from perfharness.recorder.json_values import arguments_to_json
from perfharness.recorder.nvtx_channels import flush_nsys
from perfharness.recorder.spec import check_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from perfharness.recorder.core import RecorderCore

FILE_NAME = "recorder.json"
SCHEMA_VERSION = 1
OPEN_RANGES_NAMED = 1000
EXEC = "exec"
"""How a program ended that had the process go on as another one."""

COUNTS = ("ranges", "batches", "items", "deleted_ranges")
COUNTS_EVERY_S = 1.0
"""Greatest age of a child's counts on disk, while it closes batches or `with` blocks."""


_numbers = itertools.count()


class Journal:
    """The recorders of one process and their file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.forked = False
        self._args: dict[RecorderCore, dict[str, Any]] = {}  # the pipeline's arguments, by recorder
        self._lock = threading.RLock()
        self._path: Path | None = None  # until it is claimed
        self._exception: str | None = None
        self._broken = False
        self._hooked_multiprocessing = False
        self._previous_hook = sys.excepthook
        self._os_exit = os._exit
        self._before_exec = _left_by_exec(folder)
        self._has_begun = True  # in a forked child: whether it has recorded anything
        self._due_s = 0.0
        self._started_unix_ns = time_ns()
        self._ancestors, self._start_ticks = ranks.ancestors(), ranks.start_ticks()
        self._rank: dict[str, Any] | None = None

    def install(self) -> None:
        """Install the hooks that write the file as the process ends or forks."""
        sys.excepthook = self._on_exception
        os._exit = self._write_and_exit
        for name in ("execv", "execve"):  # which all others of their kind call
            setattr(os, name, self._written_before(getattr(os, name)))
        atexit.register(self.write_at_exit)
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def add(self, core: RecorderCore, args: dict[str, Any]) -> None:
        """Add a recorder; further objects of a known one add their arguments."""
        with self._lock:
            self._args[core] = {**self._args.get(core, {}), **args}
            self._keep_counts()
        self.write()

    def write(self, unless_finalized: str = "running", *, unless_replaced: bool = True) -> None:
        """Write the current state; `unless_replaced`: whether this program is the process's last one."""
        with self._lock:
            if self._broken or not self._has_begun:
                return
            is_finalized = all(core.users == 0 for core in self._args)
            ended = "finalized" if is_finalized and unless_replaced else unless_finalized
            text = dumps(self._content(ended), indent=2) + "\n"
            try:
                if self._path is None:
                    self._path = self._claim(text)
                    self._keep_counts()
                else:
                    _replace(self._path, text)
            except OSError as error:
                self._broken = True
                warnings.warn(
                    f"{FILE_NAME} cannot be written ({error}); the trace cannot be checked against the recorder's own "
                    f"counts. Is {environment.OUTPUT_DIR} a folder that can be written to?",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def write_at_exit(self) -> None:
        """Write the final state."""
        self.write("exit")

    def _content(self, ended: str) -> dict[str, Any]:
        self._rank = ranks.rank_facts() or self._rank  # a script may set it, and clear it, as it goes
        listening = [core.sink.listening for core in self._args]
        barriers = [core.barrier.waits for core in self._args if core.barrier is not None]
        return {
            "schema_version": SCHEMA_VERSION,
            "pid": os.getpid(),
            "parent_pid": self._ancestors[0],
            "ancestors": self._ancestors,
            "started_unix_ns": self._started_unix_ns,
            "start_ticks": self._start_ticks,
            "rank": self._rank,
            "nvtx_version": _nvtx_version(),
            "python_version": sys.version.split()[0],
            "listening": True if any(listening) else None if None in listening else False,
            "cuda_loaded": _cuda_loaded(),
            "ended": ended if self._exception is None else "exception",
            "exception": self._exception,
            "startup": startup.process_startup.to_json(),
            "compiled_ranges": sorted(compiled_code.ranges),
            "start_barrier": barriers[0] if barriers else None,
            "recorders": _added(
                [_recorder_to_json(core, args) for core, args in self._args.items()], self._before_exec
            ),
        }

    def _claim(self, text: str) -> Path:
        """The first write: to `recorder.json`, or `recorder_PID.json` where another process of this launch has that."""
        own = _own_path(self.folder, self._start_ticks)
        if self.forked:
            _replace(own, text)
            return own
        target = self.folder / FILE_NAME
        written = _temporary(target, text)
        try:
            os.link(written, target)  # unlike a replace, fails where the file exists: others may get here concurrently
        except OSError:  # it exists, or the file system has no links
            if _of_another_process(target, self._start_ticks):
                target = own
            written.replace(target)
        else:
            written.unlink()
        return target

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._exception = kind.__name__
        self._previous_hook(kind, error, trace)

    def _after_fork(self) -> None:
        """In a forked child: start anew; the parent writes its own file and counts."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._broken = False
        self.forked = True
        self._path = None
        self._exception = None
        self._has_begun, self._due_s = False, 0.0
        self._started_unix_ns = time_ns()
        self._ancestors, self._start_ticks = ranks.ancestors(), ranks.start_ticks()
        self._before_exec = []
        for core in self._args:
            core.forget_counts()
        self._keep_counts()

    def _keep_counts(self) -> None:
        """Of a process that another one of the launch started, have counts on disk: a signal may end it at any time."""
        if self.forked or (self._path is not None and self._path.name != FILE_NAME):
            for core in self._args:
                core.write_counts = self._write_counts

    def _write_counts(self) -> None:
        """Write with the first range and periodically."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + COUNTS_EVERY_S
            self._has_begun = True
            self.write()

    def _write_and_exit(self, status: int) -> NoReturn:
        """Replaces `os._exit`, which calls no exit function."""
        with contextlib.suppress(Exception):
            if self._has_begun:
                flush_nsys()
            self.write_at_exit()
        self._os_exit(status)

    def _written_before(self, function: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Replaces `os.execv`: the process goes on as another program, which may have recorders too."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> NoReturn:
            with contextlib.suppress(Exception):
                if self._has_begun:
                    flush_nsys()
                self.write(EXEC, unless_replaced=False)
            function(*args, **kwargs)

        return call

    def _before_fork(self) -> None:
        # Children of multiprocessing end by os._exit, without atexit, and begin by dropping all finalizers except
        # those registered through its own hook.
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._hooked_multiprocessing:
            self._hooked_multiprocessing = True
            util.register_after_fork(self, Journal._write_at_end_of_worker)

    def _write_at_end_of_worker(self) -> None:
        sys.modules["multiprocessing.util"].Finalize(None, self.write_at_exit, exitpriority=0)


def _recorder_to_json(core: RecorderCore, args: dict[str, Any]) -> dict[str, Any]:
    totals = core.registry.totals()
    return {
        "name": core.name,
        "domain": core.domain,
        "args": args,
        "ranges": totals.ranges,
        "batches": totals.batches,
        "items": totals.items,
        "deleted_ranges": totals.deleted_ranges,
        "threads": core.registry.threads,
        "finalized": core.users == 0,
        "open_ranges": core.open_ranges()[:OPEN_RANGES_NAMED],
        **({} if core.capture is None else {"captured": _captured_to_json(core)}),
    }


def _left_by_exec(folder: Path) -> list[dict[str, Any]]:
    """What recorders had counted in this process, when it was another program until `os.exec…`."""
    ticks = ranks.start_ticks()
    found = (_content_of(path) for path in (folder / FILE_NAME, _own_path(folder, ticks)))
    own = next((one for one in found if _is_own(one, ticks) and one.get("ended") == EXEC), {})
    return list(own.get("recorders", ()))


def _own_path(folder: Path, start_ticks: int | None) -> Path:
    """Where the journal of a further process is: named by its pid, and by its start too where another had that pid."""
    path = folder / f"recorder_{os.getpid()}.json"
    earlier = _content_of(path)
    return path if not earlier or _is_own(earlier, start_ticks) else path.with_stem(f"{path.stem}_{start_ticks}")


def _is_own(content: dict[str, Any], start_ticks: int | None) -> bool:
    """Whether a journal is of this process, maybe of another program in it, and not of an earlier one of its pid."""
    ticks = content.get("start_ticks")
    return content.get("pid") == os.getpid() and (ticks == start_ticks or None in (ticks, start_ticks))


def _content_of(path: Path) -> dict[str, Any]:
    """Of a journal; empty where there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _added(recorders: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The recorders with what those of the same name had counted before."""
    earlier = {one["name"]: one for one in before}
    added = [
        {**one, **{name: one[name] + earlier[one["name"]][name] for name in COUNTS}} if one["name"] in earlier else one
        for one in recorders
    ]
    names = {one["name"] for one in recorders}
    return [*added, *(one for one in before if one["name"] not in names)]


def _captured_to_json(core: RecorderCore) -> dict[str, int]:
    gates = core.gates
    return {"ranges": sum(gate.ranges for gate in gates), "batches": sum(gate.batches for gate in gates)}


def _cuda_loaded() -> bool | None:
    """Whether the CUDA driver library is in this process; None where the system does not show it."""
    try:
        with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
            return any("/libcuda.so" in line for line in maps)
    except OSError:
        return None


def _nvtx_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("nvtx")
    except PackageNotFoundError:
        return None


def _temporary(target: Path, text: str) -> Path:
    """A new file in the target's folder, which the script may have removed; its mode is set by the umask."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".{target.name}.{os.getpid()}.{next(_numbers)}")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _replace(target: Path, text: str) -> None:
    _temporary(target, text).replace(target)


def _of_another_process(path: Path, start_ticks: int | None) -> bool:
    """Whether the file must be kept: of another process of the same launch, whether it has ended or not.

    The folder of a launch is new. In one that was set by hand an older run may have left its file: kept is that of a
    process that still runs or has the same parent.
    """
    content = _content_of(path)
    try:
        pid, parent = int(content["pid"]), content.get("parent_pid")
    except (ValueError, KeyError, TypeError):
        return False
    if _is_own(content, start_ticks):
        return False
    return environment.NUM_PROCESSES in os.environ or parent == os.getppid() or _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


_journal: Journal | None = None


def register(core: RecorderCore, args: object) -> None:
    """Add the recorder to the journal, where this process is part of a launch."""
    journal = open_journal()
    if journal is not None:
        journal.add(core, arguments_to_json(args))


def open_journal() -> Journal | None:
    """The journal of this process; None outside of a launch."""
    global _journal
    folder = os.environ.get(environment.OUTPUT_DIR)
    if not folder:
        return None
    if _journal is None:
        _journal = Journal(Path(folder).absolute())
        _journal.install()
    return _journal


def startup_range(name: str) -> contextlib._GeneratorContextManager[None]:
    """A part of the start-up, before or after a recorder is made, or without one.

    `with startup_range("model_load"): model = load()`, or as a decorator of the function that loads. Inside a launch it
    is in the results of the start-up (`startup` in benchmark.json, which has separate fields for `model_load` and
    `cuda_context`); outside of one it is plain NVTX.
    """
    open_journal()
    check_name("start-up range", name)
    return startup.timed_range(name)


def leave_rank() -> None:
    """Have a journal at the end that tells which rank this was: without a recorder, a trace of nsys does not."""
    if ranks.rank_facts() is not None:
        open_journal()


def write() -> None:
    """Write the current state of the journal, if there is one."""
    if _journal is not None:
        _journal.write()
