"""The metadata of a trace: who wrote it, on what, whether GPU work would be in it, and what went wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

from perfharness.model import nsys_schema as schema
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import GpuCoverage, TraceMeta, pid_of
from perfharness.trace.devices import read_devices
from perfharness.trace.source import MISSING, TraceSource

NSYS_SEVERITY_WARNING, NSYS_SEVERITY_ERROR = "2", "3"

LOST_EVENTS = re.compile(r"\b(dropped|lost|truncated|incomplete|not all|out of memory|missing)\b", re.IGNORECASE)
"""An nsys diagnostic of this form reports events that are not in the trace."""

NO_CUDA = re.compile(r"no cuda events collected|cuda profiling might have not been started", re.IGNORECASE)
NO_NVTX = re.compile(r"no nvtx events collected", re.IGNORECASE)
"""nsys says these of each process that has none: of a trace that has some, they are of a starter or a helper."""

CUDA_CUT_OFF = re.compile(r"not all cuda events", re.IGNORECASE)
"""nsys says it of a process that ended without its exit functions, by `os._exit` or a signal."""


def read_meta(source: TraceSource, has_cuda_rows: bool) -> TraceMeta:
    """The metadata of a trace. `has_cuda_rows`: whether there is any CUDA call or GPU operation in it."""
    environment = _key_values(source, "TARGET_INFO_SYSTEM_ENV")
    cuda_driver = environment.get("CudaDriverVersion", [""])[0]
    own = _key_values(source, schema.TABLE_PERFHARNESS)
    if own:
        coverage, reason = _embedded_coverage(own)
        version = own.get(schema.META_TRACER_VERSION, [None])[0]
    else:
        coverage, reason = _nsys_coverage(source, has_cuda_rows)
        version = _export_values(source).get("EXPORT_PRODUCT_VERSION", [None])[0]
    return TraceMeta(
        tracer="embedded" if own else "nsys",
        tracer_version=version,
        gpu_coverage=coverage,
        gpu_coverage_reason=reason,
        has_all_calls=own.get(schema.META_ALL_CALLS) == ["yes"] if own else True,
        session_start_unix_ns=read_session_start(source),
        monotonic_origin_ns=_monotonic_origin(own),
        device_names=_device_names(source),
        devices=read_devices(source),
        driver=environment.get("NvDriverVersion", [None])[0],
        cuda_driver=int(cuda_driver) if cuda_driver.isdigit() else None,
        findings=(*_embedded_findings(own), *_nsys_diagnostics(source, has_cuda_rows)),
        cuda_cut_off=frozenset(_cut_off(source)),
    )


def _key_values(source: TraceSource, table: str) -> dict[str, list[str]]:
    """A name/value table; a name may stand in it more than once."""
    if not {"name", "value"} <= source.columns(table):
        return {}
    found: dict[str, list[str]] = {}
    for name, value in source.texts(table, ["name", "value"]):
        found.setdefault(name, []).append(value)
    return found


def _export_values(source: TraceSource) -> dict[str, list[str]]:
    """Metadata of the export by nsys; the table had another name up to 2022.4."""
    return _key_values(source, "META_DATA_EXPORT") or _key_values(source, "EXPORT_META_DATA")


def _nsys_coverage(source: TraceSource, has_cuda_rows: bool) -> tuple[GpuCoverage, str]:
    if has_cuda_rows:
        return "traced", "the trace holds CUDA events"
    capture = _key_values(source, "META_DATA_CAPTURE")
    collected = [value for name, values in capture.items() if "COLLECT_CUDA_TRACE" in name for value in values]
    if "Cuda" in capture.get("CAPTURE_EVENT_TYPE", []) or "true" in collected:
        return "traced", "CUDA was traced, and nothing was recorded"
    if (capture or _export_values(source)) and not _device_names(source):
        return "no_gpu_work", "nsys saw no GPU on the machine"
    if not capture:
        return "untraced", "the trace does not say whether CUDA was traced"
    return "untraced", "CUDA was not traced (nsys ran without `--trace cuda`)"


def _embedded_coverage(own: dict[str, list[str]]) -> tuple[GpuCoverage, str]:
    if own.get(schema.META_CUDA_TRACED) == ["yes"]:
        return "traced", "CUPTI was active"
    if own.get(schema.META_CUDA_USED) == ["no"]:
        return "no_gpu_work", "the process did not use CUDA"
    return "untraced", own.get(schema.META_CUDA_UNTRACED_REASON, ["CUPTI was not active"])[0]


def _embedded_findings(own: dict[str, list[str]]) -> list[Finding]:
    findings = [
        Finding("tracer-diagnostic", Severity.WARNING, text) for text in own.get(schema.META_DIAGNOSTIC, []) if text
    ]
    dropped = own.get(schema.META_DROPPED_RECORDS, ["0"])[0]
    if dropped.isdigit() and int(dropped):
        findings.append(
            Finding(
                "trace-dropped-records",
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
                "library-range-without-end",
                Severity.NOTE,
                f"{endless.total()} range(s) of libraries have no end in CUPTI's records and are left out: {shown}.",
                "CUPTI does not record an end that has a payload, as NCCL's; --tracer nsys has these ranges.",
            )
        )
    lost = sum(int(text) for text in own.get(schema.META_LOST_EVENTS, []) if text.isdigit())
    if lost:
        findings.append(
            Finding(
                "trace-lost-events",
                Severity.ERROR,
                f"{lost} events of ranges could not be recorded: the disk was full. The trace holds what came before.",
                "Make room on the disk, or measure with fewer batches.",
            )
        )
    return findings


def _counts(text: str) -> dict[str, int]:
    """Of a JSON object; nothing of what is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {name: count for name, count in found.items() if isinstance(count, int)} if isinstance(found, dict) else {}


