"""CUPTI's callbacks as machine code: a few instructions that never call Python.

CUPTI requests buffers and returns them inside the pipeline's own CUDA calls, on any thread, holding its own locks.
A ctypes callback would wait for the GIL there: a stall at best, a deadlock when the thread that holds the GIL is itself
inside a CUDA call. So the two callbacks only hand out and take back slots of one preallocated pool, by an atomic
addition each, and the clock callback reads CLOCK_MONOTONIC, as `time.perf_counter_ns` does. The assembly is in the
comments; the tests call all three through ctypes.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from dataclasses import dataclass
from typing import Any

_PLACEHOLDER = struct.pack("<Q", 0x1122334455667788)
"""Placeholder of an absolute address in the code."""

_MAP_NORESERVE = 0x4000
_MAP_FAILED = 2**64 - 1
_PAGE_BYTES = 4096
_CODE_ALIGNMENT = 64
_RETURN_BYTES = 16


class PoolHeader(ctypes.Structure):
    """The pool as the machine code sees it; offsets in bytes: 0, 8, 16, 24, 32, 40."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("buffer_bytes", ctypes.c_uint64),
        ("capacity", ctypes.c_uint64),
        ("requested", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("returns", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class _Code:
    """Machine code of the three callbacks for one processor, each with one placeholder."""

    request: bytes
    complete: bytes
    clock: bytes


def _words(*instructions: int) -> bytes:
    """32-bit instructions as little-endian bytes."""
    return struct.pack(f"<{len(instructions)}I", *instructions)


_X86_64 = _Code(
    # request(uint8_t **buffer, size_t *size, size_t *max_records)
    request=bytes.fromhex(
        "f30f1efa"  #             endbr64
        "48b88877665544332211"  # movabs rax, header
        "b901000000"  #           mov ecx, 1
        "f0480fc14818"  #         lock xadd [rax+24], rcx     slot = requested++
        "483b4810"  #             cmp rcx, [rax+16]
        "7319"  #                 jae none                    pool exhausted
        "4c8b4008"  #             mov r8, [rax+8]
        "4c8906"  #               mov [rsi], r8               *size = buffer_bytes
        "490fafc8"  #             imul rcx, r8
        "480308"  #               add rcx, [rax]
        "48890f"  #               mov [rdi], rcx              *buffer = base + slot * buffer_bytes
        "48c70200000000"  #       mov qword [rdx], 0          *max_records = 0: as many as fit
        "c3"  #                   ret
        "31c0"  #           none: xor eax, eax
        "488907"  #               mov [rdi], rax              no buffer: CUPTI drops and counts
        "488906"  #               mov [rsi], rax
        "488902"  #               mov [rdx], rax
        "c3"  #                   ret
    ),
    # complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size)
    complete=bytes.fromhex(
        "f30f1efa"  #             endbr64
        "48b88877665544332211"  # movabs rax, header
        "41b901000000"  #         mov r9d, 1
        "f04c0fc14820"  #         lock xadd [rax+32], r9      entry = completed++
        "4c3b4810"  #             cmp r9, [rax+16]
        "730f"  #                 jae end
        "49c1e104"  #             shl r9, 4
        "4c034828"  #             add r9, [rax+40]
        "498911"  #               mov [r9], rdx               returns[entry] = (buffer, valid_size)
        "4d894108"  #             mov [r9+8], r8
        "c3"  #              end: ret
    ),
    # uint64_t clock(void)
    clock=bytes.fromhex(
        "f30f1efa"  #             endbr64
        "4883ec18"  #             sub rsp, 24
        "bf01000000"  #           mov edi, CLOCK_MONOTONIC
        "4889e6"  #               mov rsi, rsp
        "48b88877665544332211"  # movabs rax, clock_gettime
        "ffd0"  #                 call rax
        "48690424"
        "00ca9a3b"  #             imul rax, [rsp], 1000000000
        "4803442408"  #           add rax, [rsp+8]
        "4883c418"  #             add rsp, 24
        "c3"  #                   ret
    ),
)

_AARCH64 = _Code(
    request=_words(
        0xD503245F,  #          bti c
        0x580002A9,  #          ldr x9, header
        0x9100612A,  #          add x10, x9, #24
        0xC85FFD4B,  #   again: ldaxr x11, [x10]            slot = requested++
        0x9100056C,  #          add x12, x11, #1
        0xC80DFD4C,  #          stlxr w13, x12, [x10]
        0x35FFFFAD,  #          cbnz w13, again
        0xF940092C,  #          ldr x12, [x9, #16]
        0xEB0C017F,  #          cmp x11, x12
        0x54000102,  #          b.hs none                   pool exhausted
        0xF940052C,  #          ldr x12, [x9, #8]
        0xF940012D,  #          ldr x13, [x9]
        0x9B0C356D,  #          madd x13, x11, x12, x13
        0xF900000D,  #          str x13, [x0]               *buffer = base + slot * buffer_bytes
        0xF900002C,  #          str x12, [x1]               *size = buffer_bytes
        0xF900005F,  #          str xzr, [x2]               *max_records = 0: as many as fit
        0xD65F03C0,  #          ret
        0xF900001F,  #    none: str xzr, [x0]               no buffer: CUPTI drops and counts
        0xF900003F,  #          str xzr, [x1]
        0xF900005F,  #          str xzr, [x2]
        0xD65F03C0,  #          ret
        0xD503201F,  #          nop
    )
    + _PLACEHOLDER,  #  header:
    complete=_words(
        0xD503245F,  #          bti c
        0x580001A9,  #          ldr x9, header
        0x9100812A,  #          add x10, x9, #32
        0xC85FFD4B,  #   again: ldaxr x11, [x10]            entry = completed++
        0x9100056C,  #          add x12, x11, #1
        0xC80DFD4C,  #          stlxr w13, x12, [x10]
        0x35FFFFAD,  #          cbnz w13, again
        0xF940092C,  #          ldr x12, [x9, #16]
        0xEB0C017F,  #          cmp x11, x12
        0x54000082,  #          b.hs end
        0xF940152C,  #          ldr x12, [x9, #40]
        0x8B0B118C,  #          add x12, x12, x11, lsl #4
        0xA9001182,  #          stp x2, x4, [x12]           returns[entry] = (buffer, valid_size)
        0xD65F03C0,  #     end: ret
    )
    + _PLACEHOLDER,  #  header:
    clock=_words(
        0xD503245F,  #          bti c
        0xA9BE7BFD,  #          stp x29, x30, [sp, #-32]!
        0x910003FD,  #          mov x29, sp
        0x52800020,  #          mov w0, CLOCK_MONOTONIC
        0x910043E1,  #          add x1, sp, #16
        0x58000129,  #          ldr x9, clock_gettime
        0xD63F0120,  #          blr x9
        0xA94107E0,  #          ldp x0, x1, [sp, #16]
        0x52994002,  #          mov w2, #0xca00
        0x72A77342,  #          movk w2, #0x3b9a, lsl #16   1000000000
        0x9B020400,  #          madd x0, x0, x2, x1
        0xA8C27BFD,  #          ldp x29, x30, [sp], #32
        0xD65F03C0,  #          ret
        0xD503201F,  #          nop
    )
    + _PLACEHOLDER,  # clock_gettime:
)
_CODE_BY_MACHINE = {"x86_64": _X86_64, "aarch64": _AARCH64}


def supported() -> bool:
    """Whether there is machine code for this processor."""
    return platform.machine() in _CODE_BY_MACHINE


def map_memory(libc: ctypes.CDLL, length: int) -> int:
    """Address of new zeroed memory that is never freed: CUPTI may call and write until the process has ended."""
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(
        None,
        ctypes.c_size_t(length),
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE,
        -1,
        ctypes.c_long(0),
    )
    if address in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), f"the system does not give this process {length} bytes of address space")
    return int(address)


