"""Write traces: at exit of a process that used the GPU, after the launch from the logs of all others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.distribution import VERSION
from perfharness.model import nsys_schema as schema
from perfharness.model.conventions import printable
from perfharness.tracer import cupti, devices, gpu_tables, nvtx_events
from perfharness.tracer.gpu import StalledError
from perfharness.tracer.log_reader import LogEnd, read_log, read_names
from perfharness.tracer.range_log import LOG_PREFIX, LOG_SUFFIX, NAMES_SUFFIX, LogFacts
from perfharness.tracer.records import Columns, LayoutError, check_lengths, decode
from perfharness.tracer.trace_file import SCHEMA_VERSION, TraceFile

if TYPE_CHECKING:
    from perfharness.tracer.session import Session

CHILD_TRACE = re.compile(r"trace_(\d{1,9})(?:_(\d{1,19}))?\.sqlite", re.ASCII)

_Process = tuple[int, int | None]
"""Process ID and start time; the kernel reuses process IDs."""

KILLED = "the process ended before it could write its GPU work"
NOT_FOLLOWED = "the embedded tracer could not follow this process; only its recorder's ranges are known"


def write_trace(session: Session) -> Path:
    """Write the trace of a process after its script, and remove its log; return the path.

    A temporary file is renamed when complete. Raises `OSError` or `sqlite3.Error`.
    """
    folder = Path(session.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / session.trace_name
    logs = [log for log in log_paths(folder) if log.name == session.log.file_name]
    with _new_file(path) as file:
        _write_gpu_work(file, session)
        _merge_logs(file, logs, session.origin_ns)
        file.write_strings()
    _remove(logs)
    return path


def complete_traces(folder: Path, launched_pid: int | None = None, *, of_running: bool = True) -> list[Path]:
    """Turn the logs in a folder into traces, one per process; return all traces, by name.

    May be called again: each log is used once. Raises `OSError` or `sqlite3.Error`.

    Args:
        launched_pid: process whose trace is `trace.sqlite`, or None for the first to start.
        of_running: use logs of running processes too; their later events are lost.
    """
    logs: dict[_Process, list[Path]] = {}
    for log in log_paths(folder):
        facts = _facts(log)
        if of_running or not _is_alive(_pid_of(log), facts):
            logs.setdefault((_pid_of(log), None if facts is None else facts.start_ticks), []).append(log)
    path, own_traces = folder / schema.TRACE_NAME, _child_traces(folder)
    if launched_pid is None and not path.exists():
        launched_pid = min((*own_traces, *logs), key=lambda process: process[1] or 0, default=(None, None))[0]
    launched = next((process for process in (*own_traces, *logs) if process[0] == launched_pid), None)
    if launched in own_traces and not path.exists():
        own_traces[launched].rename(path)
    for process, paths in logs.items():
        _complete(path if process == launched else folder / schema.child_trace_name(*process), paths)
    traces = sorted(_child_traces(folder).values())
    return [path, *traces] if path.exists() else traces


def _child_traces(folder: Path) -> dict[_Process, Path]:
    found = ((CHILD_TRACE.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {(int(name[1]), int(name[2]) if name[2] else None): path for name, path in found if name is not None}


def _complete(path: Path, logs: list[Path]) -> None:
    """Add the logs of a process to its trace; create it if a log is readable."""
    if path.is_symlink():
        raise OSError(f"{path} is a link")
    if path.exists():
        with TraceFile(path, new=False) as file:
            merged = set(file.values(schema.TABLE_PERFHARNESS, schema.META_MERGED_LOG))
            origin_ns = int(file.values(schema.TABLE_PERFHARNESS, schema.META_CLOCK_ORIGIN_NS)[0])
            _merge_logs(file, [log for log in logs if log.name not in merged], origin_ns)
            file.write_strings()
    elif facts := min(filter(None, map(_facts, logs)), key=lambda one: one.started_ns, default=None):
        with _new_file(path) as file:
            _write_session(file, facts.started_unix_ns, None, ["NvtxEvents"])
            _write_meta(file, {schema.META_CLOCK_ORIGIN_NS: str(facts.started_ns), **_meta_of_log(facts, logs[-1])})
            _merge_logs(file, logs, facts.started_ns)
            file.write_strings()
    else:
        return
    _remove(logs)


def _meta_of_log(facts: LogFacts, last: Path) -> dict[str, str]:
    """GPU metadata of a trace made from logs, with the notes of the process at its end, if any."""
    end = LogEnd()
    with contextlib.suppress(OSError, ValueError):
        end = read_names(last)[1]
    cuda_used = facts.gpu_present is not False if end.cuda_used is None else end.cuda_used
    unsaid = NOT_FOLLOWED if facts.gpu_present is None else KILLED
    return {
        schema.META_CUDA_TRACED: "no",
        schema.META_CUDA_USED: "yes" if cuda_used else "no",
        schema.META_CUDA_UNTRACED_REASON: schema.ONLY_RANGES if facts.only_ranges else end.gpu_reason or unsaid,
    }


def log_paths(folder: Path) -> list[Path]:
    """List the range logs in a folder that are not in a trace yet, oldest first."""
    found = [path for path in folder.glob(f"{LOG_PREFIX}*{LOG_SUFFIX}") if path.is_file() and not path.is_symlink()]
    return sorted(found, key=lambda path: path.stem.rpartition("_")[2])


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[TraceFile]:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    try:
        with TraceFile(unfinished) as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _merge_logs(file: TraceFile, logs: list[Path], origin_ns: int) -> None:
    """Write the events of a process's logs, and a diagnostic for each damaged log. Raises `OSError`."""
    naming = nvtx_events.Naming()
    for path in logs:
        rows = [(schema.META_MERGED_LOG, path.name)]
        try:
            log = read_log(path)
        except (FileNotFoundError, ValueError) as error:
            rows.append((schema.META_DIAGNOSTIC, f"ranges in {path.name} cannot be read: {error}"))
        else:
            unusable = nvtx_events.write_log(file, log, origin_ns, naming)
            process = schema.global_tid(log.facts.pid, 0)
            name = Path(printable(log.facts.executable)).name
            file.insert("PROCESSES", ("globalPid", "pid", "name"), [(process, log.facts.pid, name)])
            rows.append((schema.META_LOST_EVENTS, str(log.lost_events + unusable)))
            rows.append((schema.META_PROCESS, json.dumps(asdict(log.facts))))
        file.insert(schema.TABLE_PERFHARNESS, ("name", "value"), rows)