def _nsys_diagnostics(source: TraceSource, has_cuda_rows: bool) -> list[Finding]:
    has_nvtx_rows = source.has(schema.TABLE_NVTX)
    if not {"severity", "text"} <= source.columns("DIAGNOSTIC_EVENT"):
        return []
    findings = []
    for severity, text in source.texts("DIAGNOSTIC_EVENT", ["severity", "text"]):
        if severity not in (NSYS_SEVERITY_WARNING, NSYS_SEVERITY_ERROR):
            continue
        if (has_cuda_rows and NO_CUDA.search(text)) or (has_nvtx_rows and NO_NVTX.search(text)):
            continue
        if LOST_EVENTS.search(text):
            level = Severity.ERROR
        else:
            level = Severity.WARNING if severity == NSYS_SEVERITY_ERROR else Severity.NOTE
        findings.append(Finding("nsys-diagnostic", level, f"nsys says: {text.strip()}"))
    return findings


def _cut_off(source: TraceSource) -> Iterator[int]:
    if not {"text", "globalPid"} <= source.columns("DIAGNOSTIC_EVENT"):
        return
    for text, process in source.texts("DIAGNOSTIC_EVENT", ["text", "globalPid"]):
        if CUDA_CUT_OFF.search(text) and process.isdigit():
            yield pid_of(int(process))


def read_session_start(source: TraceSource) -> int | None:
    """UTC time of the trace's time 0; None where the trace does not have it."""
    if "utcEpochNs" not in source.columns("TARGET_INFO_SESSION_START_TIME"):
        return None
    times = source.integers("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])["utcEpochNs"]
    return int(times[0]) if len(times) and times[0] != MISSING else None


def _monotonic_origin(own: dict[str, list[str]]) -> int | None:
    text = own.get(schema.META_CLOCK_ORIGIN_NS, [""])[0]
    return int(text) if text.isdigit() else None


def _device_names(source: TraceSource) -> tuple[str, ...]:
    if "name" not in source.columns("TARGET_INFO_GPU"):
        return ()
    return tuple(name for (name,) in source.texts("TARGET_INFO_GPU", ["name"]))
