"""CUPTI's columns into nsys's tables of GPU operations and API calls, and the names of kernels."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfharness.demangle import Demangler
from perfharness.model import nsys_schema as schema
from perfharness.tracer import cupti
from perfharness.tracer.gpu import CANARY
from perfharness.tracer.records import Columns
from perfharness.tracer.trace_file import MEMORY_KIND_UNKNOWN, TraceFile

if TYPE_CHECKING:
    from perfharness.tracer.session import Session

_ANONYMOUS = "(anonymous namespace)"
_ANONYMOUS_STAND_IN = "\x00"


def write(
    file: TraceFile, session: Session, records: dict[int, Columns], api_names: dict[tuple[int, int], str]
) -> list[str]:
    """Write the GPU tables; returns the problems found, one sentence each.

    Args:
        api_names: names of API functions by domain and number.
    """
    records = without_inner_calls(records)
    calls = _write_api(file, session, records, api_names)
    _write_synchronizations(file, session, records)
    diagnostics = []
    started_by = [np.empty(0, dtype=np.uint32)]
    for kind, (operations, write_rows) in _WRITERS.items():
        if kind not in records:
            continue
        columns, untimed = _timed(records[kind])
        if untimed:
            diagnostics.append(f"CUPTI gave no times for {untimed} {operations}; they are missing in this trace.")
        write_rows(file, _common(columns, session), columns)
        started_by.append(columns["correlation"])
    correlations = np.concatenate(started_by)
    missing = int(np.count_nonzero(~np.isin(correlations, calls)))
    if missing:
        diagnostics.append(
            f"{missing} of {len(correlations)} GPU operations were started by calls that were not recorded; "
            "no range counts them."
        )
    return diagnostics


def of_own_threads(records: dict[int, Columns], session: Session) -> dict[int, Columns]:
    """With the ids that threads have in this process.

    CUPTI remembers the id of a thread in the thread's own memory, which a forked child has a copy of: what its first
    thread does is recorded under the id of the thread that forked (CUPTI 13.0, where CUDA is first used in the child).
    """
    inherited = list(session.inherited_threads)
    if not inherited:
        return records
    return {
        kind: {**columns, "thread": np.where(np.isin(columns["thread"], inherited), session.pid, columns["thread"])}
        if "thread" in columns
        else columns
        for kind, columns in records.items()
    }


def without_inner_calls(records: dict[int, Columns]) -> dict[int, Columns]:
    """Without the driver calls that lie in runtime calls of their thread, as nsys has it; nor calls without an end.

    What such a driver call started or waited for is the runtime call's.
    """
    whole = {
        kind: _only(columns, (columns["start"] != 0) & (columns["end"] >= columns["start"]))
        if kind in (cupti.KIND_RUNTIME, cupti.KIND_DRIVER)
        else columns
        for kind, columns in records.items()
    }
    if not {cupti.KIND_RUNTIME, cupti.KIND_DRIVER} <= whole.keys():
        return whole
    runtime, driver = whole[cupti.KIND_RUNTIME], whole[cupti.KIND_DRIVER]
    outer = _enclosing(runtime, driver)
    is_inner = outer >= 0
    inner = driver["correlation"][is_inner]
    order = np.argsort(inner, kind="stable")
    inner, owner = inner[order], runtime["correlation"][outer[is_inner]][order]
    whole[cupti.KIND_DRIVER] = _only(driver, ~is_inner)
    for kind in (*_WRITERS, cupti.KIND_SYNCHRONIZATION) if len(inner) else ():
        if kind in whole:
            known = whole[kind]["correlation"]
            at = np.minimum(np.searchsorted(inner, known), len(inner) - 1)
            whole[kind] = {**whole[kind], "correlation": np.where(inner[at] == known, owner[at], known)}
    return whole


def _only(columns: Columns, keep: NDArray[np.bool_]) -> Columns:
    return columns if keep.all() else {name: values[keep] for name, values in columns.items()}


def _enclosing(outer: Columns, inner: Columns) -> NDArray[np.int64]:
    """Row of the outer call in which each inner one lies on its thread; -1: in none. Outer calls do not overlap."""
    found = np.full(len(inner["start"]), -1, dtype=np.int64)
    if not len(outer["start"]):
        return found
    threads = np.unique(outer["thread"])
    for thread in threads.tolist():
        rows, mine = np.flatnonzero(outer["thread"] == thread), np.flatnonzero(inner["thread"] == thread)
        rows = rows[np.argsort(outer["start"][rows], kind="stable")]
        at = np.searchsorted(outer["start"][rows], inner["start"][mine], side="right") - 1
        last = rows[np.maximum(at, 0)]
        found[mine] = np.where((at >= 0) & (inner["end"][mine] <= outer["end"][last]), last, -1)
    return found


def _timed(columns: Columns) -> tuple[Columns, int]:
    """Without the records whose times CUPTI could not collect (they are zeros), and how many those are."""
    timed = (columns["start"] != 0) & (columns["end"] != 0)
    missing = len(timed) - int(np.count_nonzero(timed))
    return {name: values[timed] for name, values in columns.items()} if missing else columns, missing


def _common(columns: Columns, session: Session) -> dict[str, Any]:
    return {
        "start": columns["start"].astype(np.int64) - session.origin_ns,
        "end": columns["end"].astype(np.int64) - session.origin_ns,
        "deviceId": columns["device"],
        "contextId": columns["context"],
        "streamId": columns["stream"],
        "correlationId": columns["correlation"],
        "globalPid": schema.global_tid(session.pid, 0),
    }


def _write_kernels(file: TraceFile, common: dict[str, Any], columns: Columns) -> None:
    pointers, which = np.unique(columns["name"], return_inverse=True)
    demangler = Demangler()
    mangled = [_text(pointer) for pointer in pointers.tolist()]
    demangled = [demangler.demangled(text) for text in mangled]
    columns_of_names = (demangled, map(short_name, demangled), mangled)
    ids = [[file.string_id(text) for text in texts] for texts in zip(*columns_of_names, strict=True)]
    names = np.asarray(ids, dtype=np.int64).reshape(-1, 3)[which]
    values = {
        **common,
        "demangledName": names[:, 0],
        "shortName": names[:, 1],
        "mangledName": names[:, 2],
        "launchType": columns["launch_type"] + 1,
        "registersPerThread": columns["registers"],
        "gridX": columns["grid_x"],
        "gridY": columns["grid_y"],
        "gridZ": columns["grid_z"],
        "blockX": columns["block_x"],
        "blockY": columns["block_y"],
        "blockZ": columns["block_z"],
        "staticSharedMemory": columns["static_shared"],
        "dynamicSharedMemory": columns["dynamic_shared"],
        "localMemoryPerThread": columns["local_per_thread"],
        "localMemoryTotal": columns["local_total"],
        "gridId": columns["grid_id"],
        "sharedMemoryExecuted": columns["shared_executed"],
        "graphNodeId": _null_where_zero(columns["graph_node"]),
    }
    file.insert_columns(schema.TABLE_KERNEL, values, len(columns["start"]))


def _write_copies(file: TraceFile, common: dict[str, Any], columns: Columns) -> None:
    values = {
        **common,
        "bytes": columns["bytes"],
        "copyKind": columns["copy_kind"],
        "srcKind": _memory_kind(columns["source_kind"]),
        "dstKind": _memory_kind(columns["target_kind"]),
        "graphNodeId": _null_where_zero(columns["graph_node"]),
        "copyCount": 1,
    }
    if "source_device" in columns:
        values["srcDeviceId"] = columns["source_device"]
        values["srcContextId"] = columns["source_context"]
        values["dstDeviceId"] = columns["target_device"]
        values["dstContextId"] = columns["target_context"]
    file.insert_columns(schema.TABLE_MEMCPY, values, len(columns["start"]))


def _write_memsets(file: TraceFile, common: dict[str, Any], columns: Columns) -> None:
    values = {
        **common,
        "value": columns["value"],
        "bytes": columns["bytes"],
        "graphNodeId": _null_where_zero(columns["graph_node"]),
        "memKind": _memory_kind(columns["memory_kind"]),
    }
    file.insert_columns(schema.TABLE_MEMSET, values, len(columns["start"]))


def _write_graphs(file: TraceFile, common: dict[str, Any], columns: Columns) -> None:
    # CUPTI records the executable graph's id only; the id of its source graph, which nsys has too, is missing.
    values = {**common, "graphId": columns["graph"], "graphExecId": columns["graph"]}
    file.insert_columns(schema.TABLE_GRAPH, values, len(columns["start"]))


_WRITERS = {
    cupti.KIND_CONCURRENT_KERNEL: ("kernels", _write_kernels),
    cupti.KIND_MEMCPY: ("copies", _write_copies),
    cupti.KIND_MEMCPY_PEER: ("peer copies", _write_copies),
    cupti.KIND_MEMSET: ("memsets", _write_memsets),
    cupti.KIND_GRAPH_TRACE: ("graph launches", _write_graphs),
}


def _write_api(
    file: TraceFile, session: Session, records: dict[int, Columns], api_names: dict[tuple[int, int], str]
) -> NDArray[Any]:
    """Write the API calls of both APIs; their correlation ids."""
    file.make(schema.TABLE_API)
    found = [np.empty(0, dtype=np.uint32)]
    for kind, domain, event_class in (
        (cupti.KIND_RUNTIME, cupti.DOMAIN_RUNTIME, schema.EVENT_CLASS_RUNTIME),
        (cupti.KIND_DRIVER, cupti.DOMAIN_DRIVER, schema.EVENT_CLASS_DRIVER),
    ):
        columns = records.get(kind)
        if columns is None:
            continue
        cbids, which = np.unique(columns["cbid"], return_inverse=True)
        texts = [api_names.get((domain, cbid), f"cbid {cbid}") for cbid in cbids.tolist()]
        keep = np.asarray([text != CANARY and not cupti.is_inquiry(text) for text in texts])[which]
        columns = {name: values[keep] for name, values in columns.items()}
        values = {
            "start": columns["start"].astype(np.int64) - session.origin_ns,
            "end": columns["end"].astype(np.int64) - session.origin_ns,
            "eventClass": event_class,
            "globalTid": schema.global_tid(session.pid, 0) | columns["thread"].astype(np.int64) & schema.ID_MASK,
            "correlationId": columns["correlation"],
            "nameId": np.asarray([file.string_id(text) for text in texts])[which[keep]],
            "returnValue": columns["return_value"],
        }
        file.insert_columns(schema.TABLE_API, values, len(columns["start"]))
        found.append(columns["correlation"])
    return np.concatenate(found)


def _write_synchronizations(file: TraceFile, session: Session, records: dict[int, Columns]) -> None:
    """Write the waits that CUPTI recorded; their GPU is that of their context, as far as operations show it."""
    columns = records.get(cupti.KIND_SYNCHRONIZATION)
    if columns is None:
        return
    columns, _ = _timed(columns)
    operations = [records[kind] for kind in _WRITERS if kind in records]
    device_of = {
        context: device
        for each in operations
        for context, device in np.unique(np.stack([each["context"], each["device"]], axis=1), axis=0).tolist()
    }
    contexts, which = np.unique(columns["context"], return_inverse=True)
    devices = np.asarray([device_of.get(context, -1) for context in contexts.tolist()], dtype=np.int64)[which]
    values = {
        "start": columns["start"].astype(np.int64) - session.origin_ns,
        "end": columns["end"].astype(np.int64) - session.origin_ns,
        "deviceId": np.ma.masked_equal(devices, -1),
        "contextId": columns["context"],
        "streamId": columns["stream"],
        "correlationId": columns["correlation"],
        "globalPid": schema.global_tid(session.pid, 0),
        "syncType": columns["type"],
        "eventId": columns["event"],
    }
    file.insert_columns(schema.TABLE_SYNCHRONIZATION, values, len(columns["start"]))


def _memory_kind(kinds: NDArray[Any]) -> NDArray[Any]:
    """CUPTI's number of a memory kind as nsys's: one less, and unknown last."""
    return np.where(kinds == 0, MEMORY_KIND_UNKNOWN, kinds.astype(np.int64) - 1)


def _null_where_zero(values: NDArray[Any]) -> Any:
    return np.ma.masked_equal(values, 0)


def _text(pointer: int) -> str:
    return ctypes.string_at(pointer).decode(errors="replace") if pointer else "unknown"


def short_name(demangled: str) -> str:
    """The function's own name: no return type, no namespace, no template arguments, no parameters."""
    text = demangled.replace(_ANONYMOUS, _ANONYMOUS_STAND_IN)
    depth = 0
    last = 0
    for at, character in enumerate(text):
        if character in "<([{":
            if character == "(" and depth == 0:
                text = text[:at]
                break
            depth += 1
        elif character in ">)]}":
            depth -= 1
        elif depth == 0 and (character == " " or text.startswith("::", at)):
            last = at + (1 if character == " " else 2)
    name = text[last:].split("<", 1)[0].strip()
    return name.replace(_ANONYMOUS_STAND_IN, _ANONYMOUS) or demangled
