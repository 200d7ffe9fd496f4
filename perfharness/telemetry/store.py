"""`telemetry.parquet` <-> `SampleLog`: a long table, one row per reading, with its metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from perfharness.errors import ResultError
from perfharness.model.telemetry import TELEMETRY_VERSION, SampleLog, Series, TelemetryMeta
from perfharness.model.trace import Int64

META_KEY = b"perfharness.telemetry"
"""Key of the metadata: a `TelemetryMeta` as JSON."""

ROW_GROUP = 1 << 20
"""Readings in a row group, at least; a series is never divided."""

Key = tuple[str, str]

_NAME = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field("time_unix_ns", pa.int64(), nullable=False),
        pa.field("time_monotonic_ns", pa.int64(), nullable=False),
        pa.field("subject", _NAME, nullable=False),
        pa.field("metric", _NAME, nullable=False),
        pa.field("value", pa.float64()),
        pa.field("is_new", pa.bool_(), nullable=False),
        pa.field("read_ns", pa.int64(), nullable=False),
    ]
)


def write_sample_log(path: Path, log: SampleLog) -> None:
    """Write the file, sorted by subject, metric and time; a reading that failed is a null. Raises `OSError`."""
    keys = sorted(log.series)
    write_series(path, log.meta, keys, (log.series[key] for key in keys))


def write_series(path: Path, meta: TelemetryMeta, keys: Sequence[Key], series: Iterable[Series]) -> None:
    """The same, of series that are made one after the other: there is never more than a row group of them in memory.

    Args:
        keys: subject and metric of each series, sorted.
    """
    schema = SCHEMA.with_metadata({META_KEY: meta.model_dump_json().encode()})
    subjects, metrics = (_codes(key[place] for key in keys) for place in (0, 1))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        group: list[tuple[Key, Series]] = []
        for key, one in zip(keys, series, strict=True):
            group.append((key, one))
            if sum(len(part) for _, part in group) >= ROW_GROUP:
                writer.write_table(_to_table(group, subjects, metrics, schema))
                group = []
        if group or not keys:
            writer.write_table(_to_table(group, subjects, metrics, schema))


def read_sample_log(path: Path) -> SampleLog:
    """Read the file. Raises `ResultError` where it is missing, damaged, or of a later version."""
    try:
        table = pq.read_table(path, schema=None)
        text = (table.schema.metadata or {})[META_KEY]
        meta = TelemetryMeta.model_validate_json(text)
        if meta.schema_version > TELEMETRY_VERSION:
            raise ResultError(
                f"{path} is of version {meta.schema_version}, and this perfharness reads up to {TELEMETRY_VERSION}; "
                "read it with a newer one"
            )
        return SampleLog(_to_series(table.select(SCHEMA.names).cast(SCHEMA)), meta)
    except FileNotFoundError:
        raise ResultError(f"there is no {path}: the run was not sampled, or the file was taken away") from None
    except (OSError, pa.ArrowException, ValidationError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ResultError(
            f"{path} cannot be read ({reason}); it is damaged, or was written by another program"
        ) from error


def _to_table(
    group: Sequence[tuple[Key, Series]], subjects: Mapping[str, int], metrics: Mapping[str, int], schema: pa.Schema
) -> pa.Table:
    columns = [series for _, series in group]
    lengths = np.asarray([len(series) for series in columns], dtype=np.int64)
    return pa.table(
        [
            _joined([series.time_unix_ns for series in columns], np.int64),
            _joined([series.time_monotonic_ns for series in columns], np.int64),
            _names([subject for (subject, _), _ in group], lengths, subjects),
            _names([metric for (_, metric), _ in group], lengths, metrics),
            pa.array(_concatenated([series.value for series in columns], np.float64), from_pandas=True),
            _joined([series.is_new for series in columns], np.bool_),
            _joined([series.read_ns for series in columns], np.int64),
        ],
        schema=schema,
    )


def _codes(names: Iterable[str]) -> dict[str, int]:
    return {name: code for code, name in enumerate(dict.fromkeys(names))}


def _concatenated(parts: list[Any], kind: Any) -> Any:
    return np.concatenate([np.empty(0, dtype=kind), *parts])


def _joined(parts: list[Any], kind: Any) -> pa.Array:
    return pa.array(_concatenated(parts, kind))


def _names(names: list[str], lengths: Int64, codes: Mapping[str, int]) -> pa.DictionaryArray:
    """A column of names; all row groups have one dictionary."""
    column = np.repeat(np.asarray([codes[name] for name in names], dtype=np.int32), lengths)
    return pa.DictionaryArray.from_arrays(pa.array(column), pa.array(list(codes), pa.string()))


def _to_series(table: pa.Table) -> dict[tuple[str, str], Series]:
    table = table.combine_chunks().unify_dictionaries()
    if not len(table):
        return {}
    subject, metric = (table.column(name).combine_chunks() for name in ("subject", "metric"))
    subjects, metrics = subject.dictionary.to_pylist(), metric.dictionary.to_pylist()
    key = np.asarray(subject.indices, dtype=np.int64) * len(metrics) + np.asarray(metric.indices)
    columns = [
        table.column(name).to_numpy() for name in ("time_unix_ns", "time_monotonic_ns", "value", "is_new", "read_ns")
    ]
    order = np.lexsort((columns[0], key))
    borders = np.flatnonzero(np.diff(key[order], prepend=-1))
    return {
        (subjects[key[which[0]] // len(metrics)], metrics[key[which[0]] % len(metrics)]): Series(
            *(column[which] for column in columns)
        )
        for which in np.split(order, borders[1:])
    }
