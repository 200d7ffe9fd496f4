"""Reads threads, stacks and open ranges out of the memory of a process that goes on running meanwhile.

Nothing is stopped and no lock is taken, so what is read may be torn; addresses are checked before they are followed,
and a stack that cannot be read to its end is left out.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

PAGE_BYTES = 4096
MAX_FRAMES = 400
MAX_CODES = 50_000
MAX_THREADS = 4096
MAX_TEXT = 4096
CHECK_ATTEMPTS = 20
CHECK_EVERY_S = 1.0
"""How long a code object of a function is taken for the same at an address. That of a module, or of a class, is freed
as soon as it has run, and one that is still needed may come to stand there."""

OWNED_BY_C = 3

FrameKey = tuple[str, str, int] | tuple[str, str, int, int]
"""Function, file and line; and 1, where it is one that may be suspended (`SUSPENDS`)."""
SUSPENDS = 0x20 | 0x80 | 0x100 | 0x200
"""`CO_GENERATOR`, `CO_COROUTINE`, `CO_ITERABLE_COROUTINE` and `CO_ASYNC_GENERATOR` of `inspect`, which takes long to
import: flags of code whose frames outlive a call."""


OPTIMIZED = 0x1
"""`CO_OPTIMIZED`, of functions only."""


class UnreadableError(Exception):
    """What is at an address is not what was expected there."""


class Memory:
    """The memory of a process, by its open file."""

    def __init__(self, file: int) -> None:
        self.file = file

    def read(self, address: int, length: int) -> bytes:
        """Raises UnreadableError."""
        try:
            data = os.pread(self.file, length, address)
        except (OSError, OverflowError):
            raise UnreadableError from None
        if len(data) != length:
            raise UnreadableError
        return data

    def word(self, address: int) -> int:
        """An unsigned 64-bit number."""
        return int.from_bytes(self.read(address, 8), "little")


class Code:
    """A code object: where it is from, and the line of each instruction."""

    def __init__(
        self, function: str, file: str, first_line: int, line_table: bytes, pointers: tuple[int, ...], flags: int = 0
    ) -> None:
        self.function, self.file, self.first_line = function, file, first_line
        self._may_suspend = (1,) if flags & SUSPENDS else ()
        self.is_function = bool(flags & OPTIMIZED)
        self.pointers = pointers
        self.checked_s = time.monotonic()
        self.frames: dict[int, FrameKey] = {}
        self._starts: list[int] = []
        self._lines: list[int] = []
        template = (lambda: None).__code__
        with_lines: CodeType = template.replace(co_linetable=line_table, co_firstlineno=first_line)
        for start, _, line in with_lines.co_lines():
            self._starts.append(start)
            self._lines.append(first_line if line is None else line)

    def at(self, instruction: int) -> FrameKey:
        """The frame that is at an instruction, a byte offset."""
        frame = self.frames.get(instruction)
        if frame is None:
            position = bisect_right(self._starts, instruction) - 1
            line = self._lines[position] if 0 <= position < len(self._lines) else self.first_line
            frame = self.frames[instruction] = (self.function, self.file, line, *self._may_suspend)
        return frame


class InterpreterReader:
    """Reads the interpreter of one process."""

    def __init__(self, memory: Memory, layout: dict[str, Any]) -> None:
        self.memory = memory
        self._layout = layout
        self._version = tuple(layout["version"])
        form, names = layout["frame"]
        self._frame = struct.Struct(form)
        self._code_at, self._previous_at, self._instruction_at = map(names.index, ("code", "previous", "instruction"))
        self._owner_at = names.index("owner") if "owner" in names else -1
        self._page_mask = -PAGE_BYTES if self._version >= (3, 11) else -1
        self._codes: dict[int, Code] = {}
        self._thread_bytes = max(layout["ident"], layout["cframe"], layout["current"]) + 8

    # ---- threads ----

    def threads(self) -> Iterator[tuple[int, int]]:
        """Address and ident of each thread that runs Python. Raises UnreadableError."""
        thread, left = self._layout["thread"], MAX_THREADS  # the oldest: newer ones stand before it
        while thread and left:
            left -= 1
            words = self.memory.read(thread, self._thread_bytes)
            yield thread, _word(words, self._layout["ident"])
            thread = _word(words, 0)

    def first_frame(self, thread: int) -> int:
        """Of a thread, by its address: the innermost frame's address. Raises UnreadableError."""
        words = self.memory.read(thread, self._thread_bytes)
        if self._layout["cframe"] < 0:
            return _word(words, self._layout["current"])
        cframe = _word(words, self._layout["cframe"])
        return self.memory.word(cframe + self._layout["current"]) if cframe else 0

    def tid(self, ident: int) -> int:
        """The system's id of a thread. Raises UnreadableError."""
        return int.from_bytes(self.memory.read(ident + self._layout["tid"], 4), "little")

    def gil_holder(self) -> int:
        """Address of the thread that holds the interpreter lock; 0: none, or not known. Raises UnreadableError."""
        if not self._layout["gil"]:
            return 0
        words = self.memory.read(self._layout["gil"] + 8, 12)
        return _word(words, 0) if int.from_bytes(words[8:], "little") == 1 else 0

    # ---- frames ----

    def stack(self, frame: int) -> list[FrameKey]:
        """The frames from this one outwards. Raises UnreadableError."""
        found: list[FrameKey] = []
        start, page, size = 0, b"", self._frame.size
        while frame and len(found) < MAX_FRAMES:
            if not start <= frame <= start + len(page) - size:
                start = frame & self._page_mask  # frames of a thread stand close to each other: many in one read
                page = self.memory.read(start, frame + size - start)
            values = self._frame.unpack_from(page, frame - start)
            frame = values[self._previous_at]
            if self._owner_at >= 0 and values[self._owner_at] == OWNED_BY_C:
                continue
            address = values[self._code_at]
            code = self.code(address)
            if self._version < (3, 11):
                instruction = values[self._instruction_at] * 2
            else:
                instruction = values[self._instruction_at] - address - self._layout["instructions"]
            found.append(code.at(instruction))
        return found

    def code(self, address: int) -> Code:
        """The code object at an address. Raises UnreadableError."""
        code = self._codes.get(address)
        now_s = time.monotonic()
        if code is not None and code.is_function and now_s - code.checked_s < CHECK_EVERY_S:
            return code
        offsets = self._layout["code"]
        words = self.memory.read(address, self._layout["instructions"])
        if _word(words, 8) != self._layout["code_type"]:
            raise UnreadableError
        pointers = tuple(_word(words, offsets[name]) for name in ("filename", "name", "lines"))
        if code is not None and code.pointers == pointers:
            code.checked_s = now_s
            return code
        first = offsets["first_line"]
        first_line = int.from_bytes(words[first : first + 4], "little", signed=True)
        flags = int.from_bytes(words[offsets["flags"] : offsets["flags"] + 4], "little")
        table = self._bytes(pointers[2])
        try:
            code = Code(self.text(pointers[1]), self.text(pointers[0]), first_line, table, pointers, flags)
        except (ValueError, SystemError):
            raise UnreadableError from None
        if len(self._codes) >= MAX_CODES:
            self._codes.clear()
        self._codes[address] = code
        return code

    # ---- values ----

    def text(self, address: int) -> str:
        """A str. Raises UnreadableError."""
        header = self.memory.read(address, 40)
        length, state = _word(header, 16), int.from_bytes(header[32:36], "little")
        kind, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if kind not in (1, 2, 4) or not is_compact or length > MAX_TEXT:
            raise UnreadableError
        start = self._layout["ascii_header" if is_ascii else "unicode_header"]
        data = self.memory.read(address + start, length * kind)
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind], "replace")

    def _bytes(self, address: int) -> bytes:
        length = self.memory.word(address + 16)
        if length > 1 << 20:
            raise UnreadableError
        return self.memory.read(address + self._layout["bytes_header"], length)


