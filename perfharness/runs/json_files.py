"""JSON results as files; a table of entries that is too long for JSON is in a Parquet file next to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet

from perfharness.files import replacing
from perfharness.model.result import MAX_ENTRIES, NO_INDEX, RANGES_NAME, EntryTable, NumberColumn


def write_json(path: Path, content: Mapping[str, Any], *, follow: bool = True) -> list[Path]:
    """Write a JSON object, in which a value may be a table of entries; returns the files that were written.

    A table with more than `MAX_ENTRIES` is left out; it is written as `ranges.parquet` next to the file, and
    `meta.data_file` names it. Raises `ResultError`, as `replacing` does.
    """
    written = [path]
    table = next((value for value in content.values() if is_long(value)), None)
    if table is not None:
        written.insert(0, path.with_name(RANGES_NAME))
        with replacing(written[0], follow=follow) as temporary:
            pa.parquet.write_table(entry_rows(table), temporary)
        content = {**content, "meta": {**content.get("meta", {}), "data_file": RANGES_NAME}}
    with replacing(path, follow=follow) as temporary:
        temporary.write_bytes(json_bytes(content))
    return written


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """The text of a JSON object, indented, NaN as null. Tables of entries are trees; long ones are left out."""
    trees = {
        key: value.to_tree() if isinstance(value, EntryTable) else value
        for key, value in content.items()
        if not is_long(value)
    }
    try:
        return orjson.dumps(trees, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # integers beyond 64 bits, or text that is no UTF-8, in what a script passed
        plain = json.dumps(trees, default=methodcaller("tolist"))  # NumPy's numbers and arrays
        without_nan = json.loads(plain, parse_constant=lambda name: None)
        return json.dumps(without_nan, indent=2, allow_nan=False).encode() + b"\n"


def is_long(value: Any) -> bool:
    """Whether it is a table of more entries than JSON holds."""
    return isinstance(value, EntryTable) and len(value) > MAX_ENTRIES


def entry_rows(table: EntryTable) -> pa.Table:
    """One row per entry: the row of the entry around it (null for recorders), its depth, its key, then its numbers.

    Entries stand before those inside them; a number that an entry does not have, or that was not measured, is null.
    """
    used, code = np.unique(table.name, return_inverse=True)
    names = pa.array([table.names[name] for name in used.tolist()], pa.string()).take(pa.array(code))
    numbered = pa.compute.binary_join_element_wise(names, pa.array(table.index).cast(pa.string()), "_")
    parent = table.parents()
    by_key: dict[str, list[NumberColumn]] = {}  # batches, and ranges around batches, may each have one of a key
    for column in table.numbers:
        by_key.setdefault(column.key, []).append(column)
    return pa.table(
        {
            "parent": pa.array(parent, mask=parent < 0),
            "depth": pa.array(table.depth),
            "key": pa.compute.if_else(pa.array(table.index == NO_INDEX), names, numbered).dictionary_encode(),
            **{key: _values(columns, len(table)) for key, columns in by_key.items()},
        }
    )


def _values(columns: list[NumberColumn], count: int) -> pa.Array:
    """One number of all entries; no entry is in two of the columns."""
    values, kind = np.full(count, np.nan), columns[0].kind
    for column in columns:
        values[column.rows] = column.values
    missing = np.isnan(values)
    if kind == "labels":
        bits = zip(values.tolist(), missing.tolist(), strict=True)
        lists = [None if gone else columns[0].labels_of(int(value)) for value, gone in bits]
        return pa.array(lists, pa.list_(pa.string()))
    known = np.where(missing, 0, values)
    if kind in ("all", "any"):
        return pa.array(known > 0, mask=missing)
    if kind == "whole" and ((known == np.floor(known)) & (np.abs(known) < 2**63)).all():
        return pa.array(known.astype(np.int64), mask=missing)
    return pa.array(values, mask=missing)
