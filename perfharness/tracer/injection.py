"""Starts CUPTI when the process first uses CUDA, without Python: the driver calls it within cuInit.

CUPTI has threads from its first call on, which a forked child lacks, so a process that has not used CUDA must not have
called it. The driver loads the library that CUDA_INJECTION64_PATH names and calls a function of it; NVTX in C libraries
does the same with NVTX_INJECTION64_PATH. Ours is a shared object of two pages, written here. It jumps to machine code
that makes the calls of a list. The GIL is not needed there: the thread that holds it may be waiting for the driver.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from perfharness.tracer import native
from perfharness.tracer.cupti import Cupti, CuptiError

CUDA_VARIABLE = "CUDA_INJECTION64_PATH"
NVTX_VARIABLE = "NVTX_INJECTION64_PATH"
FILE_PREFIX = ".perfharness_injection_"
"""How the name of the library's file begins; it is removed once it is loaded, and the loader knows it by its name."""

NVTX_FUNCTION = "InitializeInjectionNvtx2"

# begin(void): walks the list, once; nvtx(get_table): the same, then CUPTI's own function of that name
_BEGIN = bytes.fromhex(
    "f30f1efa"  #             endbr64
    "53"  #                   push rbx
    "48b88877665544332211"  # movabs rax, header
    "b901000000"  #           mov ecx, 1
    "48874808"  #             xchg [rax+8], rcx           has begun: atomic
    "4885c9"  #               test rcx, rcx
    "7530"  #                 jne done
    "488b18"  #               mov rbx, [rax]              the first step
    "4885db"  #         step: test rbx, rbx
    "7428"  #                 je done
    "488b7b08"  #             mov rdi, [rbx+8]
    "488b7310"  #             mov rsi, [rbx+16]
    "488b5318"  #             mov rdx, [rbx+24]
    "ff13"  #                 call [rbx]
    "894320"  #               mov [rbx+32], eax           its result
    "c7432401000000"  #       mov dword [rbx+36], 1       it was made
    "85c0"  #                 test eax, eax
    "488b4328"  #             mov rax, [rbx+40]
    "488b5b30"  #             mov rbx, [rbx+48]           the next step where it failed,
    "480f44d8"  #             cmove rbx, rax              or else
    "ebd3"  #                 jmp step
    "b801000000"  #     done: mov eax, 1
    "5b"  #                   pop rbx
    "c3"  #                   ret
)
_NVTX = bytes.fromhex(
    "f30f1efa"  #             endbr64
    "57"  #                   push rdi
    "48b88877665544332211"  # movabs rax, header
    "ff5010"  #               call [rax+16]               begin
    "5f"  #                   pop rdi
    "48b88877665544332211"  # movabs rax, header
    "488b4018"  #             mov rax, [rax+24]           CUPTI's function
    "4885c0"  #               test rax, rax
    "7402"  #                 je none
    "ffe0"  #                 jmp rax
    "31c0"  #           none: xor eax, eax                no tool
    "c3"  #                   ret
)


@dataclass(frozen=True)
class Step:
    """A call of CUPTI. The next step is `then`, or where it fails `otherwise` (None: that is an error, and the end).

    Steps are named by their number in the list; `then` is the following one unless it is given.
    """

    function: str
    arguments: tuple[int, ...] = ()
    then: int | None = None
    otherwise: int | None = None


def make_calls(steps: Sequence[Step], library: Cupti) -> None:
    """Make the calls now; `CuptiError` where one fails that must not."""
    at = 0
    while at < len(steps):
        step = steps[at]
        try:
            library.call(step.function, *map(ctypes.c_uint64, step.arguments))
        except CuptiError:
            if step.otherwise is None:
                raise
            at = step.otherwise
        else:
            at = at + 1 if step.then is None else step.then


class _Header(ctypes.Structure):
    """As the machine code sees it; offsets in bytes: 0, 8, 16, 24."""

    _fields_ = (
        ("first", ctypes.c_uint64),
        ("has_begun", ctypes.c_uint64),
        ("begin", ctypes.c_uint64),
        ("nvtx", ctypes.c_uint64),
    )


class _Call(ctypes.Structure):
    """A step as the machine code sees it; offsets in bytes: 0, 8, 32, 36, 40, 48."""

    _fields_ = (
        ("function", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 3),
        ("result", ctypes.c_int32),
        ("was_made", ctypes.c_uint32),
        ("then", ctypes.c_uint64),
        ("otherwise", ctypes.c_uint64),
    )


