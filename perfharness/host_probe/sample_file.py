"""File of a process's samples: append-only chunks, so that a killed process keeps all data up to the last flush.

After `MAGIC` come chunks: kind and length (`CHUNK`), then the payload. Rows refer by number to earlier definitions.
Times are CLOCK_MONOTONIC. Readers skip unknown kinds.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

MAGIC = b"perfharness host samples 2\n"
FILE_PREFIX, FILE_SUFFIX = "host_samples", ".log"
FILE_NAME = FILE_PREFIX + FILE_SUFFIX
"""File of the measured process; files of forked children have the pid in their name (`host_samples_PID.log`)."""

CHUNK = struct.Struct("<II")
META = 1
META_NAMES = ("pid", "interval_ns", "monotonic_ns", "unix_ns")
"""JSON object with these names; the last two are the same moment on both clocks."""
DEFINE = 2
"""JSON object of lists that continue those of earlier chunks: `frames` ([function, file, line], and 1 if it may
suspend, as a coroutine or generator), `stacks` (indices of frames, innermost first) and `stages` (paths, starting with
the recorder's name)."""
SAMPLES = 3
EVENTS = 4
MISSING = 5
"""JSON list of sentences."""
END = 10
"""Empty last chunk, which marks a complete file."""

SAMPLE = struct.Struct("<qiqqqBiii16x")
"""time, thread, length, on CPU, runnable, state, stack, stage, and the thread that held the interpreter lock while this
one was blocked (0 for none)."""
EVENT = struct.Struct("<qqiBi")
"""start, end, thread, kind, detail."""


class SampleFile:
    """Writes the file. Rows are buffered until `flush`."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        os.write(self._file, MAGIC)
        self._samples, self._events = bytearray(), bytearray()
        self._defined: dict[str, list[Any]] = {}
        self._numbers: dict[str, dict[Any, int]] = {"frames": {}, "stacks": {}, "stages": {}}
        self.rows = 0

    def number(self, table: str, value: tuple[Any, ...]) -> int:
        """Number of a frame, stack or stage, defined on first use."""
        numbers = self._numbers[table]
        number = numbers.get(value)
        if number is None:
            number = numbers[value] = len(numbers)
            self._defined.setdefault(table, []).append(value)
        return number

    def sample(self, *row: int) -> None:
        """Add a row of `SAMPLE`."""
        self._samples += SAMPLE.pack(*row)
        self.rows += 1

    def event(self, *row: int) -> None:
        """Add a row of `EVENT`."""
        self._events += EVENT.pack(*row)

    def write_json(self, kind: int, content: object) -> None:
        """Write a chunk of JSON."""
        self._write(kind, json.dumps(content).encode())

    def flush(self) -> None:
        """Write buffered rows."""
        if self._defined:
            self.write_json(DEFINE, self._defined)
            self._defined = {}
        for kind, rows in ((SAMPLES, self._samples), (EVENTS, self._events)):
            if rows:
                self._write(kind, bytes(rows))
                rows.clear()

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        self._write(END, b"")
        os.close(self._file)

    def _write(self, kind: int, payload: bytes) -> None:
        left = memoryview(CHUNK.pack(kind, len(payload)) + payload)
        while left:
            left = left[os.write(self._file, left) :]
