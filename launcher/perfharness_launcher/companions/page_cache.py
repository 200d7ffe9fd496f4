"""Drop files from the page cache, so that a process starts as after a boot; and find the files of a process."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

from perfharness.model.cold_start import CacheMethod, CacheState
from perfharness_launcher.conditions import Run

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
PERIOD_S = 0.05


def drop_page_cache(files: Collection[Path], drop_caches: Path = DROP_CACHES) -> CacheState:
    """Empty the page cache as far as permitted, and measure what stayed.

    All of it through /proc/sys/vm/drop_caches, which takes root and slows the whole machine for a while; else
    these files alone through posix_fadvise, which leaves what another process has mapped.

    Args:
        files: what the process to be started will read.
    """
    os.sync()  # only clean pages can be dropped
    try:
        drop_caches.write_text("3\n", encoding="ascii")
        method: CacheMethod = "drop_caches"
    except OSError as error:
        refusal = f"{drop_caches}: {error.strerror}"
        if not files:
            return CacheState(reason=f"not permitted ({refusal}), and which files the process reads is not known")
        advised = sum(_advise(file) for file in files)
        if not advised:
            return CacheState(reason=f"not permitted ({refusal}; posix_fadvise: no file could be opened)")
        method = "fadvise"
    return _cache_state(files, method)


def _advise(file: Path) -> bool:
    try:
        with _opened(file) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _cache_state(files: Collection[Path], method: CacheMethod) -> CacheState:
    total = checked = resident = 0
    for file in files:
        with contextlib.suppress(OSError):
            size = file.stat().st_size
            total += size
            found = resident_bytes(file)
            if found is not None:
                checked += size
                resident += found
    return CacheState(
        method=method,
        files=len(files),
        bytes=total,
        checked_bytes=checked,
        resident_share=min(1.0, resident / checked) if checked else None,
    )


def resident_bytes(file: Path) -> int | None:
    """How much of a file is in the page cache; None where the kernel does not report it.

    Since Linux 5.2 mincore reports the truth only of files that the asker owns or may write to (mincore(2)).
    """
    status = file.stat()
    if status.st_uid != os.geteuid() and not os.access(file, os.W_OK):
        return None
    if not status.st_size:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    pages = (status.st_size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    seen = (ctypes.c_ubyte * pages)()
    with _opened(file) as descriptor:
        address = libc.mmap(None, status.st_size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        failed = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(status.st_size), seen)
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(status.st_size))
    return None if failed else sum(page & 1 for page in seen) * mmap.PAGESIZE


@contextlib.contextmanager
def files_in_use(run: Run, into: set[Path], period_s: float = PERIOD_S) -> Iterator[None]:
    """Note which files the measured processes, and what they start, have mapped or open.

    A file that is opened, read and closed between two polls is missed, and then not dropped by name.
    """
    pids: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(period_s):
            for pid in pids:
                for member in (pid, *_children(pid)):
                    into.update(files_of(member))

    thread = threading.Thread(target=watch, name="perfharness-files", daemon=True)
    thread.start()
    run.started.append(lambda process: pids.append(process.pid))
    yield
    is_over.set()
    thread.join()


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def files_of(pid: int) -> set[Path]:
    """Regular files that a process has mapped or open; empty where it has ended."""
    names: set[str] = set()
    with contextlib.suppress(psutil.Error, OSError):
        names.update(file.path for file in psutil.Process(pid).open_files())
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")  # psutil reads smaps, which holds the process up
        names.update(fields[5] for line in maps.splitlines() if len(fields := line.split(maxsplit=5)) == 6)
    return {Path(name) for name in names if name.startswith("/") and Path(name).is_file()}
