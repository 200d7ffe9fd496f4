"""What the annotations of one process share: the recorder, whether `within` is open, a note for each annotation.

Problems are noted for the launch and never raised into the pipeline.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import operator
import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfharness import compiled_code
from perfharness.annotate.expressions import Expression, Function, Target
from perfharness.errors import RecorderError
from perfharness.model.annotations import Annotations, FunctionNote, notes_name
from perfharness.model.conventions import COMMUNICATION

if TYPE_CHECKING:
    from perfharness.recorder import PerfRecorder

DEFAULT_RECORDER = "annotated"
COUNTS = 1 << 63
TORCH = "torch"
COLLECTIVES = "torch.distributed"


class Call:
    """The range around one call.

    Args:
        block: of the recorder; None: the call is not recorded.
        within: the open `within` ranges, where this is one of them.
        batch: whose items are counted from the result.
    """

    __slots__ = ("_batch", "_block", "_within")

    def __init__(self, block: Any, within: list[None] | None = None, batch: _Batch | None = None) -> None:
        self._block, self._within, self._batch = block, within, batch

    def __enter__(self) -> None:
        if self._within is not None:
            self._within.append(None)
        if self._batch is not None:
            self._block = self._batch.open()
        elif self._block is not None:
            self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._within is not None:
            self._within.pop()
        if self._block is None:
            return
        if self._batch is not None and isinstance(error, (StopIteration, StopAsyncIteration)):
            self._block.delete_range = True  # the end of a loop is not a batch, nor one that failed
            kind = error = trace = None
        with contextlib.suppress(RecorderError):
            self._block.__exit__(kind, error, trace)

    def set_result(self, result: object) -> None:
        """Count the items, where their expression uses the result."""
        if self._batch is not None:
            self._batch.set_result(self._block, result)


class _Batch:
    """Index and items of one call of a batch function."""

    __slots__ = ("_call", "_recorder", "_target")

    def __init__(
        self, recorder: PerfRecorder, target: Target, call: tuple[Function, tuple[Any, ...], dict[str, Any]]
    ) -> None:
        self._recorder, self._target, self._call = recorder, target, call

    def open(self) -> Any:
        target, fixed = self._target, self._target.annotation.items
        items = fixed if isinstance(fixed, int) else None
        if target.items is not None and not target.items.uses_result:
            items = self._count(target.items, "items")
        index = next(target.indices)
        if target.index is not None:
            given = self._count(target.index, "index")
            index = index if given is None else given
        return self._recorder.batch(index, items, message=target.annotation.name).__enter__()

    def set_result(self, block: Any, result: object) -> None:
        expression = self._target.items
        if expression is not None and expression.uses_result:
            block.total_items = self._count(expression, "items", result)

    def _count(self, expression: Expression, what: str, result: object = None) -> int | None:
        try:
            value = operator.index(expression.value(*self._call, result))
            if not (0 if what == "items" else -COUNTS) <= value < COUNTS:
                raise ValueError(f"{value} is not a count")
        except Exception as error:
            note = self._target.note
            note.items_problem = note.items_problem or f"{what} = {expression.text!r}: {type(error).__name__}: {error}"
            return None
        return value


class Runtime:
    """All annotations of this process; `folder`: of the launched process, where the notes go."""

    def __init__(self, annotations: Annotations, folder: str) -> None:
        self.annotations = annotations
        self.targets = [Target(function) for function in annotations.functions]
        self.torch_note = None if annotations.torch_depth is None else FunctionNote(TORCH)
        self.collectives_note = FunctionNote(COLLECTIVES) if annotations.collectives else None
        self._folder = folder
        self._pid = os.getpid()
        self._recorder: PerfRecorder | None = None
        self._lock = threading.Lock()
        self._maker: int | None = None
        self._within: list[None] = []
        atexit.register(self._write)

    def open(self, target: Target, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The range of one call."""
        annotation = target.annotation
        is_within = annotation.name == self.annotations.within
        recorder = self._recording(target.note, is_within=is_within)
        if recorder is None:
            return NOT_RECORDED
        within = self._within if is_within else None
        if annotation.is_batch:
            return Call(None, within, _Batch(recorder, target, (function, args, kwargs)))
        return Call(recorder.range(annotation.name), within)

    def open_module(self, name: str) -> Call:
        """The range of a PyTorch module's forward call."""
        assert self.torch_note is not None
        recorder = self._recording(self.torch_note)
        return NOT_RECORDED if recorder is None else Call(recorder.range(name))

    def open_collective(self, name: str) -> Call:
        """The range of a call of `torch.distributed`."""
        assert self.collectives_note is not None
        recorder = self._recording(self.collectives_note)
        return NOT_RECORDED if recorder is None else Call(recorder.range(name, category=COMMUNICATION))

    def _recording(self, note: FunctionNote, *, is_within: bool = False) -> PerfRecorder | None:
        """The recorder; None outside of the `within` range."""
        recorded = is_within or self.annotations.within is None or bool(self._within)
        if not note.called or (recorded and not note.recorded):
            note.called, note.recorded = True, recorded
            if os.getpid() != self._pid:
                self._write()  # a forked child may be killed at any time
        return (self._recorder or self._make_recorder()) if recorded else None

    def _make_recorder(self) -> PerfRecorder | None:
        """The recorder, made with the first range: by then the script has made its own, if it has one.

        None for functions that its own imports call.
        """
        if self._maker == threading.get_ident():
            return None
        with self._lock:
            if self._recorder is None:
                self._maker = threading.get_ident()
                from perfharness.recorder import PerfRecorder, default_recorder

                recorder = PerfRecorder(self.annotations.recorder or default_recorder() or DEFAULT_RECORDER)
                atexit.register(self._finalize, recorder)  # behind the recorder's own exit function, so it runs first
                self._recorder = recorder
                self._maker = None
            return self._recorder

    def _finalize(self, recorder: PerfRecorder) -> None:
        with contextlib.suppress(RecorderError):  # its file names what is open
            recorder.finalize()

    def _write(self) -> None:
        notes = [*(target.note for target in self.targets), self.torch_note, self.collectives_note]
        for note in filter(None, notes):
            note.compiled = note.function in compiled_code.functions
        path = os.path.join(self._folder, notes_name(os.getpid()))  # noqa: PTH118 - the script may have changed pathlib
        with contextlib.suppress(OSError):  # the launch reports missing notes
            with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump([note.to_json() for note in notes if note is not None], file)
            os.replace(f"{path}.new", path)  # noqa: PTH105


NOT_RECORDED = Call(None)
