"""Samples of native code: addresses in a process's memory, into functions of libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.host_probe import spool
from perfharness.model.host_samples import Frame, NativeSamples
from perfharness.model.trace import Int64
from perfharness.trace.native_symbols import FileIdentity, FunctionNames, kept_symbols, write_symbols

_ROW = np.dtype([("address", "<u8"), ("pid", "<u4"), ("tid", "<u4"), ("time", "<i8")])
_NO_FILE = -1


class NativeRows:
    """The rows of a folder's files, and what was mapped where in their processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[npt.NDArray[Any]] = []
        self._threads: list[Int64] = []
        self._lengths: list[Int64] = []
        self._of_maps: list[tuple[int, int]] = []
        self._maps: dict[int, list[_Maps]] = {}
        self._files: dict[str, FileIdentity] = {}
        self._libraries: dict[str, int] = {}
        self.missing: dict[str, None] = {}

    def add(self, process: int, payload: memoryview) -> None:
        """Add a chunk of rows; `process` is what threads have above their number. Raises ValueError."""
        rows = np.frombuffer(payload[spool.LENGTH.size :], _ROW)
        (length_ns,) = spool.LENGTH.unpack_from(payload)
        self._rows.append(rows)
        self._threads.append(process | rows["tid"].astype(np.int64))
        self._lengths.append(np.full(len(rows), length_ns, dtype=np.int64))
        self._of_maps.append((process, len(self._maps.get(process, ())) - 1))

    def add_maps(self, process: int, content: dict[str, Any]) -> None:
        """Add what was mapped when the next chunk of rows was written. Raises ValueError, KeyError or TypeError."""
        self._maps.setdefault(process, []).append(_Maps(content["maps"], self._libraries))
        for path, (size, changed_ns) in content["files"].items():
            self._files.setdefault(str(path), FileIdentity(int(size), int(changed_ns)))

    def samples(self) -> NativeSamples | None:
        """All of them; None where there are none."""
        if not self._rows:
            return None
        rows, thread = np.concatenate(self._rows), np.concatenate(self._threads)
        length = np.concatenate(self._lengths)
        library, offset = self._places()
        order = np.lexsort((rows["time"], thread))
        functions, function = self._functions(library, offset)
        return NativeSamples(
            rows["time"].astype(np.int64)[order], thread[order], length[order], function[order], functions
        )

    def keep_symbols(self) -> None:
        """Keep the functions' names in the folder. Raises OSError."""
        if self._rows:
            library, offset = self._places()
            write_symbols(self._folder, self._sampled(library, offset), FunctionNames(self._files, {}))

    def _places(self) -> tuple[Int64, Int64]:
        """The library of each row, an index of `_libraries`, or -1, and the offset in its file."""
        libraries, offsets = [], []
        for rows, (process, number) in zip(self._rows, self._of_maps, strict=True):
            library = np.full(len(rows), _NO_FILE, dtype=np.int64)
            offset = np.zeros(len(rows), dtype=np.int64)
            # What is in none of the maps read before was mapped after, and found by the next reading.
            for maps in self._maps.get(process, [])[max(number, 0) :][:2]:
                left = library == _NO_FILE
                library[left], offset[left] = maps.places(rows["address"][left].astype(np.int64))
            libraries.append(library)
            offsets.append(offset)
        return np.concatenate(libraries), np.concatenate(offsets)

    def _sampled(self, library: Int64, offset: Int64) -> list[tuple[str, Int64]]:
        return [(path, np.unique(offset[library == number])) for path, number in self._libraries.items()]

    def _functions(self, library: Int64, offset: Int64) -> tuple[list[Frame], Int64]:
        names = FunctionNames(self._files, kept_symbols(self._folder))
        numbers = {Frame("", "", 0, is_native=True): 0}
        function = np.zeros(len(library), dtype=np.int64)
        for path, number in self._libraries.items():
            mine = np.flatnonzero(library == number)
            offsets, of_row = np.unique(offset[mine], return_inverse=True)
            frames = [Frame(name, path, 0, is_native=True) for name in names.names(path, offsets)]
            of_offset = np.asarray([numbers.setdefault(frame, len(numbers)) for frame in frames], dtype=np.int64)
            function[mine] = of_offset[of_row] if len(mine) else 0
        return list(numbers), function


class _Maps:
    """What was mapped at a moment, to find which file an address is of."""

    def __init__(self, maps: list[tuple[int, int, int, str]], libraries: dict[str, int]) -> None:
        rows = sorted((int(start), int(end), int(offset), str(path)) for start, end, offset, path in maps)
        self._start, self._end, self._offset = (
            np.asarray([row[column] for row in rows], dtype=np.uint64).astype(np.int64) for column in range(3)
        )
        numbers = [libraries.setdefault(path, len(libraries)) if path else _NO_FILE for *_, path in rows]
        self._library = np.asarray(numbers, dtype=np.int64)

    def places(self, address: Int64) -> tuple[Int64, Int64]:
        """Library and offset of each address, -1 of what is in none."""
        if not len(self._start):
            return np.full(len(address), _NO_FILE, dtype=np.int64), np.zeros(len(address), dtype=np.int64)
        at = np.maximum(np.searchsorted(self._start, address, side="right") - 1, 0)
        is_in = (address >= self._start[at]) & (address < self._end[at])
        library = np.where(is_in, self._library[at], _NO_FILE)
        return library, np.where(is_in, address - self._start[at] + self._offset[at], 0)
