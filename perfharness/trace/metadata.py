"""Metadata of a trace: tracer, machine, GPU coverage, and problems."""

from __future__ import annotations

import json
import re
from collections import Counter

from perfharness.model import nsys_schema as schema
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import GpuCoverage, TraceMeta, pid_of
from perfharness.trace.columns import MISSING
from perfharness.trace.devices import TABLE_GPU, read_devices
from perfharness.trace.sqlite import TraceFile

TABLE_DIAGNOSTICS = "DIAGNOSTIC_EVENT"
TABLE_SESSION = "TARGET_INFO_SESSION_START_TIME"
TABLES_EXPORT = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""The second name is used by nsys up to 2022.4."""

NSYS_SEVERITY_WARNING, NSYS_SEVERITY_ERROR = "2", "3"

LOST_EVENTS = re.compile(r"\b(dropped|lost|truncated|incomplete|not all|out of memory|missing)\b", re.IGNORECASE)
"""nsys diagnostics that report missing events."""

NO_CUDA = re.compile(r"no cuda events collected|cuda profiling might have not been started", re.IGNORECASE)
NO_NVTX = re.compile(r"no nvtx events collected", re.IGNORECASE)
"""nsys reports these per process. In a trace with such events they concern a starter or helper process."""

CUDA_CUT_OFF = re.compile(r"not all cuda events", re.IGNORECASE)
"""nsys reports this for a process that ended without exit functions, by `os._exit` or a signal."""


Values = dict[str, list[str]]
"""A table of names and values; names may repeat."""


def read_meta(file: TraceFile, has_cuda_rows: bool) -> TraceMeta:
    """Read the metadata. `has_cuda_rows`: whether the trace has CUDA calls or GPU operations."""
    system, own = _values(file, "TARGET_INFO_SYSTEM_ENV"), _values(file, schema.TABLE_PERFHARNESS)
    export = _values(file, TABLES_EXPORT[0]) or _values(file, TABLES_EXPORT[1])
    device_names = tuple(name for (name,) in file.texts(TABLE_GPU, "name"))
    cuda_driver, origin = _first(system, "CudaDriverVersion"), _first(own, schema.META_CLOCK_ORIGIN_NS)
    if own:
        coverage, reason = _embedded_coverage(own)
    else:
        has_gpu = bool(device_names)
        coverage, reason = _nsys_coverage(_values(file, "META_DATA_CAPTURE"), export, has_gpu, has_cuda_rows)
    return TraceMeta(
        tracer="embedded" if own else "nsys",
        tracer_version=_first(own, schema.META_TRACER_VERSION) if own else _first(export, "EXPORT_PRODUCT_VERSION"),
        gpu_coverage=coverage,
        gpu_coverage_reason=reason,
        has_all_calls=_first(own, schema.META_ALL_CALLS) == "yes" if own else True,
        session_start_unix_ns=read_session_start(file),
        monotonic_origin_ns=int(origin) if origin and origin.isdigit() else None,
        device_names=device_names,
        devices=read_devices(file),
        driver=_first(system, "NvDriverVersion"),
        cuda_driver=int(cuda_driver) if cuda_driver and cuda_driver.isdigit() else None,
        findings=(*_embedded_findings(own), *_nsys_diagnostics(file, has_cuda_rows)),
        cuda_cut_off=frozenset(
            pid_of(int(process))
            for text, process in file.texts(TABLE_DIAGNOSTICS, "text", "globalPid")
            if CUDA_CUT_OFF.search(text) and process.isdigit()
        ),
    )


def _values(file: TraceFile, table: str) -> Values:
    found: Values = {}
    for name, value in file.texts(table, "name", "value"):
        found.setdefault(name, []).append(value)
    return found


def _first(values: Values, name: str) -> str | None:
    return values.get(name, [None])[0]


def read_session_start(file: TraceFile) -> int | None:
    """UTC of the trace's time 0, or None."""
    times = file.integers(TABLE_SESSION, ["utcEpochNs"])["utcEpochNs"]
    return int(times[0]) if len(times) and times[0] != MISSING else None


