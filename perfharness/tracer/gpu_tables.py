"""Write CUPTI's records to nsys's tables of GPU operations and API calls, with the names of kernels."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    """Write the GPU tables; return problems, one sentence each.

    Args:
        api_names: names of API functions by domain and number.
    """
    records = without_inner_calls(records)
    calls = _write_api(file, session, records, api_names)
    _write_synchronizations(file, session, records)
    diagnostics = []
    started_by = [np.empty(0, dtype=np.uint32)]
    for kind, (operations, table) in _OPERATIONS.items():
        if kind not in records:
            continue
        columns, untimed = _timed(records[kind])
        if session.is_window:  # drop work of calls before the window
            columns = _only(columns, np.isin(columns["correlationId"], calls))
        if untimed:
            diagnostics.append(f"CUPTI gave no times for {untimed} {operations}; this trace lacks them.")
        file.insert_columns(table, _operation_rows(file, session, columns), len(columns["start"]))
        started_by.append(columns["correlationId"])
    correlations = np.concatenate(started_by)
    missing = int(np.count_nonzero(~np.isin(correlations, calls)))
    if missing:
        diagnostics.append(
            f"{missing} of {len(correlations)} GPU operations have no recorded API call; they count for no range."
        )
    return diagnostics


def of_own_threads(records: dict[int, Columns], session: Session) -> dict[int, Columns]:
    """Correct the thread IDs of a forked child.

    CUPTI 13.0 caches the ID in thread-local memory, which the child inherits: its first thread is
    recorded under the ID of the thread that forked.
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
    """Drop driver calls inside runtime calls, as nsys does, and calls without an end.

    Operations and waits of a dropped driver call are assigned to the runtime call.
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
    inner = driver["correlationId"][is_inner]
    order = np.argsort(inner, kind="stable")
    inner, owner = inner[order], runtime["correlationId"][outer[is_inner]][order]
    whole[cupti.KIND_DRIVER] = _only(driver, ~is_inner)
    for kind in (*_OPERATIONS, cupti.KIND_SYNCHRONIZATION) if len(inner) else ():
        if kind in whole:
            known = whole[kind]["correlationId"]
            at = np.minimum(np.searchsorted(inner, known), len(inner) - 1)
            whole[kind] = {**whole[kind], "correlationId": np.where(inner[at] == known, owner[at], known)}
    return whole


def _only(columns: Columns, keep: NDArray[np.bool_]) -> Columns:
    return columns if keep.all() else {name: values[keep] for name, values in columns.items()}


def _enclosing(outer: Columns, inner: Columns) -> NDArray[np.int64]:
    """Row of the outer call around each inner one on its thread, or -1. Outer calls do not overlap."""
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
    """Drop records without times, which CUPTI writes as 0; return the rest and the number dropped."""
    timed = (columns["start"] != 0) & (columns["end"] != 0)
    missing = len(timed) - int(np.count_nonzero(timed))
    return {name: values[timed] for name, values in columns.items()} if missing else columns, missing


def _operation_rows(file: TraceFile, session: Session, columns: Columns) -> dict[str, Any]:
    """Convert kernels, copies, memsets or graph launches to the columns of nsys's table."""
    rows: dict[str, Any] = {**columns, **_placed(columns, session)}
    if "graphNodeId" in rows:
        rows["graphNodeId"] = np.ma.masked_equal(rows["graphNodeId"], 0)
    for name in rows.keys() & {"srcKind", "dstKind", "memKind"}:  # nsys: CUPTI's number less 1, unknown last
        rows[name] = np.where(rows[name] == 0, MEMORY_KIND_UNKNOWN, rows[name].astype(np.int64) - 1)
    if "copyKind" in rows:
        rows["copyCount"] = 1
    if "graphId" in rows:  # CUPTI does not record the source graph
        rows["graphExecId"] = rows["graphId"]
    if "name" in rows:
        pointers, which = np.unique(rows.pop("name"), return_inverse=True)
        names = [_kernel_names(pointer) for pointer in pointers.tolist()]
        ids = np.asarray([[file.string_id(name) for name in each] for each in names], dtype=np.int64)
        ids = ids.reshape(-1, 3)[which]
        rows |= {"demangledName": ids[:, 0], "shortName": ids[:, 1], "mangledName": ids[:, 2]}
        rows["launchType"] = rows["launchType"] + 1
    return rows


