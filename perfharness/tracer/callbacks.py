"""CUPTI's callbacks as machine code (x86-64) that never calls Python.

CUPTI requests and returns buffers inside the pipeline's CUDA calls, on any thread, holding locks. A
ctypes callback would wait for the GIL there, and deadlock if its holder is inside a CUDA call. These
callbacks hand out and take back slots of a preallocated pool by atomic additions. The clock callback
reads CLOCK_MONOTONIC, as `time.perf_counter_ns` does.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct

_PLACEHOLDER = struct.pack("<Q", 0x1122334455667788)
"""Placeholder of an absolute address in the code."""

_MAP_NORESERVE = 0x4000
_MADV_DONTNEED = 4
_MAP_FAILED = 2**64 - 1
_PAGE_BYTES = 4096
_CODE_BYTES = 128
_RETURN_BYTES = 16


class PoolHeader(ctypes.Structure):
    """Header of the pool, read by the machine code at byte offsets 0, 8, 16, 24, 32 and 40."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("buffer_bytes", ctypes.c_uint64),
        ("capacity", ctypes.c_uint64),
        ("requested", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("returns", ctypes.c_uint64),
    )


# request(uint8_t **buffer, size_t *size, size_t *max_records)
_REQUEST = bytes.fromhex(
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
)
# complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid_size)
_COMPLETE = bytes.fromhex(
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
)
# uint64_t clock(void)
_CLOCK = bytes.fromhex(
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
)


def supported() -> bool:
    """Whether there is machine code for this processor."""
    return platform.machine() == "x86_64"


class BufferPool:
    """Buffers for CUPTI in one reserved address range, each handed out once, in order.

    The memory is zeroed, and allocated page by page when written, so a new buffer causes no stall.

    Args:
        buffer_bytes: size of a buffer.
        capacity: number of buffers; beyond it, CUPTI drops and counts records.

    Raises:
        OSError: the kernel refuses the memory or generated code.
    """

    def __init__(self, buffer_bytes: int, capacity: int) -> None:
        self._buffer_bytes, self._capacity, self._released = buffer_bytes, capacity, 0
        libc = ctypes.CDLL(None, use_errno=True)
        front = -(-(ctypes.sizeof(PoolHeader) + capacity * _RETURN_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
        start = _map_memory(libc, front + buffer_bytes * capacity)
        self.base = start + front
        self._header = PoolHeader.from_address(start)
        self._returns = (ctypes.c_uint64 * (2 * capacity)).from_address(start + ctypes.sizeof(PoolHeader))
        self._header.base, self._header.buffer_bytes, self._header.capacity = self.base, buffer_bytes, capacity
        self._header.returns = ctypes.addressof(self._returns)
        clock_gettime = ctypes.cast(libc.clock_gettime, ctypes.c_void_p).value or 0
        codes = [(_REQUEST, start), (_COMPLETE, start), (_CLOCK, clock_gettime)]
        self.request_address, self.complete_address, self.clock_address = _load_codes(libc, codes)

    @property
    def requested(self) -> int:
        """Number of buffers that CUPTI has requested, including those refused beyond the capacity."""
        return int(self._header.requested)

    @property
    def completed_count(self) -> int:
        """Number of buffers that CUPTI has returned."""
        return min(int(self._header.completed), self._capacity)

    def completed(self) -> list[tuple[int, int]]:
        """Return `(address, valid bytes)` of the returned buffers, in order."""
        places = range(self._released, self.completed_count)
        return [(self._returns[2 * i], self._returns[2 * i + 1]) for i in places]

    def release(self) -> None:
        """Forget returned buffers; free their memory unless CUPTI holds a buffer."""
        self._released = self.completed_count
        if self._released == min(self.requested, self._capacity):
            length = ctypes.c_size_t(self._released * self._buffer_bytes)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(self.base), length, _MADV_DONTNEED)  # zeroes it
            self._header.requested = self._header.completed = self._released = 0

    def close(self) -> None:
        """Refuse further buffers: CUPTI drops its records."""
        self._header.capacity = 0


def _map_memory(libc: ctypes.CDLL, length: int) -> int:
    """Map zeroed memory; return its address. Never freed, because CUPTI may use it until the process ends."""
    libc.mmap.restype = ctypes.c_void_p
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    address = libc.mmap(None, ctypes.c_size_t(length), protection, flags, -1, ctypes.c_long(0))
    if address in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), f"cannot map {length} bytes of memory")
    return int(address)


def _load_codes(libc: ctypes.CDLL, codes: list[tuple[bytes, int]]) -> list[int]:
    """Copy the codes, with their placeholders filled in, to an executable read-only page; return their addresses."""
    page = _map_memory(libc, _PAGE_BYTES)
    addresses = [page + number * _CODE_BYTES for number in range(len(codes))]
    for address, (code, target) in zip(addresses, codes, strict=True):
        filled = code.replace(_PLACEHOLDER, struct.pack("<Q", target))
        ctypes.memmove(address, filled, len(filled))
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE_BYTES), mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), "generated code is not allowed in this process (mprotect)")
    return addresses


def view(address: int, length: int) -> memoryview:
    """Return a view of a returned buffer."""
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")
