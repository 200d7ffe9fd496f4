"""`requests.parquet`: a row a request; of more than a million the slowest, and a uniform sample.

Until the end the rows are in an unnamed file, for rows in memory would look like a leak of the target in this process.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfharness.load.histogram import Ints
from perfharness.load.windows import NEVER_NS, Done
from perfharness.model.load import REQUESTS_NAME

MOST_ROWS = 1_000_000
SLOWEST = 10_000

_TIMES = ("intended_ns", "ready_ns", "sent_ns", "begun_ns", "done_ns")
_COLUMNS = ("id", "phase", "input", "items", "error", *_TIMES)
_INTENDED, _DONE = _COLUMNS.index("intended_ns"), _COLUMNS.index("done_ns")


class RequestTable:
    """Rows of a run: integers in columns, names as their places in a list, and a random key to sample by."""

    def __init__(
        self, most_rows: int = MOST_ROWS, slowest: int = SLOWEST, seed: int = 0, folder: Path | None = None
    ) -> None:
        """An empty table, whose rows are spooled in `folder`; None: where temporary files are."""
        self.seen = 0
        self._most, self._slowest = most_rows, slowest
        self._names: dict[str, int] = {}
        self._spool = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._spool.close)
        self._rows = 0
        self._random = np.random.default_rng(seed)

    def add(self, phase: str, records: Sequence[Done]) -> None:
        """Rows of a window."""
        if not records:
            return
        rows = [
            (
                one.id, self._place(phase), self._place(one.input), one.items, self._place(one.error), one.intended_ns,
                one.ready_ns, one.sent_ns, one.begun_ns, one.done_ns,
            )
            for one in records
        ]  # fmt: skip
        keys = self._random.integers(np.iinfo(np.int64).max, size=(len(rows), 1))
        self._append(np.hstack([np.array(rows, np.int64), keys]))
        self.seen += len(rows)
        if self._rows > 1.2 * self._most:
            self._thin()

    @property
    def kept(self) -> str | None:
        """Which rows there are, where it is not all of them."""
        if self.seen <= self._most:
            return None
        sample = self._most - self._slowest
        return f"the slowest {self._slowest:,} and a uniform sample of {sample:,} of {self.seen:,} requests"

    def _place(self, name: str | None) -> int:
        return -1 if name is None else self._names.setdefault(name, len(self._names))

    def _append(self, table: Ints) -> None:
        self._spool.write(np.ascontiguousarray(table).tobytes())
        self._rows += len(table)

    def _spooled(self) -> Ints:
        self._spool.seek(0)
        return np.frombuffer(self._spool.read(), np.int64).reshape(-1, len(_COLUMNS) + 1)

    def _thin(self) -> None:
        table = self._spooled()
        latency = np.where(table[:, _DONE] == NEVER_NS, np.iinfo(np.int64).max, table[:, _DONE] - table[:, _INTENDED])
        kept = np.zeros(len(table), bool)
        kept[np.argsort(table[:, -1])[: self._most - self._slowest]] = True
        kept[np.argsort(latency)[-self._slowest :]] = True
        self._spool.seek(0)
        self._spool.truncate()
        self._rows = 0
        self._append(table[kept])

    def write(self, folder: Path) -> None:
        """Write the file. Raises `OSError`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self.seen > self._most:
            self._thin()
        table = self._spooled()
        table = table[np.argsort(table[:, 0])]
        names = pa.array(list(self._names), pa.string())
        columns = {}
        for name, values in zip(_COLUMNS, table.T[: len(_COLUMNS)], strict=True):
            if name in ("phase", "input", "error"):
                columns[name] = names.take(pa.array(values, mask=values < 0))
            else:
                columns[name] = pa.array(values, mask=(values == NEVER_NS) if name in _TIMES else None)
        with (folder / REQUESTS_NAME).open("wb") as file:
            pq.write_table(pa.table(columns), file, compression="zstd")