def load_codes(libc: ctypes.CDLL, codes: list[tuple[bytes, int]]) -> list[int]:
    """Addresses of the codes, each with its placeholders filled in, in a page that is executable and read-only."""
    page = map_memory(libc, _PAGE_BYTES)
    addresses = []
    offset = 0
    for code, target in codes:
        filled = code.replace(_PLACEHOLDER, struct.pack("<Q", target))
        ctypes.memmove(page + offset, filled, len(filled))
        addresses.append(page + offset)
        offset += -(-len(filled) // _CODE_ALIGNMENT) * _CODE_ALIGNMENT
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE_BYTES), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), "the system does not let this process run generated code (mprotect)")
    return addresses


class BufferPool:
    """Buffers for CUPTI in one reserved stretch of addresses, handed out one after another, each once.

    The memory is zeroed and the kernel backs it page by page as it is written, so a new buffer causes no stall. A
    buffer that was saved to the file releases its memory (`release`), but not its addresses, of which there are many.

    Args:
        buffer_bytes: size of one buffer.
        capacity: most buffers in use at a time; beyond it, CUPTI drops records and counts them.
        addresses: buffers in total; fewer where the system does not reserve so much.

    Raises:
        OSError: the address space or the right to run code is refused.
        KeyError: no machine code for this processor (`supported`).
    """

    def __init__(self, buffer_bytes: int, capacity: int, addresses: int | None = None) -> None:
        code = _CODE_BY_MACHINE[platform.machine()]
        libc = ctypes.CDLL(None, use_errno=True)
        self._libc = libc
        self._places = max(capacity, addresses or 0)
        while True:
            front = -(-(ctypes.sizeof(PoolHeader) + self._places * _RETURN_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
            try:
                start = map_memory(libc, front + buffer_bytes * self._places)
                break
            except OSError:
                if self._places == capacity:
                    raise
                self._places = max(capacity, self._places // 2)
        self.base = start + front
        self.header = PoolHeader.from_address(start)
        self._returns = (ctypes.c_uint64 * (2 * self._places)).from_address(start + ctypes.sizeof(PoolHeader))
        self.header.base, self.header.buffer_bytes, self.header.capacity = self.base, buffer_bytes, capacity
        self.header.returns = ctypes.addressof(self._returns)
        clock_gettime = ctypes.cast(libc.clock_gettime, ctypes.c_void_p).value or 0
        self.request_address, self.complete_address, self.clock_address = load_codes(
            libc, [(code.request, start), (code.complete, start), (code.clock, clock_gettime)]
        )

    @property
    def requested(self) -> int:
        """How many buffers CUPTI has requested; more than it got means that records were dropped."""
        return int(self.header.requested)

    @property
    def completed_count(self) -> int:
        """How many buffers CUPTI has returned."""
        return min(int(self.header.completed), int(self.header.capacity))

    def completed(self, first: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """`(address, valid bytes)` of the buffers that CUPTI has returned, in that order, or of a slice of them."""
        count = self.completed_count if stop is None else stop
        return [(self._returns[2 * i], self._returns[2 * i + 1]) for i in range(first, count)]

    def close(self) -> None:
        """Hand out no more buffers: CUPTI drops its records."""
        self.header.capacity = 0

    def release(self, address: int) -> None:
        """Release the memory of a buffer whose records were saved, and allow CUPTI another one for it."""
        self._libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(self.header.buffer_bytes), mmap.MADV_DONTNEED)
        # A refused request has used up a slot too.
        self.header.capacity = min(self._places, max(int(self.header.capacity), int(self.header.requested)) + 1)


_kept: list[object] = []


def keep(value: ctypes._SimpleCData[Any]) -> int:
    """Address of a value that stays until the process ends: CUPTI may read it at any time."""
    _kept.append(value)
    return ctypes.addressof(value)


def view(address: int, length: int) -> memoryview:
    """The bytes of one returned buffer, not copied."""
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")


def address_of(memory: mmap.mmap) -> int:
    """Address of a writable mapping, valid while it is open."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
