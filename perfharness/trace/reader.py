"""A trace, nsys's sqlite or Parquet or the embedded tracer's sqlite, into a `Trace`.

Columns are taken by name, tables may be absent, row order is never trusted; one reader serves all.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow.compute as pc

from perfharness.errors import TraceFormatError
from perfharness.model import nsys_schema as schema
from perfharness.model.trace import (
    PROCESS_MASK,
    ApiCalls,
    GpuOperationKind,
    GpuOperations,
    Int64,
    NvtxMarks,
    NvtxRanges,
    Style,
    Trace,
)
from perfharness.trace.details import read_details
from perfharness.trace.metadata import read_meta
from perfharness.trace.names import NameTable, lookup
from perfharness.trace.open_source import open_source
from perfharness.trace.source import MISSING, ROW_ID, TraceSource
from perfharness.trace.validate import check_times

NVTX_COLUMNS = [
    "start", "end", "eventType", "category", "globalTid", "endGlobalTid", "textId", "domainId"
]  # fmt: skip
PAYLOAD_COLUMNS = ["int64Value", "uint64Value", "int32Value", "uint32Value"]
API_COLUMNS = ["start", "end", "globalTid", "correlationId", "nameId"]

_Read = TypeVar("_Read")

OPERATION_TABLES = {
    GpuOperationKind.KERNEL: schema.TABLE_KERNEL,
    GpuOperationKind.MEMCPY: schema.TABLE_MEMCPY,
    GpuOperationKind.MEMSET: schema.TABLE_MEMSET,
    GpuOperationKind.GRAPH: schema.TABLE_GRAPH,
}


def open_trace(path: Path, *, details: bool = False) -> Trace:
    """Read the whole trace; with `details`, also what only diagnosis and exports need (`Trace.details`).

    Raises `TraceNotFoundError` where there is no file, `TraceFormatError` where it is no whole trace.
    """
    with open_source(path) as source:
        # A table is read as fast as one core can; each gets a source and a thread of its own.
        with ThreadPoolExecutor(max_workers=2) as others:
            reading_calls = others.submit(_alone, path, _read_calls)
            reading_operations = others.submit(_alone, path, _read_operations)
            names = NameTable.read(source)
            nvtx = _read_nvtx(source, names)
            ranges, marks = _split_nvtx(path, nvtx, names)
            operations = reading_operations.result()
            api = _api_calls(reading_calls.result(), names)
        check_times(path, ranges, api, operations)
        end_ns = _last_time(nvtx, api, operations)
        ranges.end_ns[ranges.is_open] = np.maximum(end_ns, ranges.start_ns[ranges.is_open])
        has_cuda_rows = len(api) > 0 or len(operations) > 0
        return Trace(
            ranges=ranges,
            marks=marks,
            api=api,
            operations=operations,
            names=names.values,
            meta=read_meta(source, has_cuda_rows),
            end_ns=end_ns,
            details=read_details(source, names, operations) if details else None,
        )


def _alone(path: Path, read: Callable[[TraceSource], _Read]) -> _Read:
    """Read with a source that nobody else uses."""
    with open_source(path) as source:
        return read(source)


def _read_nvtx(source: TraceSource, names: NameTable) -> dict[str, Int64]:
    if not source.has(schema.TABLE_NVTX):
        return {column: np.empty(0, dtype=np.int64) for column in [*NVTX_COLUMNS, "payload", "row_id", "name"]}
    events = source.integers(schema.TABLE_NVTX, NVTX_COLUMNS, row_id=True, first_of={"payload": PAYLOAD_COLUMNS})
    events["name"] = names.codes_of_ids(events["textId"])
    if "text" in source.columns(schema.TABLE_NVTX):
        rows, texts = source.strings(schema.TABLE_NVTX, ROW_ID, "text", unless="textId")
        if len(rows):
            encoded = pc.dictionary_encode(texts).combine_chunks()
            codes = names.add(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
            order = np.argsort(events["row_id"], kind="stable")
            at = order[np.searchsorted(events["row_id"], rows, sorter=order)]
            events["name"][at] = codes
    return events


def _split_nvtx(path: Path, events: dict[str, Int64], names: NameTable) -> tuple[NvtxRanges, NvtxMarks]:
    kind = events["eventType"]
    nameless = (events["textId"] != MISSING) & (events["name"] < 0)
    if nameless.any() or (kind == MISSING).any():
        raise TraceFormatError(
            f"{path} contradicts itself: {int(nameless.sum())} NVTX events have names that are not in "
            f"{schema.TABLE_STRINGS}, and {int((kind == MISSING).sum())} have no type. The file is damaged; export it "
            "again with `nsys export --type sqlite`."
        )
    process = events["globalTid"] & PROCESS_MASK
    domain_id = np.where(events["domainId"] == MISSING, 0, events["domainId"])
    category_id = np.where(events["category"] == MISSING, 0, events["category"])

    created = kind == schema.NVTX_DOMAIN_CREATE
    domain = lookup([process, domain_id], [process[created], domain_id[created]], events["name"][created])
    named = kind == schema.NVTX_CATEGORY_EVENT
    keys = [process, domain_id, category_id]
    category = lookup(keys, [key[named] for key in keys], events["name"][named])
    has_payload = events["payload"] != MISSING
    payload = np.where(has_payload, events["payload"], 0)

    is_push_pop = np.isin(kind, schema.PUSH_POP_EVENTS)
    is_range = is_push_pop | np.isin(kind, schema.START_END_EVENTS)
    is_mark = kind == schema.NVTX_MARK_EVENT
    open_end = events["end"] == MISSING
    crosses = (events["endGlobalTid"] != MISSING) & (events["endGlobalTid"] != events["globalTid"]) & ~is_push_pop
    unnamed = names.add([""])[0]
    name = np.where(events["name"] < 0, unnamed, events["name"])
    ranges = NvtxRanges(
        row=events["row_id"][is_range],
        start_ns=events["start"][is_range],
        end_ns=events["end"][is_range],
        thread=events["globalTid"][is_range],
        style=np.where(is_push_pop, Style.PUSH_POP, Style.START_END).astype(np.int64)[is_range],
        name=name[is_range],
        domain=domain[is_range],
        category=category[is_range],
        payload=payload[is_range],
        has_payload=has_payload[is_range],
        is_open=open_end[is_range],
        crosses_threads=crosses[is_range],
    )
    marks = NvtxMarks(
        time_ns=events["start"][is_mark],
        thread=events["globalTid"][is_mark],
        name=name[is_mark],
        domain=domain[is_mark],
        category=category[is_mark],
        payload=payload[is_mark],
        has_payload=has_payload[is_mark],
    )
    return ranges, marks


def _read_calls(source: TraceSource) -> dict[str, Int64]:
    if not source.has(schema.TABLE_API):
        return {column: np.empty(0, dtype=np.int64) for column in [*API_COLUMNS, "returnValue"]}
    calls = source.integers(schema.TABLE_API, API_COLUMNS)
    calls["returnValue"] = _return_values(source, calls)
    return calls


def _return_values(source: TraceSource, calls: dict[str, Int64]) -> Int64:
    """Nearly all calls return 0, so only the others are read."""
    if "returnValue" not in source.columns(schema.TABLE_API):
        return np.zeros(len(calls["start"]), dtype=np.int64)
    keys = ["start", "globalTid", "correlationId"]
    failed = source.integers(schema.TABLE_API, [*keys, "returnValue"], nonzero="returnValue")
    return lookup([calls[key] for key in keys], [failed[key] for key in keys], failed["returnValue"], default=0)


def _api_calls(calls: dict[str, Int64], names: NameTable) -> ApiCalls:
    return ApiCalls(
        start_ns=calls["start"],
        end_ns=calls["end"],
        thread=calls["globalTid"],
        correlation=calls["correlationId"],
        name=names.codes_of_ids(calls["nameId"]),
        return_value=calls["returnValue"],
    )


def _read_operations(source: TraceSource) -> GpuOperations:
    columns = ["start", "end", "globalPid", "correlationId", "deviceId", "streamId"]
    parts: dict[str, list[Int64]] = {column: [np.empty(0, dtype=np.int64)] for column in [*columns, "kind"]}
    for kind, table in OPERATION_TABLES.items():
        if source.has(table):
            rows = source.integers(table, columns)
            for column in columns:
                parts[column].append(rows[column])
            parts["kind"].append(np.full(len(rows["start"]), kind, dtype=np.int64))
    whole = {column: np.concatenate(arrays) for column, arrays in parts.items()}
    return GpuOperations(
        start_ns=whole["start"],
        end_ns=whole["end"],
        process=whole["globalPid"],
        correlation=whole["correlationId"],
        kind=whole["kind"],
        device=whole["deviceId"],
        stream=whole["streamId"],
    )


def _last_time(nvtx: dict[str, Int64], api: ApiCalls, operations: GpuOperations) -> int:
    columns = (nvtx["start"], nvtx["end"], api.end_ns, operations.end_ns)
    return max((int(column.max()) for column in columns if len(column)), default=0)
