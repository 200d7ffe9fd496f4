"""`telemetry.parquet` <-> `SampleLog`: a long table with one row per reading, and metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from perfharness.errors import ResultError
from perfharness.model.telemetry import TELEMETRY_VERSION, SampleLog, Series, TelemetryMeta

META_KEY = b"perfharness.telemetry"
"""Metadata key of a `TelemetryMeta` as JSON."""

ROW_GROUP = 1 << 20
"""Readings per row group."""

NAMES = ("subject", "metric")
_NAME = pa.dictionary(pa.int32(), pa.string())
COLUMNS: dict[str, pa.DataType] = {
    "time_unix_ns": pa.int64(),
    "time_monotonic_ns": pa.int64(),
    "subject": _NAME,
    "metric": _NAME,
    "value": pa.float64(),
    "is_new": pa.bool_(),
    "read_ns": pa.int64(),
}
SCHEMA = pa.schema([pa.field(name, kind, nullable=name == "value") for name, kind in COLUMNS.items()])
SERIES_COLUMNS = [name for name in COLUMNS if name not in NAMES]
"""In the order of `Series`."""


def write_sample_log(path: Path, log: SampleLog) -> None:
    """Write the file, sorted by subject, metric and time, with nulls for failed readings. Raises `OSError`."""
    keys = sorted(log.series)
    lengths = [len(log.series[key]) for key in keys]
    columns: dict[str, Any] = {}
    for place, name in enumerate(NAMES):
        names, codes = np.unique(np.asarray([key[place] for key in keys], dtype=object), return_inverse=True)
        column = np.repeat(codes.astype(np.int32), lengths)
        columns[name] = pa.DictionaryArray.from_arrays(pa.array(column), pa.array(names, pa.string()))
    for name in SERIES_COLUMNS:
        parts = [np.empty(0, COLUMNS[name].to_pandas_dtype()), *(getattr(log.series[key], name) for key in keys)]
        columns[name] = pa.array(np.concatenate(parts), COLUMNS[name], from_pandas=name == "value")
    schema = SCHEMA.with_metadata({META_KEY: log.meta.model_dump_json().encode()})
    table = pa.table([columns[name] for name in COLUMNS], schema=schema)
    with path.open("wb") as file:  # Arrow does not accept paths with invalid UTF-8
        pq.write_table(table, file, compression="zstd", row_group_size=ROW_GROUP)


def read_sample_log(path: Path) -> SampleLog:
    """Read the file. Raises `ResultError` if it is missing, damaged, or of a later version."""
    try:
        with path.open("rb") as file:
            table = pq.ParquetFile(file).read()  # `pq.read_table` imports half of pyarrow (0.1 s)
        meta = TelemetryMeta.model_validate_json((table.schema.metadata or {})[META_KEY])
        if meta.schema_version > TELEMETRY_VERSION:
            raise ResultError(
                f"{path} has version {meta.schema_version}, but this perfharness reads up to {TELEMETRY_VERSION}; "
                "use a newer perfharness"
            )
        table = table.select(SCHEMA.names)
        return SampleLog(_to_series(table if table.schema.equals(SCHEMA) else table.cast(SCHEMA)), meta)
    except FileNotFoundError:
        raise ResultError(f"{path} is missing: the run was not sampled, or the file was moved") from None
    except (OSError, pa.ArrowException, ValidationError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ResultError(f"{path} cannot be read ({reason}); it is damaged, or not written by perfharness") from error


def _to_series(table: pa.Table) -> dict[tuple[str, str], Series]:
    table = table.combine_chunks().unify_dictionaries()
    if not len(table):
        return {}
    subject, metric = (table.column(name).combine_chunks() for name in NAMES)
    subjects, metrics = subject.dictionary.to_pylist(), metric.dictionary.to_pylist()
    key = np.asarray(subject.indices, dtype=np.int64) * len(metrics) + np.asarray(metric.indices)
    columns = [table.column(name).to_numpy() for name in SERIES_COLUMNS]
    order = np.lexsort((columns[0], key))
    series = {}
    for which in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        subject_at, metric_at = divmod(int(key[which[0]]), len(metrics))
        series[subjects[subject_at], metrics[metric_at]] = Series(*(column[which] for column in columns))
    return series
