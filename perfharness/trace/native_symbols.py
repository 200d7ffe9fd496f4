"""Names of the native functions that were sampled, from the symbols of the libraries that they are in.

They are looked up where the program ran, once, and kept next to the samples (`keep_symbols`), for a library may be
another one later, or elsewhere. Without that file they are looked up when they are read, in files that are still the
same by size and time.
"""

from __future__ import annotations

import ctypes
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.demangle import Demangler
from perfharness.files import read_regular
from perfharness.host_probe.perf_events import code_maps
from perfharness.model.columns import Int64

FILE_NAME = "native_symbols.json"

RESOLVED = (
    "memcpy", "memmove", "mempcpy", "memset", "memcmp", "memchr", "memrchr", "rawmemchr", "strlen", "strnlen", "strcpy",
    "strncpy", "stpcpy", "strcat", "strcmp", "strncmp", "strcasecmp", "strchr", "strchrnul", "strrchr", "strspn",
    "strcspn", "strstr", "wcslen", "wmemset", "wmemcmp", "wcschr",
)  # fmt: skip
"""Functions of the C library that have an implementation for each kind of CPU, without a symbol of its own."""
RESOLVED_BYTES = 2048
"""As far as such an implementation may reach."""

_PROGRAM_HEADER = np.dtype(
    [("type", "<u4"), ("flags", "<u4"), ("offset", "<u8"), ("address", "<u8"), ("physical", "<u8"), ("size", "<u8"),
     ("in_memory", "<u8"), ("align", "<u8")]
)  # fmt: skip
_SECTION = np.dtype(
    [("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"), ("size", "<u8"),
     ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8")]
)  # fmt: skip
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("address", "<u8"), ("size", "<u8")]
)
_LOADED, _SYMBOLS, _DYNAMIC_SYMBOLS, _FUNCTION = 1, 2, 11, 2


@dataclass(frozen=True)
class FileIdentity:
    """What a file was when it was sampled."""

    size: int
    changed_ns: int


class FunctionNames:
    """Names of functions by library and offset in its file."""

    def __init__(self, files: Mapping[str, FileIdentity], kept: Mapping[str, Mapping[str, list[int]]]) -> None:
        self._files = files
        self._kept = kept
        self._demangler = Demangler()

    def names(self, path: str, offsets: Int64) -> list[str]:
        """The function at each offset, "" where the library's symbols have none."""
        kept = self._kept.get(path)
        if kept is not None:
            at = {offset: name for name, of_name in kept.items() for offset in of_name}
            return [at.get(offset, "") for offset in offsets.tolist()]
        if not self._is_same(path):
            return [""] * len(offsets)
        try:
            found = _functions_at(Path(path), offsets)
        except (OSError, ValueError, IndexError):
            return [""] * len(offsets)
        return [self._demangler.demangled(name) for name in found]

    def _is_same(self, path: str) -> bool:
        identity = self._files.get(path)
        try:
            status = Path(path).stat()
        except (OSError, ValueError):
            return False
        return identity == FileIdentity(status.st_size, status.st_mtime_ns)