class RangeReader:
    """Reads which ranges of recorders are open on a thread, off the recorders' own stacks."""

    MAX_DEPTH = 200

    def __init__(self, interpreter: InterpreterReader, slots: dict[str, int]) -> None:
        self._interpreter, self._memory = interpreter, interpreter.memory
        self._slots = slots
        self._stacks: dict[int, dict[tuple[str, int], int]] = {}

    def add(self, ident: int, recorder: str, lane: int, address: int) -> None:
        """Follow a stack of a thread."""
        self._stacks.setdefault(ident, {})[recorder, lane] = address

    def path(self, ident: int) -> tuple[str, ...] | None:
        """The recorder's name and the open ranges from the outermost in; None where nothing is open, or where it is
        not clear which of several asyncio tasks runs.
        """
        found = []
        for (recorder, lane), address in self._stacks.get(ident, {}).items():
            try:
                names = self._open(address)
            except UnreadableError:
                continue
            if names:
                found.append((lane, (recorder, *names)))
        if len(found) > 1 and any(lane for lane, _ in found):
            return None
        return found[0][1] if found else None

    def _open(self, stack: int) -> list[str]:
        slots, memory = self._slots, self._memory
        words = memory.read(stack, slots["stack_bytes"])
        if _word(words, 8) != slots["stack_type"]:
            raise UnreadableError
        node = _word(words, slots["node"])
        names: list[str] = []
        for _ in range(self.MAX_DEPTH):
            words = memory.read(node, slots["node_bytes"])
            if _word(words, 8) != slots["node_type"]:
                raise UnreadableError
            parent = _word(words, slots["parent"])
            if parent == node:
                return names[::-1]
            names.append(self._interpreter.text(_word(words, slots["message"])))
            node = parent
        raise UnreadableError


def _word(words: bytes, at: int) -> int:
    return int.from_bytes(words[at : at + 8], "little")


def check(memory: int, layout: dict[str, Any]) -> bool:
    """Whether the layout gives the stack of a waiting thread as Python itself does."""
    reader = InterpreterReader(Memory(memory), layout)
    go = threading.Event()
    thread = threading.Thread(target=go.wait, daemon=True)
    thread.start()
    try:
        for _ in range(CHECK_ATTEMPTS):
            if _stacks_agree(reader, thread):
                return True
            time.sleep(0.001)  # it is on its way into the wait
        return False
    finally:
        go.set()
        thread.join()


def _stacks_agree(reader: InterpreterReader, thread: threading.Thread) -> bool:
    assert thread.ident is not None
    frame: FrameType | None = sys._current_frames().get(thread.ident)
    expected = []
    while frame is not None:
        code = frame.f_code
        expected.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno))
        frame = frame.f_back
    try:
        state = {ident: address for address, ident in reader.threads()}[thread.ident]
        found = [frame[:3] for frame in reader.stack(reader.first_frame(state))]
        return reader.tid(thread.ident) == thread.native_id and found == expected
    except (UnreadableError, KeyError):
        return False
