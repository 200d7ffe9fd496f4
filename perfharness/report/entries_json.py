"""A table of entries as JSON, a piece at a time: the bytes of `json.dump(tree, indent=2)` without the tree.

Rows that look alike (the same numbers, the same depth, as many brackets closed before them) are made from one template,
whose gaps are filled in Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfharness.analysis.keys import group_rows
from perfharness.model.result import NO_INDEX, EntryTable, Float64, NumberColumn
from perfharness.model.trace import Bool, Int64

ROWS_A_PIECE = 1 << 15
INDENT = "  "
SCALE = 1_000_000
LONGEST_PLAIN = 1e15
"""A number with fewer digits than this, counted in millionths, is the shortest text of itself."""

SHORTEST_PLAIN = 100
"""A number of fewer millionths than this is written with an exponent."""


def write_entries(table: EntryTable, level: int = 0) -> Iterator[bytes]:
    """The JSON object, in pieces. `level`: how deep it stands in the file, which its lines are indented by."""
    if not len(table):
        yield b"{}"
        return
    keys = _Keys(table)
    has_numbers = np.zeros(len(table), dtype=np.bool_)
    for column in table.numbers:
        has_numbers[column.rows] = True
    yield b"{"
    for begin in range(0, len(table), ROWS_A_PIECE):
        yield _piece(table, keys, has_numbers, begin, min(begin + ROWS_A_PIECE, len(table)), level)
    last = int(table.depth[-1])
    yield f"{_closing(last, -1, level, empty=not has_numbers[-1])}\n{INDENT * level}}}".encode()


class _Keys:
    """Keys of rows as they stand in the file, quotation marks left out."""

    def __init__(self, table: EntryTable) -> None:
        self._table = table
        used, self._code = np.unique(table.name, return_inverse=True)
        escaped = [json.dumps(table.names[code], ensure_ascii=False)[1:-1] for code in used.tolist()]
        self._names = pa.array(escaped, pa.string())

    def of(self, rows: Int64) -> pa.Array:
        names = self._names.take(pa.array(self._code[rows]))
        index = self._table.index[rows]
        is_plain = index == NO_INDEX
        if is_plain.all():
            return names
        numbered = pc.binary_join_element_wise(names, pa.array(index).cast(pa.string()), "_")
        return pc.if_else(pa.array(is_plain), names, numbered)


def _piece(table: EntryTable, keys: _Keys, has_numbers: Bool, begin: int, stop: int, level: int) -> bytes:
    depth = table.depth[begin:stop]
    before = np.r_[table.depth[begin - 1] if begin else -1, depth[:-1]]
    follows_numbers = np.r_[has_numbers[begin - 1] if begin else False, has_numbers[begin : stop - 1]]
    there = _which_numbers(table, begin, stop)
    looks = group_rows(*np.packbits(there, axis=0).astype(np.int64), depth, before, follows_numbers.astype(np.int64))
    made, places = [], []
    for look, example in enumerate(looks.first.tolist()):
        at = np.flatnonzero(looks.code == look)
        head = _head(int(before[example]), int(depth[example]), bool(follows_numbers[example]), level)
        numbers = [column for column, has in zip(table.numbers, there[:, example], strict=True) if has]
        made.append(_rows(head, keys.of(at + begin), numbers, at + begin, INDENT * (level + int(depth[example]) + 2)))
        places.append(at)
    order = np.empty(stop - begin, dtype=np.int64)
    order[np.concatenate(places)] = np.arange(stop - begin)
    return _joined(pa.concat_arrays(made).take(pa.array(order)))


def _which_numbers(table: EntryTable, begin: int, stop: int) -> Bool:
    """For each column, in which of these rows it stands."""
    there = np.zeros((len(table.numbers), stop - begin), dtype=np.bool_)
    for number, column in enumerate(table.numbers):
        first, last = np.searchsorted(column.rows, (begin, stop))
        there[number, column.rows[first:last] - begin] = True
    return there


def _head(before: int, depth: int, follows_numbers: bool, level: int) -> str:
    """What stands between the row before and the key of a row: closing brackets, a comma, a new line.

    `before` is the depth of the row before; `follows_numbers`: there are numbers in it.
    """
    closing = _closing(before, depth - 1, level, empty=not follows_numbers) if before >= depth else ""
    comma = "," if before >= depth or follows_numbers else ""
    return f'{closing}{comma}\n{INDENT * (level + depth + 1)}"'


def _closing(before: int, until: int, level: int, *, empty: bool) -> str:
    """Brackets that close the rows from depth `before` up to, not with, `until`. `empty`: nothing is in the first."""
    lines = [f"\n{INDENT * (level + depth + 1)}}}" for depth in range(before, until, -1)]
    return "".join(["}", *lines[1:]] if empty else lines)


def _rows(head: str, keys: pa.Array, numbers: list[NumberColumn], rows: Int64, indent: str) -> pa.Array:
    parts: list[Any] = [head, keys]
    between = '": {'
    for position, column in enumerate(numbers):
        comma = "," if position else ""
        parts += [
            f'{between}{comma}\n{indent}"{column.key}": ',
            number_texts(column, column.values[np.searchsorted(column.rows, rows)], indent),
        ]
        between = ""
    parts.append(between)
    return pc.binary_join_element_wise(*parts, "")


def number_texts(column: NumberColumn, values: Float64, indent: str = "") -> pa.Array:
    """Numbers as JSON has them: `repr` of a float, the digits of an integer, true and false, null for NaN.

    `indent`: what the line begins with; lists of words stand on several lines.
    """
    if column.kind in ("all", "any"):
        return pc.if_else(pa.array(values > 0), "true", "false")
    if column.kind == "words":
        bits, code = np.unique(values, return_inverse=True)
        lists = [json.dumps(column.words_of(int(one)), indent=2, ensure_ascii=False) for one in bits.tolist()]
        return pa.array([text.replace("\n", f"\n{indent}") for text in lists], pa.string()).take(pa.array(code))
    missing = np.isnan(values)
    known = np.where(missing, 0, values)
    if column.kind == "whole" and (known == np.floor(known)).all():
        texts = pa.array(known.astype(np.int64)).cast(pa.string())
    else:
        texts = _decimals(known, whole=column.kind == "whole")
    return pc.if_else(pa.array(missing), "null", texts) if missing.any() else texts


def _decimals(values: Float64, *, whole: bool) -> pa.Array:
    """Floats with six digits after the point at most. `whole`: without a point where there are none."""
    millionths = np.rint(values * SCALE)
    plain = ((millionths >= SHORTEST_PLAIN) & (millionths < LONGEST_PLAIN)) | ((values == 0) & ~np.signbit(values))
    integer, rest = np.divmod(np.where(plain, millionths, 0).astype(np.int64), SCALE)
    digits = pc.utf8_rtrim(pc.utf8_lpad(pa.array(rest).cast(pa.string()), 6, "0"), "0")
    no_digits = pa.array(rest == 0)
    integers = pa.array(integer).cast(pa.string())
    texts = pc.binary_join_element_wise(integers, pc.if_else(no_digits, "0", digits), ".")
    if whole:
        texts = pc.if_else(no_digits, integers, texts)
    odd = np.flatnonzero(~plain)
    if len(odd):
        spelled = [repr(int(value) if whole and value.is_integer() else value) for value in values[odd].tolist()]
        texts = pc.replace_with_mask(texts, pa.array(~plain), pa.array(spelled, pa.string()))
    return texts


def _joined(texts: pa.Array) -> bytes:
    """All texts, one behind the other."""
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(content)[ends[0] : ends[-1]].tobytes()
