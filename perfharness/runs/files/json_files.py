"""Read and write JSON results; tables that are too long for JSON go to a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet
from pydantic import TypeAdapter

from perfharness.analysis.timeline.grouping import group_rows
from perfharness.errors import ResultError
from perfharness.files import reason_of, replacing
from perfharness.model.result import NO_INDEX, EntryTable, Tree

MAX_ENTRIES = 20_000
"""Longer tables are not written as JSON, because they could not be loaded."""

RANGES_NAME = "ranges.parquet"
WHOLE_KEYS = frozenset({"count", "total_items", "total_items_minus_warmup"})
"""Written as integers if whole."""

Part = TypeVar("Part")


def read_results(path: Path) -> Tree | None:
    """Read `benchmark.json` or `benchmark_mean.json`; None if missing. Raises `ResultError`."""
    try:
        tree = loads(path.read_bytes())
        reason = "" if isinstance(tree, dict) and "meta" in tree else "it has no meta"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
    if reason:
        raise ResultError(f"{path} is damaged ({reason}); write it again with `perfharness analyze`")
    return tree


def part_of(tree: Tree, key: str, kind: type[Part]) -> Part | None:
    """Validate the value of a key; None if missing or null."""
    return None if tree.get(key) is None else TypeAdapter(kind).validate_python(tree[key])


def loads(content: bytes) -> Tree:
    """Parse JSON, even with text that is not UTF-8. Raises `ValueError` or `RecursionError`."""
    try:
        tree: Tree = orjson.loads(content)
    except orjson.JSONDecodeError:
        tree = json.loads(content)
    return tree


def write_json(path: Path, content: Mapping[str, Any]) -> list[Path]:
    """Write JSON, and a table of more than `MAX_ENTRIES` rows to `ranges.parquet` (then in `meta.data_file`).

    Returns the written files. Raises `ResultError` as `replacing`.
    """
    written = [path]
    table = next((value for value in content.values() if is_long(value)), None)
    if table is not None:
        written.insert(0, path.with_name(RANGES_NAME))
        with replacing(written[0]) as temporary, temporary.open("wb") as file:
            pa.parquet.write_table(entry_rows(table), file)  # Arrow needs UTF-8 paths
        content = {**content, "meta": {**content.get("meta", {}), "data_file": RANGES_NAME}}
    with replacing(path) as temporary:
        temporary.write_bytes(json_bytes(content))
    return written


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Format a JSON object, with NaN as null and tables of entries as trees. Long tables are omitted."""
    trees = {
        key: entry_tree(value) if isinstance(value, EntryTable) else value
        for key, value in content.items()
        if not is_long(value)
    }
    try:
        return orjson.dumps(trees, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # integers beyond 64 bits, or not UTF-8
        plain = json.dumps(trees, default=methodcaller("tolist"))  # NumPy's numbers and arrays
        without_nan = json.loads(plain, parse_constant=lambda name: None)
        return json.dumps(without_nan, indent=2, allow_nan=False).encode() + b"\n"


def is_long(value: Any) -> bool:
    """Whether the value is a table that is too long for JSON."""
    return isinstance(value, EntryTable) and len(value) > MAX_ENTRIES


def entry_tree(table: EntryTable) -> Tree:
    """Convert a table to nested dictionaries, which need a kilobyte per entry."""
    entries: list[Tree] = [{} for _ in range(len(table))]
    for key, (rows, values) in table.numbers.items():
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            entries[row][key] = _written(table, key, value)
    around: list[Tree] = [{}]
    columns = (table.name.tolist(), table.index.tolist(), table.depth.tolist())
    for entry, name, index, depth in zip(entries, *columns, strict=True):
        del around[depth + 1 :]
        around[depth][table.names[name] if index == NO_INDEX else f"{table.names[name]}_{index}"] = entry
        around.append(entry)
    return around[0]


def _written(table: EntryTable, key: str, value: Any) -> Any:
    if key == "throttle_reasons":
        return [reason for bit, reason in enumerate(table.reasons) if value >> bit & 1]
    if value != value:
        return None
    return int(value) if key in WHOLE_KEYS and value == int(value) else value


def entry_rows(table: EntryTable) -> pa.Table:
    """Make a table with one row per entry: row of its parent (null for recorders), depth, key, and numbers.

    Parents come before children. Numbers are null if missing or not measured.
    """
    keys = group_rows(table.name, table.index)
    numbers = zip(table.name[keys.first].tolist(), table.index[keys.first].tolist(), strict=True)
    texts = [table.names[name] if index == NO_INDEX else f"{table.names[name]}_{index}" for name, index in numbers]
    rows, parent = np.arange(len(table)), np.full(len(table), -1, dtype=np.int64)
    for depth in range(1, int(table.depth.max(initial=0)) + 1):
        above = np.maximum.accumulate(np.where(table.depth == depth - 1, rows, 0))
        parent = np.where(table.depth == depth, above, parent)
    return pa.table(
        {
            "parent": pa.array(parent, mask=parent < 0),
            "depth": pa.array(table.depth),
            "key": pa.DictionaryArray.from_arrays(pa.array(keys.code), pa.array(texts, pa.string())),
            **{key: _column(table, key) for key in table.numbers},
        }
    )


def _column(table: EntryTable, key: str) -> pa.Array:
    rows, values = table.numbers[key]
    column = np.zeros(len(table), dtype=values.dtype)
    column[rows] = values
    missing = np.ones(len(table), dtype=np.bool_)
    missing[rows] = np.isnan(values) if values.dtype == np.float64 else False
    if key == "throttle_reasons":
        lists = [None if gone else _written(table, key, bits) for bits, gone in zip(column, missing, strict=True)]
        return pa.array(lists, pa.list_(pa.string()))
    known = column[~missing]
    if key in WHOLE_KEYS and (known == np.floor(known)).all() and (np.abs(known) < 2**63).all():
        column = np.where(missing, 0, column).astype(np.int64)
    return pa.array(column, mask=missing)
