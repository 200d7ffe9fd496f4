"""Where this interpreter keeps what the sampler reads: offsets, found by looking for known values in this process's
own memory.

What cannot be found that way is fixed for a minor version of CPython on 64-bit Linux (`FRAMES`). The result is checked
against Python's own account of a stack before anything relies on it (`reader.check`).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from types import CodeType
from typing import Any

VERSION: tuple[int, int] = sys.version_info[:2]

FRAMES: dict[tuple[int, int], tuple[str, list[str]]] = {
    (3, 10): ("<24xQQ56xi", ["previous", "code", "instruction"]),
    (3, 11): ("<32xQ8xQQ", ["code", "previous", "instruction"]),
    (3, 12): ("<QQ40xQ6xB", ["code", "previous", "instruction", "owner"]),
    (3, 13): ("<QQ40xQ6xB", ["code", "previous", "instruction", "owner"]),
}
"""A frame as a `struct`, and what its values are; of 3.10 the frame object."""

FRAME_OF_OBJECT = 24
"""Of a frame object (3.11 and later), its frame."""

FIRST_IN_CFRAME = {(3, 11): 8, (3, 12): 0}
"""Versions in which a thread's frame stands in a structure on the C stack, and where in it."""

UNUSED_FLAGS = 0x60000000
"""Of a code object: no version of Python has a meaning for them."""

NEXT_THREAD = 8
"""Of a thread's state, the next older one; the next newer one stands at 0."""

THREAD_BYTES, PTHREAD_BYTES, RUNTIME_BYTES = 512, 2304, 1 << 20
"""As far as is searched."""


class LayoutError(Exception):
    """The interpreter is not laid out as the sampler could read it; the message says what was not found."""


def find_layout(memory: int) -> dict[str, Any]:
    """All offsets and addresses, as plain JSON.

    Args:
        memory: open file of this process's memory.

    Raises LayoutError.
    """
    if VERSION not in FRAMES or sys.implementation.name != "cpython" or sys.maxsize < 1 << 32:
        raise LayoutError(f"Python {sys.version.split()[0]} is not one whose memory is known")
    if getattr(sys, "_is_gil_enabled", lambda: True)() is False or (hasattr(sys, "abiflags") and "t" in sys.abiflags):
        raise LayoutError("Python without the interpreter lock is laid out in another way")
    thread = current_thread_state()
    return {
        "version": list(VERSION),
        "thread": oldest_thread_state(memory, thread),
        **_thread_offsets(memory, thread),
        "frame": FRAMES[VERSION],
        "code": _code_offsets(memory),
        "code_type": id(CodeType),
        "instructions": CodeType.__basicsize__,
        "ascii_header": sys.getsizeof("") - 1,
        "unicode_header": sys.getsizeof("\u0100") - 4,
        "bytes_header": bytes.__basicsize__ - 1,
        "gil": _find_gil(memory, thread),
    }


def current_thread_state() -> int:
    """Address of the calling thread's state."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", ctypes.pythonapi))
    return int(get())


def oldest_thread_state(memory: int, thread: int) -> int:
    """Address of the state of the thread that lives longest, the main one: newer ones stand before it."""
    while following := _integer(os.pread(memory, 8, thread + NEXT_THREAD)):
        thread = following
    return thread


def slot_offset(memory: int, instance: object, value: object) -> int:
    """Where an object keeps the reference to another; the first place. Raises LayoutError."""
    return _offset_of(os.pread(memory, type(instance).__basicsize__, id(instance)), id(value), "a slot")


def _thread_offsets(memory: int, thread: int) -> dict[str, Any]:
    words = os.pread(memory, THREAD_BYTES, thread)
    ident, tid = threading.get_ident(), threading.get_native_id()
    found: dict[str, Any] = {"ident": _offset_of(words, ident, "the thread's ident"), "cframe": -1, "first": 0}
    pthread = os.pread(memory, PTHREAD_BYTES, ident)
    candidates = [at for at in range(0, len(pthread) - 3, 4) if _integer(pthread[at : at + 4]) == tid]
    if not candidates:
        raise LayoutError("the thread's id is not in its descriptor")
    found["tid"] = candidates[0]
    frame_object = id(sys._getframe())
    words = os.pread(memory, THREAD_BYTES, thread)
    if VERSION < (3, 11):
        found["current"] = _offset_of(words, frame_object, "the thread's frame")
        return found
    frame = _integer(os.pread(memory, 8, frame_object + FRAME_OF_OBJECT))
    first = FIRST_IN_CFRAME.get(VERSION)
    if first is None:
        found["current"] = _offset_of(words, frame, "the thread's frame")
        return found
    for at in range(0, len(words) - 7, 8):
        pointer = _integer(words[at : at + 8])
        if pointer % 8 or not 1 << 12 < pointer < 1 << 56:
            continue
        try:
            # In here, for the frame of a function that is called would be the current one.
            current = os.pread(memory, 8, pointer + first)
        except OSError:
            continue
        if int.from_bytes(current, "little") == frame:
            return {**found, "cframe": at, "current": first}
    raise LayoutError("the thread's frame was not found")


def _code_offsets(memory: int) -> dict[str, int]:
    """Offsets in a code object, whose contents are made to be unmistakable."""
    texts = {"filename": "perfharness file".upper(), "name": "perfharness name".upper()}
    made: dict[str, Any] = {"co_filename": texts["filename"], "co_name": texts["name"], "co_firstlineno": 123456789}
    made["co_flags"] = find_layout.__code__.co_flags | UNUSED_FLAGS
    if sys.version_info >= (3, 11):
        made |= {"co_name": "perfharness", "co_qualname": texts["name"]}
    code = find_layout.__code__.replace(**made)
    words = os.pread(memory, CodeType.__basicsize__, id(code))
    name = getattr(code, "co_qualname", code.co_name)
    numbers = {_integer(words[at : at + 4]): at for at in range(0, len(words) - 3, 4)}
    if 123456789 not in numbers or made["co_flags"] not in numbers:
        raise LayoutError("the first line of a code object, or its flags, were not found")
    return {
        "filename": _offset_of(words, id(code.co_filename), "a code object's file"),
        "name": _offset_of(words, id(name), "a code object's name"),
        "lines": _offset_of(words, id(code.co_linetable), "a code object's lines"),
        "first_line": numbers[123456789],
        "flags": numbers[made["co_flags"]],
    }


def _find_gil(memory: int, thread: int) -> int:
    """Address of the interpreter lock, which begins with the switch interval, its last holder (this thread), and
    whether it is held (not while this reads); 0 where it is not found.
    """
    try:
        runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    except ValueError:
        return 0
    try:
        content = os.pread(memory, RUNTIME_BYTES, runtime)  # as far as it is mapped
    except OSError:
        return 0
    interval = round(sys.getswitchinterval() * 1e6)
    pattern = interval.to_bytes(8, "little") + thread.to_bytes(8, "little")
    at = content.find(pattern)
    return runtime + at if at >= 0 and content.find(pattern, at + 1) < 0 else 0


def _offset_of(words: bytes, value: int, what: str) -> int:
    for at in range(0, len(words) - 7, 8):
        if _integer(words[at : at + 8]) == value:
            return at
    raise LayoutError(f"{what} was not found")


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little")
