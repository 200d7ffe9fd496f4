"""Locate the data in this interpreter that the sampler reads.

Offsets are found by searching memory for known values, except the layout of frames (`FRAMES`). `reader.check` compares
the result with Python's own view of a stack.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from types import CodeType
from typing import Any

VERSION: tuple[int, int] = sys.version_info[:2]

FRAMES = {
    (3, 10): ("<24xQQ56xi6xB", 1, 0),
    (3, 11): ("<32xQ8xQQ5xB", 0, 1),
    (3, 12): ("<QQ40xQ6xB", 0, 1),
    (3, 13): ("<QQ40xQ6xB", 0, 1),
    (3, 14): ("<QQ40xQ10xB", 0, 1),
}
"""A frame on 64-bit Linux as a `struct`, with the indices of code and calling frame; instruction and owner follow. In
3.10 it is the frame object, with a zero byte for the owner. (3.14: from CPython's headers, untested.)
"""

FRAME_OF_OBJECT = 24
"""Offset of the frame in a frame object (3.11 and newer)."""

FIRST_IN_CFRAME = {(3, 11): 8, (3, 12): 0}
"""Versions that keep a thread's frame in a structure on the C stack, and its offset there."""

UNUSED_FLAGS = 0x60000000
"""Code flags unused by all Python versions."""

NEXT_THREAD = 8
"""Offset of the next older thread in a thread state; the next newer one is at 0."""

THREAD_BYTES, PTHREAD_BYTES, RUNTIME_BYTES = 512, 2304, 1 << 20
"""Search limits."""


class LayoutError(Exception):
    """The sampler cannot read this interpreter; the message names the missing part."""


def find_layout(memory: int) -> dict[str, Any]:
    """Find all offsets and addresses in this process's open `memory`, as plain JSON. Raises `LayoutError`."""
    if VERSION not in FRAMES or sys.implementation.name != "cpython" or sys.maxsize < 1 << 32:
        raise LayoutError(f"the memory layout of Python {sys.version.split()[0]} is not supported")
    if getattr(sys, "_is_gil_enabled", lambda: True)() is False or (hasattr(sys, "abiflags") and "t" in sys.abiflags):
        raise LayoutError("Python without the interpreter lock is not supported")
    thread = current_thread_state()
    oldest = thread
    while older := _integer(os.pread(memory, 8, oldest + NEXT_THREAD)):
        oldest = older
    return {
        "thread": oldest,
        **_thread_offsets(memory, thread),
        "frame": FRAMES[VERSION],
        "frames_are_objects": VERSION < (3, 11),
        "code": _code_offsets(memory),
        "code_type": id(CodeType),
        "instructions": CodeType.__basicsize__,
        "text_state": _text_state(memory),
        "ascii_header": sys.getsizeof("") - 1,
        "unicode_header": sys.getsizeof("\u0100") - 4,
        "bytes_header": bytes.__basicsize__ - 1,
        "gil": _find_gil(memory, thread),
    }


def current_thread_state() -> int:
    """Address of the calling thread's state."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
    return int(get())


def slot_offset(memory: int, instance: object, value: object) -> int:
    """Offset of an object's first reference to another. Raises LayoutError."""
    return _offset_of(os.pread(memory, type(instance).__basicsize__, id(instance)), id(value), "a slot")


def _thread_offsets(memory: int, thread: int) -> dict[str, Any]:
    words, ident = os.pread(memory, THREAD_BYTES, thread), threading.get_ident()
    tid, own = threading.get_native_id().to_bytes(4, "little"), _offset_of(words, ident, "the thread's ident")
    found: dict[str, Any] = {"ident": own, "tid_in_pthread": -1, "cframe": -1}
    if VERSION < (3, 11):
        pthread = os.pread(memory, PTHREAD_BYTES, ident)
        found["tid_in_pthread"] = next((at for at in range(0, len(pthread), 4) if pthread[at : at + 4] == tid), -1)
    elif words[own + 8 : own + 12] != tid:
        raise LayoutError("the thread's id was not found")
    frame = id(sys._getframe())
    words = os.pread(memory, THREAD_BYTES, thread)
    if VERSION >= (3, 11):
        frame = _integer(os.pread(memory, 8, frame + FRAME_OF_OBJECT))
    first = FIRST_IN_CFRAME.get(VERSION)
    if first is None:
        return {**found, "current": _offset_of(words, frame, "the thread's frame")}
    for at in range(0, len(words) - 7, 8):
        pointer = _integer(words[at : at + 8])
        if pointer % 8 or not 1 << 12 < pointer < 1 << 56:
            continue
        try:
            # Inline, because a function would have a current frame of its own.
            current = os.pread(memory, 8, pointer + first)
        except OSError:
            continue
        if int.from_bytes(current, "little") == frame:
            return {**found, "cframe": at, "current": first}
    raise LayoutError("the thread's frame was not found")


def _code_offsets(memory: int) -> dict[str, int]:
    """Offsets in a code object, found through unmistakable contents."""
    name, flags, line = "perfharness name".upper(), find_layout.__code__.co_flags | UNUSED_FLAGS, 123456789
    code = find_layout.__code__.replace(co_filename="perfharness file".upper(), co_firstlineno=line, co_flags=flags)
    if sys.version_info >= (3, 11):
        code, name = code.replace(co_name="perfharness", co_qualname=name), "co_qualname"
    else:
        code, name = code.replace(co_name=name), "co_name"
    words = os.pread(memory, CodeType.__basicsize__, id(code))
    numbers = {_integer(words[at : at + 4]): at for at in range(0, len(words) - 3, 4)}
    if line not in numbers or flags not in numbers:
        raise LayoutError("the first line or the flags of a code object were not found")
    return {
        "filename": _offset_of(words, id(code.co_filename), "a code object's file"),
        "name": _offset_of(words, id(getattr(code, name)), "a code object's name"),
        "lines": _offset_of(words, id(code.co_linetable), "a code object's lines"),
        "first_line": numbers[line],
        "flags": numbers[flags],
    }


def _text_state(memory: int) -> int:
    """Position of a str's state bits: its kind (3), whether it is compact, and whether it is ASCII."""
    texts = {"perfharness": 0b11001, "perfharness\xff": 0b01001, "perfharness\u0100": 0b01010}
    for shift in range(28):
        if all(_integer(os.pread(memory, 4, id(text) + 32)) >> shift & 31 == bits for text, bits in texts.items()):
            return shift
    raise LayoutError("the kind of a str was not found")


def _find_gil(memory: int, thread: int) -> int:
    """Address of the interpreter lock, or 0 if not found.

    It starts with the switch interval, the last holder (this thread), and whether it is held (not during this read).
    """
    try:
        runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
        content = os.pread(memory, RUNTIME_BYTES, runtime)  # up to the end of the mapping
    except (ValueError, OSError):
        return 0
    pattern = round(sys.getswitchinterval() * 1e6).to_bytes(8, "little") + thread.to_bytes(8, "little")
    at = content.find(pattern)
    return runtime + at if at >= 0 and content.find(pattern, at + 1) < 0 else 0


def _offset_of(words: bytes, value: int, what: str) -> int:
    for at in range(0, len(words) - 7, 8):
        if _integer(words[at : at + 8]) == value:
            return at
    raise LayoutError(f"{what} was not found")


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little")
