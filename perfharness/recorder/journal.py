"""`recorder.json`: counts of this process's recorders, to check the trace.

Written only in a launch: with the first recorder, at most once per second at batch ends, at each
finalize, and at exit. After a kill its counts are lower bounds. The first process of a folder writes
`recorder.json`, the others `recorder_PID.json`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import RLock, get_native_id
from time import monotonic, perf_counter_ns, time_ns
from typing import Any

from perfharness import compiled_code
from perfharness.boot import ranks
from perfharness.model import environment
from perfharness.model.conventions import STARTUP_DOMAIN, printable
from perfharness.recorder import barrier, instruments
from perfharness.recorder.events import flush_nsys
from perfharness.recorder.names import checked_name
from perfharness.secrets import MASK, is_secret, mask_arguments, mask_text

FILE_NAME = "recorder.json"
SCHEMA_VERSION = 1
WRITE_EVERY_S = 1.0
MAX_TEXT = 1000
MAX_DEPTH = 4


class Journal:
    """The recorders of one process and their file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recorders: dict[Any, dict[str, Any]] = {}  # arguments of the pipeline by `PerfRecorder`
        self._nvtx_version = _nvtx_version()
        self._previous_hook = sys.excepthook
        self._begin(is_forked=False)

    def install(self) -> None:
        """Write at the end of the process, too."""
        sys.excepthook = self._on_exception
        for name, ended in (("_exit", "exit"), ("execv", "exec"), ("execve", "exec")):  # others call these
            setattr(os, name, self._written_before(getattr(os, name), ended))
        atexit.register(self.finish, "exit")
        os.register_at_fork(after_in_child=lambda: self._begin(is_forked=True))

    def _begin(self, *, is_forked: bool) -> None:
        """Begin in this process; a forked child writes its file with its first range."""
        self._lock = RLock()  # a signal handler may call `os._exit` during a write
        self._is_forked, self.is_claimed, self._is_broken = is_forked, False, False
        self._due_s = 0.0
        self._exception: str | None = None
        self._cuda_used: bool | None = None
        self._instruments: dict[str, None] = {}  # in order
        self._rank: dict[str, Any] | None = None
        self._earlier: list[dict[str, Any]] = []  # recorders of the program before `os.exec…`
        self._started_unix_ns = time_ns()
        self._ancestors, self._start_ticks = ranks.ancestors(), ranks.start_ticks()

    def add(self, recorder: Any, args: object) -> None:
        """Add a recorder, or arguments to a known one."""
        self._recorders.setdefault(recorder, {}).update(arguments_to_json(args))
        self.write()
        self._due_s = 0.0  # write again at the end of the next batch

    def write_now_and_then(self) -> None:
        """Write, at most once per second."""
        if monotonic() >= self._due_s:
            self.write()

    def finish(self, ended: str) -> None:
        """Read the instruments, and write."""
        from perfharness.tracer.cupti import cuda_was_used

        with self._lock:
            if self.is_claimed or not self._is_forked:
                self._cuda_used = cuda_was_used()
                self._instruments |= dict.fromkeys(instruments.found())
                self.write(ended)

    def write(self, ended: str = "running") -> None:
        """Write the current state."""
        with self._lock:
            if self._is_broken:
                return
            self._due_s = monotonic() + WRITE_EVERY_S
            try:
                if not self.is_claimed:
                    self._claim()
                path = self._path.with_name(f".{self._path.name}.{os.getpid()}")
                path.write_text(json.dumps(self._content(ended), indent=2) + "\n", encoding="utf-8")
                path.replace(self._path)
            except OSError as error:
                self._is_broken = True
                warnings.warn(
                    f"{FILE_NAME} cannot be written ({error}); the trace cannot be checked for lost events. "
                    f"Make {environment.OUTPUT_DIR} a writable folder.",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _claim(self) -> None:
        """Choose the file of this process; keep its records from before `os.exec…`."""
        self._path = self._folder / FILE_NAME
        before = _content_of(self._path)
        if self._is_forked or (before.get("pid") != os.getpid() and self._is_taken(before)):
            self._path = self._folder / f"recorder_{os.getpid()}.json"
            before = _content_of(self._path)
        if before.get("pid") == os.getpid() and before.get("start_ticks") == self._start_ticks:
            self._earlier = before.get("recorders", [])
        self.is_claimed = True

    def _is_taken(self, content: dict[str, Any]) -> bool:
        """Create `recorder.json`; return whether it belongs to another process of this launch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            is_beside = os.getppid() in (content.get("pid"), content.get("parent_pid"))
            return environment.NUM_PROCESSES in os.environ or is_beside
        return False

    def _content(self, ended: str) -> dict[str, Any]:
        self._rank = ranks.rank_facts() or self._rank  # a script may set and clear it
        outputs = [recorder.output for recorder in self._recorders]
        listening = [output.listening for output in outputs]
        start_barrier = barrier.active()
        if ended != "exec" and all(recorder.is_finalized for recorder in self._recorders):
            ended = "finalized"
        recorders = [{**self.counts_of(recorder), "args": args} for recorder, args in self._recorders.items()]
        return {
            "schema_version": SCHEMA_VERSION,
            "pid": os.getpid(),
            "parent_pid": self._ancestors[0],
            "ancestors": self._ancestors,
            "started_unix_ns": self._started_unix_ns,
            "start_ticks": self._start_ticks,
            "rank": self._rank,
            "nvtx_version": self._nvtx_version,
            "nvtx_disabled": any(output.is_disabled for output in outputs),
            "python_version": sys.version.split()[0],
            "listening": True if any(listening) else None if None in listening else False,
            "cuda_loaded": self._cuda_used,
            "ended": ended if self._exception is None else "exception",
            "exception": self._exception,
            "instruments": list(self._instruments),
            "startup": _startup(),
            "compiled_ranges": sorted(compiled_code.ranges),
            "start_barrier": None if start_barrier is None else start_barrier.waits,
            "recorders": [*self._earlier, *recorders],
        }

    def counts_of(self, recorder: Any) -> dict[str, Any]:
        """Return the counts of a recorder."""
        counts: dict[str, Any] = recorder.counts()
        return counts

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._exception = kind.__name__
        self._previous_hook(kind, error, trace)

    def _written_before(self, leave: Callable[..., Any], ended: str) -> Callable[..., Any]:
        """Wrap a call that ends the program without exit functions."""

        @functools.wraps(leave)
        def call(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                if self.is_claimed:
                    flush_nsys()
                self.finish(ended)
            return leave(*args, **kwargs)

        return call


_journal: Journal | None = None


def active() -> Journal | None:
    """Return the journal of this process, or None outside of a launch or if each window has its own."""
    global _journal
    folder = "" if os.environ.get(environment.ON_DEMAND) == "1" else os.environ.get(environment.OUTPUT_DIR)
    if folder and _journal is None:
        _journal = Journal(Path(folder).absolute())
        _journal.install()
    return _journal if folder else None


def leave_rank() -> None:
    """Have the rank written at the end, because traces of nsys without a recorder lack it."""
    if ranks.rank_facts() is not None:
        active()


# ---- start-up times, in UTC nanoseconds ----

_pid = os.getpid()
_first: dict[str, int] = {}
_startup_ranges: list[dict[str, Any]] = []


def note_first(moment: str) -> None:
    """Note the time of the first `recorder` or `batch`."""
    _first.setdefault(moment, time_ns())


def _startup() -> dict[str, Any] | None:
    """First recorder, first batch and ranges of the start-up; None in a forked child."""
    if _pid != os.getpid():
        return None
    moments = {f"first_{moment}_unix_ns": _first.get(moment) for moment in ("recorder", "batch")}
    return {**moments, "ranges": _startup_ranges}


def startup_range(name: str) -> contextlib._GeneratorContextManager[None]:
    """Time a part of the start-up, as a `with` block or a decorator.

    In a launch it appears under `startup` in benchmark.json, which has fields for `model_load` and
    `cuda_context`. Elsewhere it is a plain NVTX range.
    """
    active()
    return _timed(checked_name("start-up range", name))


@contextlib.contextmanager
def _timed(name: str) -> Iterator[None]:
    annotation: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    with contextlib.suppress(ImportError):  # the recorder warns about it
        import nvtx

        annotation = nvtx.annotate(name, domain=STARTUP_DOMAIN)
    entry = {"name": name, "begin_unix_ns": time_ns(), "thread": get_native_id(), "failed": True}
    begin_ns = perf_counter_ns()
    try:
        with annotation:
            yield
        entry["failed"] = False
    finally:
        _startup_ranges.append({**entry, "duration_ns": perf_counter_ns() - begin_ns})


# ---- arguments ----


def arguments_to_json(args: object) -> dict[str, Any]:
    """Convert a namespace, a mapping or an object's attributes, with secrets masked."""
    if args is None:
        return {}
    values = args if isinstance(args, Mapping) else getattr(args, "__dict__", {"args": args})
    return {printable(str(name)): _value_to_json(str(name), value) for name, value in values.items()}


def _value_to_json(name: str, value: Any, depth: int = 0) -> Any:
    if value is not None and is_secret(name):
        return MASK
    if value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        return {printable(str(key)): _value_to_json(str(key), one, depth + 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and depth < MAX_DEPTH and not all(type(one) is str for one in value):
        return [_value_to_json("", one, depth + 1) for one in value]
    if isinstance(value, (list, tuple)):
        return mask_arguments([printable(str(one)) for one in value])
    try:
        text = value if type(value) is str else repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}: its repr raises {type(error).__name__}>"
    return mask_text(printable(text))[:MAX_TEXT]


def _content_of(path: Path) -> dict[str, Any]:
    """Read a journal; empty if it is missing or unreadable."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _nvtx_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # takes 20 ms

    try:
        return version("nvtx")
    except PackageNotFoundError:
        return None
