"""Read threads, stacks and open ranges from the memory of a running process.

Nothing is stopped or locked, so data may be inconsistent: reads fail with one of `UNREADABLE`.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

PAGE = 4096
MAX_FRAMES, MAX_CODES, MAX_THREADS, MAX_RANGES = 400, 50_000, 4096, 200
MAX_TEXT, MAX_TABLE = 4096, 1 << 20
SHORT_TEXT = 64
"""Characters read together with the header of a str."""

CHECK_ATTEMPTS = 20
CHECK_EVERY_S = 1.0
"""Time for which a function's code object is assumed to stay at an address. Code of modules and classes is freed."""

OWNED_BY_C = 3
"""Smallest owner of frames without a function."""

SUSPENDS = 0x20 | 0x80 | 0x100 | 0x200
"""`CO_GENERATOR`, `CO_COROUTINE`, `CO_ITERABLE_COROUTINE` and `CO_ASYNC_GENERATOR` of `inspect` (slow to import)."""
OPTIMIZED = 0x1
"""`CO_OPTIMIZED`, set only for functions."""

UNREADABLE = (OSError, ValueError, OverflowError, SystemError, struct.error)
"""Errors for unexpected data at an address."""

FrameKey = tuple[str, str, int] | tuple[str, str, int, int]
"""Function, file and line; followed by 1 if it may suspend (`SUSPENDS`)."""


ThreadState = tuple[int, int, int]
"""A thread that runs Python: address of its state, ident, and system id."""


class Code:
    """A code object: its place, the line of each instruction, and the frames seen, by instruction."""

    def __init__(
        self, pointers: list[int], function: str, file: str, first_line: int, line_table: bytes, flags: int
    ) -> None:
        self.frames: dict[int, Any] = {}
        self.is_function = bool(flags & OPTIMIZED)
        self.pointers = pointers
        self.valid_until_s = 0.0
        self._place, self._first_line = (function, file), first_line
        self._suspends = (1,) if flags & SUSPENDS else ()
        template = (lambda: None).__code__
        with_lines: CodeType = template.replace(co_linetable=line_table, co_firstlineno=first_line)
        lines = [(start, first_line if line is None else line) for start, _, line in with_lines.co_lines()]
        self._starts, self._lines = [start for start, _ in lines], [line for _, line in lines]

    def at(self, instruction: int) -> FrameKey:
        """Frame at an instruction (byte offset)."""
        place = bisect_right(self._starts, instruction) - 1
        line = self._lines[place] if place >= 0 else self._first_line
        return (*self._place, line, *self._suspends)


class InterpreterReader:
    """Reads the interpreter of one process from its open `memory`.

    Args:
        layout: from `layout.find_layout`.
        number: returns the number of a frame.
    """

    def __init__(self, memory: int, layout: dict[str, Any], number: Callable[[FrameKey], Any]) -> None:
        self.memory = memory
        self._layout = layout
        self._number = number
        form, self._code_at, self._previous_at = layout["frame"]
        self._frame = struct.Struct(form)
        self._page_mask = -1 if layout["frames_are_objects"] else -PAGE
        self._codes: dict[int, Code] = {}
        self._frame_at = layout["current"] if layout["cframe"] < 0 else layout["cframe"]
        self._thread = struct.Struct(f"<Q{layout['ident'] - 8}xQQ")
        """The newer thread and both idents (in 3.10 the second is elsewhere)."""

    def threads(self) -> Iterator[ThreadState]:
        """Yield threads that run Python, oldest first, until one is unreadable."""
        memory, in_pthread = self.memory, self._layout["tid_in_pthread"]
        address, size, unpack = self._layout["thread"], self._thread.size, self._thread.unpack
        for _ in range(MAX_THREADS):
            try:
                newer, ident, tid = unpack(os.pread(memory, size, address))
                if in_pthread >= 0:
                    tid = int.from_bytes(os.pread(memory, 4, ident + in_pthread), "little")
            except UNREADABLE:
                return
            if tid:
                yield address, ident, tid
            if not newer:
                return
            address = newer

    def gil_holder(self) -> int:
        """Address of the state of the thread that holds the interpreter lock; 0 for none or unknown."""
        if not self._layout["gil"]:
            return 0
        holder, is_held = struct.unpack("<Qi", os.pread(self.memory, 12, self._layout["gil"] + 8))
        return int(holder) if is_held == 1 else 0

    def stack(self, thread: int) -> list[Any]:
        """Frame numbers of the thread with this state address, innermost first."""
        memory, unpack, size = self.memory, self._frame.unpack_from, self._frame.size
        frame = self._pointer(thread + self._frame_at)
        if frame and self._layout["cframe"] >= 0:
            frame = self._pointer(frame + self._layout["current"])
        now_s = time.monotonic()
        found: list[Any] = []
        start, last, page = 0, -1, b""
        while frame and len(found) < MAX_FRAMES:
            if not start <= frame <= last:  # callers are at slightly lower addresses, so one read covers many
                start, last = frame & self._page_mask, frame
                page = os.pread(memory, frame - start + size, start)
            values = unpack(page, frame - start)
            frame = values[self._previous_at]
            if values[3] >= OWNED_BY_C:
                continue
            address = values[self._code_at] & -8  # 3.14 has a tag in the lowest bits
            code = self._codes.get(address)
            if code is None or code.valid_until_s < now_s:
                code = self._checked(address, code, now_s)
            number = code.frames.get(values[2])
            if number is None:
                number = code.frames[values[2]] = self._number(code.at(self._offset(values[2], address)))
            found.append(number)
        return found

    def _offset(self, instruction: int, code: int) -> int:
        if self._layout["frames_are_objects"]:
            return instruction * 2
        return instruction - code - int(self._layout["instructions"])

    def _checked(self, address: int, code: Code | None, now_s: float) -> Code:
        """The code object at an address; `code` is the previous one there."""
        offsets = self._layout["code"]
        words = os.pread(self.memory, self._layout["instructions"], address)
        if _word(words, 8) != self._layout["code_type"]:
            raise ValueError
        pointers = [_word(words, offsets[name]) for name in ("name", "filename", "lines")]
        if code is None or code.pointers != pointers:
            name, file, lines = pointers
            first_line, flags = (struct.unpack_from("<i", words, offsets[one])[0] for one in ("first_line", "flags"))
            code = Code(pointers, self.text(name), self.text(file), first_line, self._bytes(lines), flags)
            if len(self._codes) >= MAX_CODES:
                self._codes.clear()
            self._codes[address] = code
        code.valid_until_s = now_s + CHECK_EVERY_S if code.is_function else 0.0
        return code

    def text(self, address: int) -> str:
        """Read a str."""
        data = os.pread(self.memory, 40 + SHORT_TEXT, address)
        length, state = struct.unpack_from("<Q8xI", data, 16)
        state >>= self._layout["text_state"]
        kind, is_compact, is_ascii = state & 7, state >> 3 & 1, state >> 4 & 1
        if kind not in (1, 2, 4) or not is_compact or length > MAX_TEXT:
            raise ValueError
        start, size = self._layout["ascii_header" if is_ascii else "unicode_header"], length * kind
        text = data[start : start + size] if start + size <= len(data) else self._read(address + start, size)
        return text.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[kind], "replace")

    def _bytes(self, address: int) -> bytes:
        length = self._pointer(address + 16)
        if length > MAX_TABLE:
            raise ValueError
        return self._read(address + self._layout["bytes_header"], length)

    def _pointer(self, address: int) -> int:
        return _word(self._read(address, 8), 0)

    def _read(self, address: int, length: int) -> bytes:
        data = os.pread(self.memory, length, address)
        if len(data) != length:
            raise ValueError
        return data


