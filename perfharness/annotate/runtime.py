"""State shared by the annotated functions of a process: the recorder, the open `within` ranges, a note per function.

Problems are noted for the launcher and never raised into the pipeline.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfharness.annotate.expressions import Target
from perfharness.model.annotations import NOTES_NAME, Annotations, FunctionNote
from perfharness.own_work import own_work

if TYPE_CHECKING:
    from perfharness.annotate.scopes import Scope
    from perfharness.recorder.core import RecorderCore

DEFAULT_RECORDER = "annotated"
"""Used where neither the file nor the script names a recorder."""

TORCH = "torch"


class Runtime:
    """All annotations of this process."""

    def __init__(self, annotations: Annotations, folder: str) -> None:
        self.annotations = annotations
        self.targets = [Target(function) for function in annotations.functions]
        self.torch_note = None if annotations.torch_depth is None else FunctionNote(TORCH)
        self._folder = folder
        self._pid = os.getpid()
        self._core: RecorderCore | None = None
        self._lock = threading.RLock()
        self._within = annotations.within
        self._open_within = 0
        atexit.register(self._write_at_exit)
        os.register_at_fork(after_in_child=self._after_fork)

    # ---- each call ----

    def open(
        self, target: Target, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Scope | None:
        """The range of one call, not yet entered; None where the call is not recorded or is `own_work`."""
        own = own_work.thread
        if own.busy:
            return None
        own.busy = True
        try:
            return self._open(target, function, args, kwargs)
        finally:
            own.busy = False

    def _open(
        self, target: Target, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Scope | None:
        note = target.note
        if not note.called:
            self._record(note, "called")
        annotation = target.annotation
        is_outermost = annotation.name == self._within
        if self._within is not None and not is_outermost and not self._open_within:
            return None
        if not note.recorded:
            self._record(note, "recorded")
        core = self._core or self._make_core()
        if annotation.is_batch:
            return self._batch_call(core, target, function, args, kwargs, self.enter_within if is_outermost else None)
        if is_outermost:
            return self._within_call(core, annotation.name, self.enter_within)
        return self._stage_call(core, annotation.name)

    def open_module(self, name: str) -> Scope | None:
        """The range of a PyTorch module's forward call; None where it is not recorded."""
        own = own_work.thread
        if own.busy:
            return None
        own.busy = True
        try:
            return self._open_module(name)
        finally:
            own.busy = False

    def _open_module(self, name: str) -> Scope | None:
        note = self.torch_note
        assert note is not None, "PyTorch is only watched with a note"
        if not note.called:
            self._record(note, "called")
        if self._within is not None and not self._open_within:
            return None
        if not note.recorded:
            self._record(note, "recorded")
        core = self._core or self._make_core()
        return self._stage_call(core, name)

    def enter_within(self, step: int) -> None:
        """Count the open `within` ranges; `step` is 1 or -1."""
        with self._lock:
            self._open_within += step

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held it

    # ---- the recorder ----

    def _make_core(self) -> RecorderCore:
        """The recorder, made with the first range: by then the script has made its own, if it has one."""
        with self._lock:
            if self._core is None:
                from perfharness.annotate.scopes import BatchCall, StageCall, WithinCall
                from perfharness.model.conventions import DEFAULT_DOMAIN
                from perfharness.recorder import journal
                from perfharness.recorder.core import claims, core_named

                name = self.annotations.recorder or claims.get(DEFAULT_DOMAIN) or DEFAULT_RECORDER
                core = core_named(name, DEFAULT_DOMAIN)
                journal.register(core, None)
                atexit.register(self._finalize)  # registered after the journal's, so it runs first
                self._stage_call, self._batch_call = StageCall, BatchCall
                self._within_call = WithinCall
                self._core = core  # last: other threads read it without the lock
            return self._core

    def _finalize(self) -> None:
        core = self._core
        if core is None or core.open_ranges():
            return  # the journal names what is open
        from perfharness.recorder import journal

        core.users -= 1
        journal.write()

    # ---- notes for the launcher ----

    def _record(self, note: FunctionNote, what: str) -> None:
        """Set a field of the note. A forked child writes it immediately, for it may be killed at any time."""
        setattr(note, what, True)
        if os.getpid() != self._pid:
            self._write(f"annotations_{os.getpid()}.json")

    def _write_at_exit(self) -> None:
        own = own_work.thread
        own.busy = True
        try:
            if os.getpid() == self._pid:
                self._write(NOTES_NAME)
        finally:
            own.busy = False

    def _write(self, name: str) -> None:
        notes = [target.note for target in self.targets]
        if self.torch_note is not None:
            notes.append(self.torch_note)
        path = os.path.join(self._folder, name)  # noqa: PTH118 - the script may have changed pathlib
        try:
            with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump([note.to_json() for note in notes], file, indent=2)
                file.write("\n")
            os.replace(f"{path}.new", path)  # noqa: PTH105
        except OSError:
            pass  # the launcher reports the missing notes