def _nsys_coverage(capture: Values, export: Values, has_gpu: bool, has_cuda_rows: bool) -> tuple[GpuCoverage, str]:
    if has_cuda_rows:
        return "traced", "the trace has CUDA events"
    collected = [value for name, values in capture.items() if "COLLECT_CUDA_TRACE" in name for value in values]
    if "Cuda" in capture.get("CAPTURE_EVENT_TYPE", []) or "true" in collected:
        return "traced", "CUDA was traced, but nothing was recorded"
    if (capture or export) and not has_gpu:
        return "no_gpu_work", "nsys found no GPU on the machine"
    if not capture:
        return "untraced", "the trace does not say whether CUDA was traced"
    return "untraced", "CUDA was not traced (nsys ran without `--trace cuda`)"


def _embedded_coverage(own: Values) -> tuple[GpuCoverage, str]:
    if _first(own, schema.META_CUDA_TRACED) == "yes":
        return "traced", "CUPTI was active"
    if _first(own, schema.META_CUDA_USED) == "no":
        return "no_gpu_work", "the process did not use CUDA"
    return "untraced", _first(own, schema.META_CUDA_UNTRACED_REASON) or "CUPTI was not active"


def _embedded_findings(own: Values) -> list[Finding]:
    findings = [
        Finding("tracer-message", Severity.WARNING, text) for text in own.get(schema.META_DIAGNOSTIC, []) if text
    ]
    if dropped := _total(own, schema.META_DROPPED_RECORDS):
        findings.append(
            Finding(
                "trace-incomplete",
                Severity.ERROR,
                f"CUPTI dropped {dropped} records, so GPU times and counts are too small by an unknown amount.",
                "Trace fewer batches, or give the process more memory.",
            )
        )
    endless: Counter[str] = Counter()
    for text in own.get(schema.META_ENDLESS, []):
        endless.update(_counts(text))
    if endless:
        shown = ", ".join(f"{name} ({count})" for name, count in endless.most_common(5))
        findings.append(
            Finding(
                "range-without-end",
                Severity.NOTE,
                f"{endless.total()} range(s) of libraries have no end in CUPTI's records and are left out: {shown}.",
                "CUPTI does not record ends with a payload, such as NCCL's; use --tracer nsys for these ranges.",
            )
        )
    if lost := _total(own, schema.META_LOST_EVENTS):
        findings.append(
            Finding(
                "trace-incomplete",
                Severity.ERROR,
                f"{lost} events of ranges were lost, because the disk was full. Earlier events are in the trace.",
                "Free disk space, or measure with fewer batches.",
            )
        )
    return findings


def _total(own: Values, name: str) -> int:
    return sum(int(text) for text in own.get(name, []) if text.isdigit())


def _counts(text: str) -> dict[str, int]:
    """Counts in a JSON object; empty for other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {name: count for name, count in found.items() if isinstance(count, int)} if isinstance(found, dict) else {}


def _nsys_diagnostics(file: TraceFile, has_cuda_rows: bool) -> list[Finding]:
    has_nvtx_rows = file.has(schema.TABLE_NVTX)
    findings = []
    for severity, text in file.texts(TABLE_DIAGNOSTICS, "severity", "text"):
        if severity not in (NSYS_SEVERITY_WARNING, NSYS_SEVERITY_ERROR):
            continue
        if (has_cuda_rows and NO_CUDA.search(text)) or (has_nvtx_rows and NO_NVTX.search(text)):
            continue
        if LOST_EVENTS.search(text):
            level = Severity.ERROR
        else:
            level = Severity.WARNING if severity == NSYS_SEVERITY_ERROR else Severity.NOTE
        findings.append(Finding("tracer-message", level, f"nsys says: {text.strip()}"))
    return findings
