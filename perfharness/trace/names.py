"""Distinct strings of a trace, and codes for string ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perfharness.model import nsys_schema as schema
from perfharness.model.columns import Int64, Integers
from perfharness.trace.sqlite import TraceFile

MAX_SPARSE_IDS = 1_000_000
"""Missing string ids (nsys counts from 0) up to which a table by id is faster than a search."""


class NameTable:
    """`values[code]` is the string; -1 stands for none. Equal strings have one code."""

    def __init__(self, ids: Int64, places: Int64, strings: list[str]) -> None:
        """Take the strings, `strings[place]` for each id."""
        self.values: list[str] = []
        self._code_of: dict[str, int] = {}
        codes = self.add(strings)[places]
        order = np.argsort(ids, kind="stable")
        self._ids, self._id_codes = ids[order], codes[order]

    @classmethod
    def read(cls, file: TraceFile) -> NameTable:
        """Read the StringIds table; empty if missing."""
        return cls(*file.strings(schema.TABLE_STRINGS, "id", "value"))

    def add(self, strings: Sequence[str]) -> Int64:
        """Codes of these strings, added if new."""
        new = [self._code_of.setdefault(string, len(self._code_of)) for string in strings]
        self.values.extend(list(self._code_of)[len(self.values) :])
        return np.asarray(new, dtype=np.int64)

    def codes_of_ids(self, ids: Integers) -> Integers:
        """Codes of string ids; -1 for unknown ids."""
        if not len(self._ids) or self._ids[0] < 0 or self._ids[-1] > len(self._ids) + MAX_SPARSE_IDS:
            return np.append(self._id_codes, -1)[find_rows([ids], [self._ids])]
        highest = int(self._ids[-1])
        by_id = np.full(highest + 2, -1, dtype=np.int32)  # last entry: unknown ids
        by_id[self._ids[::-1]] = self._id_codes[::-1]
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) > highest):
            ids = np.where((ids >= 0) & (ids <= highest), ids, np.int64(highest + 1))
        return by_id.take(ids, mode="clip")  # all are in range; this mode avoids a copy


def by_name(names: Sequence[str], codes: Integers, value: Callable[[str], int]) -> Integers:
    """Value (8 bits) of a function of the name for each code; called once per distinct name.

    Args:
        names: by code.
        codes: -1 for no name, passed as an empty string.
        value: the function.
    """
    values = np.zeros(len(names) + 1, dtype=np.int8)  # last entry: code -1
    is_used = values > 0
    is_used[codes] = True
    for code in np.flatnonzero(is_used).tolist():
        values[code] = value(names[code] if code < len(names) else "")
    return values[codes]


def find_rows(keys: Sequence[Integers], table_keys: Sequence[Int64]) -> Int64:
    """First row of a table with the same keys as each row of `keys`, or -1."""
    if not len(table_keys[0]):
        return np.full(len(keys[0]), -1, dtype=np.int64)
    if len(keys[0]) > 1 and all((key == key[0]).all() for key in keys):  # as in most traces
        return np.repeat(find_rows([key[:1] for key in keys], table_keys), len(keys[0]))
    codes: Int64 = np.zeros(len(keys[0]), dtype=np.int64)
    table_codes: Int64 = np.zeros(len(table_keys[0]), dtype=np.int64)
    for key, table_key in zip(keys, table_keys, strict=True):
        known = np.unique(table_key)
        position = np.minimum(np.searchsorted(known, key), len(known) - 1)
        codes = np.where((known[position] == key) & (codes >= 0), codes * len(known) + position, -1)
        table_codes = table_codes * len(known) + np.searchsorted(known, table_key)
    order = np.argsort(table_codes, kind="stable")
    sorted_codes = table_codes[order]
    at = np.minimum(np.searchsorted(sorted_codes, codes), len(order) - 1)
    return np.where(sorted_codes[at] == codes, order[at], -1)


def code_of(names: Sequence[str], name: str) -> int:
    """Code of a name; -2 (used by nothing) if missing."""
    return names.index(name) if name in names else -2
