"""What the annotated functions of a process share: the recorder, whether it is time to record, and what became of each.

The pipeline is somebody else's: whatever goes wrong here is noted for the launcher, and never raised into it.
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
"""Where neither the file nor the script names a recorder."""

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
        """The range of one call, not yet entered; None where this call is not to be recorded or is `own_work`."""
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
            self._tell(note, "called")
        annotation = target.annotation
        is_outermost = annotation.name == self._within
        if self._within is not None and not is_outermost and not self._open_within:
            return None
        if not note.recorded:
            self._tell(note, "recorded")
        core = self._core or self._make_core()
        if annotation.is_batch:
            return self._batch_of_call(
                core, target, function, args, kwargs, self.enter_within if is_outermost else None
            )
        if is_outermost:
            return self._range_around_all(core, annotation.name, self.enter_within)
        return self._range_of_call(core, annotation.name)

    def open_module(self, name: str) -> Scope | None:
        """The range of a PyTorch module's forward call; None where it is not to be recorded."""
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
        assert note is not None, "nobody watches PyTorch without a note"
        if not note.called:
            self._tell(note, "called")
        if self._within is not None and not self._open_within:
            return None
        if not note.recorded:
            self._tell(note, "recorded")
        core = self._core or self._make_core()
        return self._range_of_call(core, name)

    def enter_within(self, step: int) -> None:
        """Count the ranges that open the time to record; `step` is 1 or -1."""
        with self._lock:
            self._open_within += step

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held it

    # ---- the recorder ----

    def _make_core(self) -> RecorderCore:
        """The recorder, made with the first range: the script then has its own, if it has one."""
        with self._lock:
            if self._core is None:
                from perfharness.annotate.scopes import BatchOfCall, RangeAroundAll, RangeOfCall
                from perfharness.model.conventions import DEFAULT_DOMAIN
                from perfharness.recorder import journal
                from perfharness.recorder.claims import claims
                from perfharness.recorder.core import core_named

                name = self.annotations.recorder or claims.get(DEFAULT_DOMAIN) or DEFAULT_RECORDER
                core = core_named(name, DEFAULT_DOMAIN)
                journal.register(core, None)
                atexit.register(self._finalize)  # after the journal's own, so before it at the end
                self._range_of_call, self._batch_of_call = RangeOfCall, BatchOfCall
                self._range_around_all = RangeAroundAll
                self._core = core  # last, for other threads look at it without the lock
            return self._core

    def _finalize(self) -> None:
        core = self._core
        if core is None or core.open_ranges():
            return  # the journal names what is open
        from perfharness.recorder import journal

        core.users -= 1
        journal.write()

    # ---- what became of it ----

    def _tell(self, note: FunctionNote, what: str) -> None:
        """Note it, the first time. A forked child may leave without a word, so it tells at once."""
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
        path = os.path.join(self._folder, name)  # noqa: PTH118 - the script may have changed much; this needs nothing
        try:
            with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump([note.to_json() for note in notes], file, indent=2)
                file.write("\n")
            os.replace(f"{path}.new", path)  # noqa: PTH105
        except OSError:
            pass  # the launcher finds no notes, and says so