def _remove(logs: list[Path]) -> None:
    for path in logs:
        path.unlink(missing_ok=True)
        path.with_suffix(NAMES_SUFFIX).unlink(missing_ok=True)


def _facts(log: Path) -> LogFacts | None:
    with contextlib.suppress(OSError, ValueError):
        return read_names(log)[0]
    return None


def _pid_of(log: Path) -> int:
    pid = log.name.removeprefix(LOG_PREFIX).partition("_")[0]
    return int(pid) if pid.isdecimal() else 0


def _is_alive(pid: int, facts: LogFacts | None) -> bool:
    """Whether the process that writes a log still runs, and the pid is not another process's."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return stat[0] not in "ZX" and (facts is None or facts.start_ticks in (None, int(stat[19])))


def _write_gpu_work(file: TraceFile, session: Session) -> None:
    """Write the trace of a session, without its log."""
    records, meta, diagnostics = gpu_records(session)
    if session.gpu is not None and records is not None:
        records = gpu_tables.of_own_threads(records, session)
        diagnostics += gpu_tables.write(file, session, records, session.gpu.api_names)
        meta[schema.META_ENDLESS] = json.dumps(nvtx_events.write_markers(file, session, records))
    captured = ["NvtxEvents"] + (["Cuda"] if session.gpu is not None else [])
    _write_session(file, session.origin_unix_ns, session.end_ns - session.origin_ns, captured)
    driver = cupti.driver_library()
    if driver is not None:
        devices.write(file, driver, session.pid)
    _write_meta(file, {**meta, schema.META_CLOCK_ORIGIN_NS: str(session.origin_ns)}, diagnostics)


def gpu_records(session: Session) -> tuple[dict[int, Columns] | None, dict[str, str], list[str]]:
    """Return records by kind (None if the GPU was not traced), their metadata, and problems."""
    meta = {
        schema.META_CUDA_TRACED: "no",
        schema.META_CUDA_USED: "yes",
        schema.META_GPU_PRESENT: "yes" if session.gpu_present else "no",
    }
    gpu, reason = session.gpu, session.gpu_reason
    if gpu is not None:
        meta[schema.META_CUPTI_VERSION] = f"{gpu.cupti.version} ({gpu.cupti.path})"
        try:
            dropped, taken_over = gpu.stop()
            meta[schema.META_DROPPED_RECORDS] = str(dropped)
            meta[schema.META_ALL_CALLS] = "yes" if gpu.all_calls and not dropped else "no"
            if not taken_over:
                buffers = gpu.pool.completed()
                check_lengths(gpu.cupti, buffers)
                records = decode(gpu.cupti, buffers)
                return records, {**meta, schema.META_CUDA_TRACED: "yes"}, []
            reason = "another user of CUPTI (torch.profiler?) took the records during the run"
        except StalledError:
            reason = schema.CUPTI_STALLED
        except (cupti.CuptiError, LayoutError, OSError) as error:
            reason = f"CUPTI's records cannot be read: {error}"
    meta[schema.META_CUDA_UNTRACED_REASON] = reason or schema.CUPTI_NOT_STARTED
    return None, meta, [f"This trace has no GPU work: {meta[schema.META_CUDA_UNTRACED_REASON]}."]


def _write_meta(file: TraceFile, meta: dict[str, str], diagnostics: Sequence[str] = ()) -> None:
    rows = [(schema.META_TRACER_VERSION, VERSION), *meta.items()]
    rows += [(schema.META_DIAGNOSTIC, text) for text in diagnostics]
    file.insert(schema.TABLE_PERFHARNESS, ("name", "value"), rows)


def _write_session(file: TraceFile, origin_unix_ns: int, duration_ns: int | None, captured: list[str]) -> None:
    clock = "%Y-%m-%dT%H:%M:%S"
    started = [time.strftime(clock, convert(origin_unix_ns / 1e9)) for convert in (time.gmtime, time.localtime)]
    columns = ("utcEpochNs", "utcTime", "localTime")
    file.insert("TARGET_INFO_SESSION_START_TIME", columns, [(origin_unix_ns, *started)])
    duration = [] if duration_ns is None else [(devices.VM_ID, duration_ns, 0, duration_ns)]
    file.insert("ANALYSIS_DETAILS", ("globalVid", "duration", "startTime", "stopTime"), duration)
    numbers = (".".join(map(str, SCHEMA_VERSION)), *map(str, SCHEMA_VERSION))
    parts = ("", "_MAJOR", "_MINOR", "_MICRO")
    rows = [(f"EXPORT_SCHEMA_VERSION{part}", number) for part, number in zip(parts, numbers, strict=True)]
    product = [("EXPORT_PRODUCT_NAME", "perfharness"), ("EXPORT_PRODUCT_VERSION", VERSION)]
    file.insert("META_DATA_EXPORT", ("name", "value"), [*product, *rows])
    file.insert("META_DATA_CAPTURE", ("name", "value"), [("CAPTURE_EVENT_TYPE", kind) for kind in captured])
