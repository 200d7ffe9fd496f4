"""Shared state of one process's annotations: the recorder, open `within` ranges, and a note per annotation.

Problems are noted for the launch and never raised into the pipeline.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfharness.annotate.expressions import Function, Target
from perfharness.errors import RecorderError
from perfharness.model.annotations import Annotations, FunctionNote, notes_name

if TYPE_CHECKING:
    from typing_extensions import Self

    from perfharness.recorder import PerfRecorder

DEFAULT_RECORDER = "annotated"
Count = Callable[[object], int | None]
TORCH = "torch"
COLLECTIVES = "torch.distributed"


class Call:
    """The range around one call or one step of a generator.

    Args:
        block: block of the recorder, or None if the call is not recorded.
        within: open `within` ranges, if this is one of them.
        count: counts the items of a batch from the result.
    """

    __slots__ = ("_block", "_count", "_within")

    def __init__(self, block: Any = None, within: list[None] | None = None, count: Count | None = None) -> None:
        self._block, self._within, self._count = block, within, count

    def __enter__(self) -> Self:
        if self._within is not None:
            self._within.append(None)
        if self._block is not None:
            self._block.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._within is not None:
            self._within.pop()
        if self._block is None:
            return
        if isinstance(error, (StopIteration, StopAsyncIteration)) and hasattr(self._block, "delete_range"):
            self._block.delete_range = True  # the end of a loop is not a batch
            kind = error = trace = None
        try:
            self._block.__exit__(kind, error, trace)
        except RecorderError:  # ranges left open by the function, listed in the recorder's file
            return

    def set_result(self, result: object) -> None:
        """Count the items, if their expression uses the result."""
        if self._count is not None:
            self._block.total_items = self._count(result)


NOT_RECORDED = Call()


class Runtime:
    """Annotations of this process, with the folder for their notes."""

    def __init__(self, annotations: Annotations, folder: str) -> None:
        self.annotations = annotations
        self.targets = [Target(function) for function in annotations.functions]
        self.torch_note = FunctionNote(TORCH)
        self.collectives_note = FunctionNote(COLLECTIVES)
        self._notes = [target.note for target in self.targets]
        self._notes += [self.torch_note] if annotations.torch_depth is not None else []
        self._notes += [self.collectives_note] if annotations.collectives else []
        self._folder = folder
        self._pid = os.getpid()
        self._recorder: PerfRecorder | None = None
        self._is_making = False
        self._lock = threading.RLock()
        self._within: list[None] = []
        atexit.register(self._write)

    def open_call(self, target: Target, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Range of one call of an annotated function."""
        annotation = target.annotation
        within = self._within if annotation.name == self.annotations.within else None
        recorder = self._recording(target.note, is_within=within is not None)
        if recorder is None:
            return NOT_RECORDED
        if not annotation.is_batch:
            return Call(recorder.range(annotation.name), within)
        index, count = next(target.indices), None
        items = annotation.items if isinstance(annotation.items, int) else None
        if target.index is not None:
            given = target.count("index", target.index, function, args, kwargs)
            index = index if given is None else given
        if (expression := target.items) is not None:
            count = functools.partial(target.count, "items", expression, function, args, kwargs)
            if not expression.uses_result:
                items, count = count(), None
        return Call(recorder.batch(index, items, message=annotation.name), within, count)

    def open_range(self, note: FunctionNote, name: str, category: str | None = None) -> Call:
        """Range of a PyTorch call."""
        recorder = self._recording(note)
        return NOT_RECORDED if recorder is None else Call(recorder.range(name, category=category))

    def _recording(self, note: FunctionNote, *, is_within: bool = False) -> PerfRecorder | None:
        """The recorder, or None outside the `within` range."""
        recorded = is_within or self.annotations.within is None or bool(self._within)
        if not note.called or (recorded and not note.recorded):
            note.called, note.recorded = True, recorded
            if os.getpid() != self._pid:
                self._write()  # a forked child may be killed at any time
        return (self._recorder or self._make_recorder()) if recorded else None

    def _make_recorder(self) -> PerfRecorder | None:
        """Create the recorder with the first range, after the script has created its own, if any.

        None while the recorder's imports call annotated functions.
        """
        with self._lock:
            if self._recorder is None and not self._is_making:
                self._is_making = True
                from perfharness.recorder import PerfRecorder, default_recorder

                recorder = PerfRecorder(self.annotations.recorder or default_recorder() or DEFAULT_RECORDER)
                atexit.register(_finalize, recorder)  # registered after the recorder's exit function, so it runs first
                self._recorder = recorder
            return self._recorder

    def _write(self) -> None:
        path = os.path.join(self._folder, notes_name(os.getpid()))  # noqa: PTH118 - the script may have changed pathlib
        with contextlib.suppress(OSError):  # the launch reports missing notes
            with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump([note.to_json() for note in self._notes], file)
            os.replace(f"{path}.new", path)  # noqa: PTH105


def _finalize(recorder: PerfRecorder) -> None:
    with contextlib.suppress(RecorderError):  # its file lists open ranges
        recorder.finalize()
