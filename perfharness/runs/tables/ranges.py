"""Ranges as rows: the columns of `perfharness ranges`, as an Arrow table and in text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from perfharness.analysis.timeline.range_table import RangeTable
from perfharness.files import replacing
from perfharness.model.trace import Style, Trace, pid_of, tid_of
from perfharness.runs.tables.columns import constant, names_of, nullable, whole

ROWS_AT_A_TIME = 1 << 17
STYLE_NAMES = {Style.PUSH_POP: "push_pop", Style.START_END: "start_end"}


def range_rows(trace: Trace, table: RangeTable, part: slice = slice(None)) -> pa.Table:
    """One row a range, in the order of the contract; times in ns, NULL where there is no value.

    Args:
        part: which of the rows, in that order.
    """
    ranges, projection, order = table.ranges, table.projection, table.order[part]
    gpu_known, operation_count = table.gpu_known[order], projection.operation_count[order]
    has_no_work = (operation_count == 0) | ~gpu_known
    start, parent = ranges.start_ns[order], table.nesting.parent[order]
    gpu_start = projection.start_ns[order]
    return pa.table(
        {
            "range_id": whole(ranges.row[order]),
            "parent_id": nullable(ranges.row[parent], parent < 0),
            **{
                column: names_of(getattr(ranges, column)[order], trace.names).cast(pa.string())
                for column in ("name", "domain", "category")
            },
            "style": pa.DictionaryArray.from_arrays(ranges.style[order].astype(np.int8), list(STYLE_NAMES.values())),
            "pid": pid_of(ranges.thread[order]),
            "tid": tid_of(ranges.thread[order]),
            "level": whole(table.nesting.level[order]),
            "start_ns": start,
            "duration_ns": ranges.end_ns[order] - start,
            "gpu_start_ns": nullable(gpu_start, has_no_work),
            "gpu_duration_ns": nullable(projection.end_ns[order] - gpu_start, has_no_work),
            "gpu_busy_ns": nullable(projection.busy_ns[order], has_no_work),
            "gpu_op_count": nullable(operation_count, ~gpu_known),
            "payload": nullable(ranges.payload[order], ~ranges.has_payload[order]),
        }
    )


def range_parts(trace: Trace, table: RangeTable) -> Iterator[pa.Table]:
    """`range_rows` in parts that need little memory; one without rows where there are no ranges."""
    for begin in range(0, max(len(table.ranges), 1), ROWS_AT_A_TIME):
        yield range_rows(trace, table, slice(begin, begin + ROWS_AT_A_TIME))


def of_process(parts: Iterator[pa.Table], name: str) -> Iterator[pa.Table]:
    """The same rows with the process in front, for tables of several."""
    for part in parts:
        yield part.add_column(0, "process", constant(name, part.num_rows).cast(pa.string()))


def write_parquet(parts: Iterator[pa.Table], path: Path) -> None:
    """A Parquet file, units in the column names. Raises `ResultError` where it cannot be written."""
    with replacing(path) as temporary, temporary.open("wb") as file:  # Arrow takes no path that is no UTF-8
        first = next(parts)
        with pa.parquet.ParquetWriter(file, first.schema) as writer:
            for part in itertools.chain([first], parts):
                writer.write_table(part)


def write_csv(parts: Iterator[pa.Table], file: TextIO) -> None:
    """CSV with a header; NULL is an empty field."""
    options = pa.csv.WriteOptions()
    for part in parts:
        sink = pa.BufferOutputStream()
        pa.csv.write_csv(part, sink, options)
        file.write(sink.getvalue().to_pybytes().decode("utf-8"))
        options = pa.csv.WriteOptions(include_header=False)


def write_json_rows(parts: Iterator[pa.Table], file: TextIO) -> None:
    """A JSON list, one object per line; the text is put together in Arrow, without a Python object a row."""
    separator = "\n"
    file.write("[")
    for part in parts:
        if part.num_rows:
            objects = _json_objects(part.combine_chunks())
            whole_part = pc.binary_join(pa.ListArray.from_arrays([0, len(objects)], objects), ",\n")
            file.write(separator + whole_part[0].as_py())
            separator = ",\n"
    file.write("\n]\n")


def _json_objects(rows: pa.Table) -> pa.Array:
    """Each row as the text of a JSON object. `rows` have one chunk."""
    pieces: list[pa.Array | str] = []
    for name in rows.schema.names:
        pieces += [f'{", " if pieces else "{"}"{name}": ', _json_texts(rows[name].chunk(0))]
    return pc.binary_join_element_wise(*pieces, "}", "")


def _json_texts(column: pa.Array) -> pa.Array:
    """Integers and strings as JSON has them."""
    if pa.types.is_integer(column.type):
        return pc.fill_null(column.cast(pa.string()), "null")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    escaped = [json.dumps(text, ensure_ascii=False) for text in column.dictionary.to_pylist()]
    return pc.fill_null(pa.array(escaped, pa.string()).take(column.indices), "null")