def kept_symbols(folder: Path) -> dict[str, dict[str, list[int]]]:
    """What `keep_symbols` kept, by library and function; empty where it kept nothing."""
    try:
        content = json.loads(read_regular(folder / FILE_NAME, follow=False))
        return {
            str(path): {str(name): [int(offset) for offset in offsets] for name, offsets in names.items()}
            for path, names in content.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_symbols(folder: Path, sampled: Iterable[tuple[str, Int64]], names: FunctionNames) -> None:
    """Keep the names of the functions at these offsets of libraries. Raises OSError."""
    found: dict[str, dict[str, list[int]]] = {}
    for path, offsets in sampled:
        of_library = found.setdefault(path, {})
        for offset, name in zip(offsets.tolist(), names.names(path, offsets), strict=True):
            if name:
                of_library.setdefault(name, []).append(offset)
    (folder / FILE_NAME).write_text(json.dumps(found))


def _functions_at(path: Path, offsets: Int64) -> list[str]:
    """The function at each offset of an ELF file, "" where none is known.

    Raises OSError, or ValueError where the file is none.
    """
    content = np.memmap(path, np.uint8, "r")
    if len(content) < 64 or bytes(content[:6]) != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits, little-endian")
    programs = _table(content, _PROGRAM_HEADER, *_integers(content, (32, 8), (56, 2)))
    sections = _table(content, _SECTION, *_integers(content, (40, 8), (60, 2)))
    tables = [one for kind in (_SYMBOLS, _DYNAMIC_SYMBOLS) for one in sections[sections["type"] == kind]]
    if not tables:
        return [""] * len(offsets)
    table = tables[0]
    symbols = _table(content, _SYMBOL, int(table["offset"]), int(table["size"]) // _SYMBOL.itemsize)
    symbols = symbols[((symbols["info"] & 15) == _FUNCTION) & (symbols["section"] > 0) & (symbols["address"] > 0)]
    symbols = symbols[np.argsort(symbols["address"], kind="stable")]
    texts = sections[int(table["link"])]
    names = bytes(content[int(texts["offset"]) : int(texts["offset"]) + int(texts["size"])])
    resolved = _resolved(path)
    starts = symbols["address"].astype(np.int64)
    found = []
    for offset, address in zip(offsets.tolist(), _addresses(programs, offsets).tolist(), strict=True):
        name, start = _covering(symbols, starts, names, address) if address >= 0 else ("", -1)
        if not name:
            name = _nearest(resolved, offset, starts_at=offset - (address - start))
        found.append(name)
    return found


def _covering(symbols: npt.NDArray[Any], starts: Int64, names: bytes, address: int) -> tuple[str, int]:
    """The function that an address is in, "" for none, and where the last one before the address starts."""
    after = int(np.searchsorted(starts, address, side="right"))
    if not after:
        return "", -1
    start = int(starts[after - 1])
    first = int(np.searchsorted(starts, start))
    end = int(starts[after]) if after < len(starts) else address + 1
    covering = [one for one in symbols[first:after] if address < start + int(one["size"] or end - start)]
    texts = [names[(at := int(one["name"])) : names.index(b"\0", at)].decode(errors="replace") for one in covering]
    # Of several names of one function, the one that a person would use.
    return min(texts, key=lambda text: (len(text) - len(text.lstrip("_")), len(text), text), default=""), start


def _nearest(resolved: list[tuple[int, str]], offset: int, starts_at: int) -> str:
    """The implementation that an offset is in, where no function with a symbol starts between the two."""
    at = bisect_right(resolved, (offset, "\uffff")) - 1
    if at < 0:
        return ""
    start, name = resolved[at]
    return name if start >= starts_at and offset < start + RESOLVED_BYTES else ""


def _resolved(path: Path) -> list[tuple[int, str]]:
    """Where in the C library's file the implementations are that this machine's CPU gets, if that file is this
    process's C library: as the linker resolves them here.
    """
    try:
        maps = [row for row in code_maps(os.getpid()) if row[3] == str(path)]
    except OSError:
        return []
    if not maps or not path.name.startswith("libc."):
        return []
    library, found = ctypes.CDLL(None), dict[int, str]()
    for name in RESOLVED:
        function = getattr(library, name, None)
        address = 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0
        for start, end, offset, _ in maps:
            if start <= address < end:
                found.setdefault(address - start + offset, name)
    return sorted(found.items())


def _addresses(programs: npt.NDArray[Any], offsets: Int64) -> Int64:
    """Addresses as symbols have them, -1 of what is not loaded."""
    found = np.full(len(offsets), -1, dtype=np.int64)
    for one in programs[programs["type"] == _LOADED]:
        start, size, address = int(one["offset"]), int(one["size"]), int(one["address"])
        of_this = (offsets >= start) & (offsets < start + size)
        found[of_this] = offsets[of_this] - start + address
    return found


def _table(content: npt.NDArray[np.uint8], row: np.dtype[Any], offset: int, count: int) -> npt.NDArray[Any]:
    return np.frombuffer(bytes(content[offset : offset + count * row.itemsize]), row)


def _integers(content: npt.NDArray[np.uint8], *places: tuple[int, int]) -> list[int]:
    return [int.from_bytes(bytes(content[at : at + length]), "little") for at, length in places]
