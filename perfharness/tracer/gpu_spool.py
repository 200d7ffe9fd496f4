"""Writes CUPTI's full buffers to a file, so that the process's memory does not grow with the run.

A thread polls for buffers that CUPTI returned, writes them and releases their memory. It runs only with CUPTI, holds
no lock, and releases the GIL while it writes. When it is late, or the disk
is full, buffers stay in memory, up to the limit of the pool; from then on CUPTI drops records and counts them.
"""

from __future__ import annotations

import _thread
import contextlib
import mmap
import os
from collections.abc import Iterator

from perfharness.own_file import OwnFile
from perfharness.tracer import native

POLL_S = 0.1
POLLS_OF_EMPTY = 10
"""After so many polls a buffer without a length is an empty one."""

FILE_PREFIX = ".gpu_"
FILE_SUFFIX = ".records"


class GpuSpool:
    """The file of a pool's buffers, in the order in which CUPTI returned them.

    Args:
        pool: whose buffers are written.
        folder: of the file, which is made with the first full buffer.
    """

    def __init__(self, pool: native.BufferPool, folder: str) -> None:
        self.pool = pool
        self._path = f"{folder}/{FILE_PREFIX}{os.getpid()}{FILE_SUFFIX}"
        self._file: OwnFile | None = None
        self._file_bytes = 0
        self._written: list[int] = []  # valid bytes of each buffer in the file
        self._seen = 0
        self._waited = 0
        self._is_full = False
        self._stop = _thread.allocate_lock()
        self._stopped = _thread.allocate_lock()

    def start(self) -> None:
        """Start the thread, unknown to `threading`: scripts may join all threads that it lists."""
        self._stop.acquire()
        self._stopped.acquire()
        _thread.start_new_thread(self._run, ())

    def stop(self, timeout_s: float = -1) -> bool:
        """End the thread; buffers that it has not written stay in memory. Returns whether it ended in time."""
        if not self._stop.locked():
            return True
        self._stop.release()
        return self._stopped.acquire(timeout=timeout_s)

    def _run(self) -> None:
        try:
            while not self._stop.acquire(timeout=POLL_S):
                self.write_full()
        finally:
            self._stopped.release()

    def write_full(self) -> None:
        """Write the buffers that had been returned by the previous call.

        CUPTI's thread counts a buffer before it stores the address, so buffers counted since then wait for the next
        call; so does one without a length, which may not be stored yet.
        """
        ready, self._seen = self._seen, self.pool.completed_count
        for address, valid_bytes in self.pool.completed(len(self._written), ready):
            if self._is_full or not address:
                return
            if not valid_bytes:
                self._waited += 1
                if self._waited < POLLS_OF_EMPTY:
                    return
            self._waited = 0
            try:
                self._append(address, valid_bytes)
            except OSError:
                self._is_full = True
                return
            self.pool.release(address)

    def _append(self, address: int, valid_bytes: int) -> None:
        if self._file is None:
            self._file = OwnFile(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        written, file = 0, self._file.fileno()
        data = native.view(address, valid_bytes)
        while written < valid_bytes:
            written += os.pwrite(file, data[written:], self._file_bytes + written)
        self._file_bytes += valid_bytes
        self._written.append(valid_bytes)

    def total_bytes(self) -> int:
        """Valid bytes of all buffers that CUPTI has returned, written or not."""
        return self._file_bytes + sum(size for _, size in self.pool.completed(len(self._written)))

    def buffers(self) -> Iterator[tuple[int, int]]:
        """`(address, valid bytes)` of every buffer, in order; an address is valid until the next iteration.

        The thread must have ended.
        """
        if self._file is not None and self._file_bytes:
            file = self._file.fileno()
            if os.fstat(file).st_size < self._file_bytes:
                raise OSError(f"{self._path} was cut short")
            with mmap.mmap(file, self._file_bytes, access=mmap.ACCESS_COPY) as held:
                address = native.address_of(held)
                for valid_bytes in self._written:
                    yield address, valid_bytes
                    address += valid_bytes
        yield from self.pool.completed(len(self._written))

    def remove(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108 - no pathlib in what runs before the script
