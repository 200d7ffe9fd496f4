"""State shared by the annotated functions of a process: the recorder, the open `within` ranges, a note per function.

Problems are noted for the launcher and never raised into the pipeline.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.expressions import Target
from perfharness.annotate.scopes import BatchCall, Scope, StageCall
from perfharness.errors import RecorderError
from perfharness.model.annotations import NOTES_NAME, Annotations, FunctionNote
from perfharness.model.conventions import COMMUNICATION
from perfharness.own_work import own_work
from perfharness.recorder import PerfRecorder, default_recorder

DEFAULT_RECORDER = "annotated"
"""Used where neither the file nor the script names a recorder."""

TORCH = "torch"
COLLECTIVES = "torch.distributed"


class Runtime:
    """All annotations of this process.

    Args:
        folder: of the launched process.
        is_child: whether that started this one.
    """

    def __init__(self, annotations: Annotations, folder: str, *, is_child: bool = False) -> None:
        self.annotations = annotations
        self.targets = [Target(function) for function in annotations.functions]
        self.torch_note = None if annotations.torch_depth is None else FunctionNote(TORCH)
        self.collectives_note = FunctionNote(COLLECTIVES) if annotations.collectives else None
        self._folder = folder
        self._is_child = is_child
        self._pid = os.getpid()
        self._core: PerfRecorder | None = None
        self._lock = threading.RLock()
        self._within = annotations.within
        self._open_within = 0
        atexit.register(self._write_at_exit)
        os.register_at_fork(after_in_child=self._after_fork)

    def open(
        self, target: Target, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Scope | None:
        """The range of one call, opened; None where the call is not recorded or is `own_work`."""
        own = own_work.thread
        if own.busy:
            return None
        own.busy += 1  # as `with own`, without its calls
        try:
            annotation = target.annotation
            is_outermost = annotation.name == self._within
            core = self._recording_core(target.note, is_outermost)
            if core is None:
                return None
            count_within = self._count_within if is_outermost else None
            if annotation.is_batch:
                return BatchCall(core, target, (function, args, kwargs), count_within)
            return StageCall(core, annotation.name, count_within)
        finally:
            own.busy -= 1

    def open_module(self, name: str) -> Scope | None:
        """The range of a PyTorch module's forward call, opened; None where it is not recorded."""
        own = own_work.thread
        if own.busy:
            return None
        with own:
            assert self.torch_note is not None, "PyTorch is only watched with a note"
            core = self._recording_core(self.torch_note, False)
            return None if core is None else StageCall(core, name)

    def open_collective(self, name: str) -> Scope | None:
        """The range of a call of `torch.distributed`, opened; None where it is not recorded."""
        own = own_work.thread
        if own.busy:
            return None
        with own:
            assert self.collectives_note is not None, "it is only watched with a note"
            core = self._recording_core(self.collectives_note, False)
            return None if core is None else StageCall(core, name, category=COMMUNICATION)

    def start_collective(self, name: str) -> Callable[[], None] | None:
        """Start the range of a collective that goes on after its call; what is returned ends it, on any thread. None
        where it is not recorded.
        """
        own = own_work.thread
        if own.busy:
            return None
        with own:
            assert self.collectives_note is not None, "it is only watched with a note"
            core = self._recording_core(self.collectives_note, False)
            return None if core is None else core.start_range(name, category=COMMUNICATION)

    def _recording_core(self, note: FunctionNote, is_outermost: bool) -> PerfRecorder | None:
        """The recorder; None outside of the `within` range."""
        if not note.called:
            self._record(note, "called")
        if self._within is not None and not is_outermost and not self._open_within:
            return None
        if not note.recorded:
            self._record(note, "recorded")
        return self._core or self._make_core()

    def _count_within(self, step: int) -> None:
        with self._lock:
            self._open_within += step

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held it

    # ---- the recorder ----

    def _make_core(self) -> PerfRecorder:
        """The recorder, made with the first range: by then the script has made its own, if it has one."""
        with self._lock:
            if self._core is None:
                name = self.annotations.recorder or default_recorder() or DEFAULT_RECORDER
                core = PerfRecorder(name)
                atexit.register(self._finalize)  # registered after the journal's, so it runs first
                self._core = core  # last: other threads read it without the lock
            return self._core

    def _finalize(self) -> None:
        with suppress(RecorderError):  # the journal names what is open
            if self._core is not None:
                self._core.finalize()

    # ---- notes for the launcher ----

    def _record(self, note: FunctionNote, what: str) -> None:
        """Set a field of the note. A forked child writes it immediately, for it may be killed at any time."""
        setattr(note, what, True)
        if os.getpid() != self._pid:
            self._write(f"annotations_{os.getpid()}.json")

    def _write_at_exit(self) -> None:
        with own_work.thread:
            if os.getpid() == self._pid and (not self._is_child or any(note.imported for note in self._notes())):
                self._write(f"annotations_{self._pid}.json" if self._is_child else NOTES_NAME)

    def _notes(self) -> list[FunctionNote]:
        more = (note for note in (self.torch_note, self.collectives_note) if note is not None)
        return [*(target.note for target in self.targets), *more]

    def _write(self, name: str) -> None:
        notes = self._notes()
        for note in notes:
            note.compiled = note.function in compiled_code.functions
        path = os.path.join(self._folder, name)  # noqa: PTH118 - the script may have changed pathlib
        try:
            with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump([note.to_json() for note in notes], file, indent=2)
                file.write("\n")
            os.replace(f"{path}.new", path)  # noqa: PTH105
        except OSError:
            pass  # the launcher reports the missing notes
