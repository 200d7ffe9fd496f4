"""All that was recorded into `trace.sqlite`: decode, put on one clock, write as a whole. Runs after the script."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.model import nsys_schema as schema
from perfharness.model.version import VERSION
from perfharness.tracer import cupti, devices, gpu_tables, nvtx_table
from perfharness.tracer.gpu import cuda_was_initialised
from perfharness.tracer.records import Columns, LayoutError, decode
from perfharness.tracer.sqlite_file import TraceFile
from perfharness.tracer.tables import SCHEMA_VERSION

if TYPE_CHECKING:
    from perfharness.tracer.session import Session

VM_ID = 1 << 48
TIMESTAMP_OF_TARGET = 1
SOURCE_INJECTION = 1
SEVERITY_WARNING = 2


def write_trace(session: Session) -> Path:
    """Write the trace of a session whose script has ended; the path.

    The file appears under its name only when it is whole. Raises OSError or sqlite3.Error where it cannot be written.
    """
    output = Path(session.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    path = output / "trace.sqlite"
    unfinished = output / f".trace.sqlite.{session.pid}"
    unfinished.unlink(missing_ok=True)
    try:
        with TraceFile(unfinished) as file:
            _fill(file, session)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _fill(file: TraceFile, session: Session) -> None:
    records, meta, api_names = gpu_records(session)
    nvtx_table.write(file, session, records)
    if records:
        unattributed = gpu_tables.write(file, session, records, api_names)
        session.diagnostics.extend(unattributed)
    _write_session(file, session)
    if meta[schema.META_CUDA_USED] == "yes":
        driver = cupti.driver_library()
        if driver is not None:
            devices.write(file, driver, session.pid)
    meta[schema.META_TRACER_VERSION] = VERSION
    meta[schema.META_CLOCK_ORIGIN_NS] = str(session.origin_ns)
    rows = [*meta.items(), *((schema.META_DIAGNOSTIC, text) for text in session.diagnostics)]
    file.insert(schema.TABLE_PERFHARNESS, ("name", "value"), rows)
    file.write_strings()


def gpu_records(session: Session) -> tuple[dict[int, Columns], dict[str, str], dict[tuple[int, int], str]]:
    """The decoded records by kind (none where the GPU was not traced), what the trace says of itself about that, and
    the names of API functions by domain and number.
    """
    meta = {
        schema.META_CUDA_TRACED: "no",
        schema.META_CUDA_USED: "yes" if _cuda_was_used() else "no",
        schema.META_GPU_PRESENT: "yes" if session.gpu_present else "no",
    }
    reason = session.gpu_reason
    if session.gpu is not None:
        meta[schema.META_CUPTI_VERSION] = f"{session.gpu.cupti.version} ({session.gpu.cupti.path})"
        try:
            raw = session.gpu.stop()
            meta[schema.META_DROPPED_RECORDS] = str(raw.dropped)
            if raw.taken_over:
                reason = "another user of CUPTI (torch.profiler?) took the records while the script ran"
            else:
                records = decode(raw.cupti, raw.buffers)
                meta[schema.META_CUDA_TRACED] = "yes"
                return records, meta, raw.api_names
        except (cupti.CuptiError, LayoutError) as error:
            reason = f"CUPTI's records could not be read: {error}"
    if reason:
        meta[schema.META_CUDA_UNTRACED_REASON] = reason
        if session.gpu_present and meta[schema.META_CUDA_USED] == "yes":
            session.diagnostics.append(f"GPU work is not in this trace: {reason}.")
    return {}, meta, {}


def _cuda_was_used() -> bool:
    """Whether the process loaded the driver and initialised it: without that there was no GPU work for certain."""
    try:
        mapped = "libcuda.so" in Path("/proc/self/maps").read_text()
    except OSError:
        mapped = True
    driver = cupti.driver_library() if mapped else None
    return driver is not None and cuda_was_initialised(driver)


def _write_session(file: TraceFile, session: Session) -> None:
    started = session.origin_unix_ns / 1e9
    file.insert(
        "TARGET_INFO_SESSION_START_TIME",
        ("utcEpochNs", "utcTime", "localTime"),
        [
            (
                session.origin_unix_ns,
                time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(started)),
                time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(started)),
            )
        ],
    )
    duration = session.end_ns - session.origin_ns
    file.insert(
        "ANALYSIS_DETAILS", ("globalVid", "duration", "startTime", "stopTime"), [(VM_ID, duration, 0, duration)]
    )
    process = schema.global_tid(session.pid, 0)
    file.insert(
        "DIAGNOSTIC_EVENT",
        ("timestamp", "timestampType", "source", "severity", "text", "globalPid"),
        [(0, TIMESTAMP_OF_TARGET, SOURCE_INJECTION, SEVERITY_WARNING, text, process) for text in session.diagnostics],
    )
    file.insert("PROCESSES", ("globalPid", "pid", "name"), [(process, session.pid, Path(sys.executable).name)])
    version = ".".join(map(str, SCHEMA_VERSION))
    file.insert(
        "META_DATA_EXPORT",
        ("name", "value"),
        [
            ("EXPORT_PRODUCT_NAME", "perfharness"),
            ("EXPORT_PRODUCT_VERSION", VERSION),
            ("EXPORT_SCHEMA_VERSION", version),
            ("EXPORT_SCHEMA_VERSION_MAJOR", str(SCHEMA_VERSION[0])),
            ("EXPORT_SCHEMA_VERSION_MINOR", str(SCHEMA_VERSION[1])),
            ("EXPORT_SCHEMA_VERSION_MICRO", str(SCHEMA_VERSION[2])),
        ],
    )
    captured = ["NvtxEvents"] + (["Cuda"] if session.gpu is not None else [])
    file.insert("META_DATA_CAPTURE", ("name", "value"), [("CAPTURE_EVENT_TYPE", kind) for kind in captured])