class Injection:
    """The calls that the driver makes as the process first uses CUDA. A forked child has a copy of its own.

    Raises:
        OSError: the system does not let this process load or run generated code.
    """

    def __init__(self, steps: Sequence[Step], library: Cupti, folder: str) -> None:
        self._steps, self._library = steps, library
        libc = ctypes.CDLL(None, use_errno=True)
        size = ctypes.sizeof(_Call)
        start = native.map_memory(libc, ctypes.sizeof(_Header) + size * len(steps))
        calls = [start + ctypes.sizeof(_Header) + size * number for number in range(len(steps))] + [0]
        self._calls = [_Call.from_address(address) for address in calls[:-1]]
        for number, (step, call) in enumerate(zip(steps, self._calls, strict=True)):
            call.function = library.address(step.function)
            call.arguments[: len(step.arguments)] = step.arguments
            call.then = calls[number + 1 if step.then is None else step.then]
            call.otherwise = 0 if step.otherwise is None else calls[step.otherwise]
        begin, nvtx = native.load_codes(libc, [(_BEGIN, start), (_NVTX, start)])
        self._header = _Header.from_address(start)
        self._header.first, self._header.begin = calls[0], begin
        self._header.nvtx = library.address(NVTX_FUNCTION) if library.has(NVTX_FUNCTION) else 0
        path = f"{folder}/{FILE_PREFIX}{os.getpid()}.so"
        _load(path, begin, nvtx)
        for name in (CUDA_VARIABLE, NVTX_VARIABLE):  # for C only: the script's `os.environ` is not changed
            libc.setenv(name.encode(), path.encode(), 1)

    @property
    def has_begun(self) -> bool:
        """Whether the calls were made, or are being made."""
        return bool(self._header.has_begun)

    def check(self) -> None:
        """`CuptiError` where a call failed that must not."""
        for step, call in zip(self._steps, self._calls, strict=True):
            if call.was_made and call.result and step.otherwise is None:
                raise self._library.error(step.function, call.result)


def supported() -> bool:
    """Whether there is machine code for this processor."""
    return platform.machine() == "x86_64"


_PAGE = 0x1000
_EXPORTED = ("InitializeInjection", NVTX_FUNCTION, "perfharness_targets")
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _RUN = 4, 2, 1
_TAG_HASH, _TAG_STRINGS, _TAG_SYMBOLS, _TAG_STRINGS_BYTES, _TAG_SYMBOL_BYTES = 4, 5, 6, 10, 11
_HEADER_BYTES, _SEGMENT_BYTES, _SYMBOL_BYTES = 64, 56, 24
_TARGETS = _PAGE + 0x80


def _jump(at: int, slot: int, answer: int) -> bytes:
    """Machine code at this address that jumps to what a slot points to; where that is nothing, it answers."""
    load = b"\xf3\x0f\x1e\xfa" + b"\x48\x8b\x05"  # endbr64; mov rax, [rip+...]
    after = at + len(load) + 4
    rest = "4885c07402ffe0b8"  # test rax, rax; je none; jmp rax; none: mov eax, answer
    return load + struct.pack("<i", slot - after) + bytes.fromhex(rest) + struct.pack("<i", answer) + b"\xc3"


def library_bytes() -> bytes:
    """An x86-64 shared object: two functions that jump to the targets of this process, or answer, where it has none."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in _EXPORTED)
    at_hash = _HEADER_BYTES + 4 * _SEGMENT_BYTES
    at_symbols = at_hash + 32
    at_names = at_symbols + (1 + len(_EXPORTED)) * _SYMBOL_BYTES
    at_code = (at_names + len(names) + 63) // 64 * 64
    code, places = b"", []
    for number, answer in enumerate((1, 0)):
        places.append(at_code + len(code))
        code += _jump(places[-1], _TARGETS + 8 * number, answer).ljust(64, b"\xcc")
    function, data = 0x12, 0x11  # global symbols of these types
    symbols = bytes(_SYMBOL_BYTES)
    for name, place, kind, size in zip(
        _EXPORTED, [*places, _TARGETS], (function, function, data), (64, 64, 16), strict=True
    ):
        symbols += struct.pack("<IBBHQQ", names.index(name.encode() + b"\0"), kind, 0, 1, place, size)
    table = struct.pack("<8I", 1, 4, 1, 0, 2, 3, 0, 0)  # one bucket, of symbols 1, 2, 3
    dynamic = {
        _TAG_HASH: at_hash, _TAG_STRINGS: at_names, _TAG_SYMBOLS: at_symbols, _TAG_STRINGS_BYTES: len(names),
        _TAG_SYMBOL_BYTES: _SYMBOL_BYTES, 0: 0,
    }  # fmt: skip
    writable = b"".join(struct.pack("<QQ", *one) for one in dynamic.items())
    length = _TARGETS + 16 - _PAGE
    segments = [
        (_LOAD, _READ | _RUN, 0, at_code + len(code), _PAGE),
        (_LOAD, _READ | _WRITE, _PAGE, length, _PAGE),
        (_DYNAMIC, _READ | _WRITE, _PAGE, len(writable), 8),
        (_STACK, _READ | _WRITE, 0, 0, 16),
    ]
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    shared_object, x86_64 = 3, 62
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH",
        shared_object,
        x86_64,
        1,
        0,
        _HEADER_BYTES,
        0,
        0,
        _HEADER_BYTES,
        _SEGMENT_BYTES,
        len(segments),
        64,
        0,
        0,
    )
    rows = [
        struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)
        for kind, flags, at, size, align in segments
    ]
    front = b"".join([header, *rows, table, symbols, names])
    return (front.ljust(at_code, b"\0") + code).ljust(_PAGE, b"\0") + writable.ljust(length, b"\0")


def _load(path: str, begin: int, nvtx: int) -> None:
    """Load the library into this process, and have its functions jump to these."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(library_bytes())
        loaded = ctypes.CDLL(path)
    finally:
        os.unlink(path)  # noqa: PTH108 - no pathlib in what runs before the script
    targets = (ctypes.c_uint64 * 2).in_dll(loaded, _EXPORTED[2])
    targets[:] = [begin, nvtx]