class RangeReader:
    """Reads the open recorder ranges of a thread from the recorders' stacks."""

    def __init__(self, interpreter: InterpreterReader) -> None:
        self._interpreter = interpreter
        self._slots: dict[str, int] = {}
        self._stacks: dict[int, dict[tuple[str, int], int]] = {}

    def follow(self, stack: dict[str, Any]) -> None:
        """Follow a stack of a thread: its own (lane 0) or that of an asyncio task."""
        self._slots = stack["slots"]  # offsets and types of stacks and ranges
        self._stacks.setdefault(stack["ident"], {})[stack["recorder"], stack["lane"]] = stack["address"]

    def path(self, ident: int) -> tuple[str, ...] | None:
        """Recorder name and open ranges, outermost first.

        None if nothing is open, or if several asyncio tasks have open ranges: any of them may be running.
        """
        found = []
        for (recorder, lane), address in self._stacks.get(ident, {}).items():
            try:
                names = self._open(address)
            except UNREADABLE:
                continue
            if names:
                found.append((lane, (recorder, *names)))
        if len(found) > 1 and any(lane for lane, _ in found):
            return None
        return found[0][1] if found else None

    def _open(self, stack: int) -> list[str]:
        slots, memory = self._slots, self._interpreter.memory
        words = os.pread(memory, slots["stack_bytes"], stack)
        if _word(words, 8) != slots["stack_type"]:
            raise ValueError
        node, root = _word(words, slots["node"]), _word(words, slots["root"])
        names: list[str] = []
        while node != root:
            words = os.pread(memory, slots["node_bytes"], node)
            if _word(words, 8) != slots["node_type"] or len(names) == MAX_RANGES:
                raise ValueError
            names.append(self._interpreter.text(_word(words, slots["message"])))
            node = _word(words, slots["parent"])
        return names[::-1]


def _word(words: bytes, at: int) -> int:
    return int.from_bytes(words[at : at + 8], "little")


def check(memory: int, layout: dict[str, Any]) -> bool:
    """Whether the layout yields the same stack of a waiting thread as Python itself."""
    try:
        reader = InterpreterReader(memory, layout, lambda frame: frame)
    except UNREADABLE:
        return False
    go = threading.Event()
    thread = threading.Thread(target=go.wait, daemon=True)
    thread.start()
    try:
        for _ in range(CHECK_ATTEMPTS):
            if _stacks_agree(reader, thread):
                return True
            time.sleep(0.001)  # until it waits
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
        [(address, tid)] = [(address, tid) for address, ident, tid in reader.threads() if ident == thread.ident]
        return tid == thread.native_id and [frame[:3] for frame in reader.stack(address)] == expected
    except UNREADABLE:
        return False