def _placed(columns: Columns, session: Session) -> dict[str, Any]:
    """Times on the clock of the trace, and the process."""
    return {
        "start": columns["start"].astype(np.int64) - session.origin_ns,
        "end": columns["end"].astype(np.int64) - session.origin_ns,
        "globalPid": schema.global_tid(session.pid, 0),
    }


_OPERATIONS = {
    cupti.KIND_CONCURRENT_KERNEL: ("kernels", schema.TABLE_KERNEL),
    cupti.KIND_MEMCPY: ("copies", schema.TABLE_MEMCPY),
    cupti.KIND_MEMCPY_PEER: ("peer copies", schema.TABLE_MEMCPY),
    cupti.KIND_MEMSET: ("memsets", schema.TABLE_MEMSET),
    cupti.KIND_GRAPH_TRACE: ("graph launches", schema.TABLE_GRAPH),
}


def _write_api(
    file: TraceFile, session: Session, records: dict[int, Columns], api_names: dict[tuple[int, int], str]
) -> NDArray[Any]:
    """Write the calls of both APIs; return their correlation IDs."""
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
        placed = _placed(columns, session)
        values = {
            "start": placed["start"],
            "end": placed["end"],
            "eventClass": event_class,
            "globalTid": placed["globalPid"] | columns["thread"].astype(np.int64) & schema.ID_MASK,
            "correlationId": columns["correlationId"],
            "nameId": np.asarray([file.string_id(text) for text in texts])[which[keep]],
            "returnValue": columns["returnValue"],
        }
        file.insert_columns(schema.TABLE_API, values, len(columns["start"]))
        found.append(columns["correlationId"])
    return np.concatenate(found)


def _write_synchronizations(file: TraceFile, session: Session, records: dict[int, Columns]) -> None:
    """Write the recorded waits, with the GPU of other operations in the same context, if any."""
    columns = records.get(cupti.KIND_SYNCHRONIZATION)
    if columns is None:
        return
    columns, _ = _timed(columns)
    operations = [records[kind] for kind in _OPERATIONS if kind in records]
    device_of = {
        context: device
        for each in operations
        for context, device in np.unique(np.stack([each["contextId"], each["deviceId"]], axis=1), axis=0).tolist()
    }
    contexts, which = np.unique(columns["contextId"], return_inverse=True)
    devices = np.asarray([device_of.get(context, -1) for context in contexts.tolist()], dtype=np.int64)[which]
    values = {**columns, **_placed(columns, session), "deviceId": np.ma.masked_equal(devices, -1)}
    file.insert_columns(schema.TABLE_SYNCHRONIZATION, values, len(columns["start"]))


@cache
def _cxa_demangle() -> Any:
    """`abi::__cxa_demangle` of the C++ library, or None."""
    try:
        demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except OSError:
        return None
    demangle.restype = ctypes.c_void_p
    return demangle


def _demangled(mangled: str) -> str:
    """Demangle a C++ name; return other names unchanged."""
    if (demangle := _cxa_demangle()) is None or not mangled.startswith("_Z"):
        return mangled
    status = ctypes.c_int()
    address = demangle(mangled.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not address:
        return mangled
    text = ctypes.string_at(address).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(address))
    return text


def _kernel_names(pointer: int) -> tuple[str, str, str]:
    """Demangled, short and mangled name."""
    mangled = ctypes.string_at(pointer).decode(errors="replace") if pointer else "unknown"
    demangled = _demangled(mangled)
    return demangled, short_name(demangled), mangled


def short_name(demangled: str) -> str:
    """Name without return type, namespace, template arguments and parameters."""
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
