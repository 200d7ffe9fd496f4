"""Writes `trace.sqlite`: decodes all records, puts them on one clock, replaces the file. Runs after the script."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.model import nsys_schema as schema
from perfharness.model.conventions import printable
from perfharness.model.range_log import LOG_PREFIX, LOG_SUFFIX, NAMES_SUFFIX, LogFacts
from perfharness.model.version import VERSION
from perfharness.tracer import cupti, devices, gpu_tables, nvtx_table
from perfharness.tracer.gpu import NotStartedError, StalledError, cuda_was_used
from perfharness.tracer.gpu_spool import FILE_PREFIX, FILE_SUFFIX
from perfharness.tracer.ranges import read_end, read_facts, read_log
from perfharness.tracer.records import Columns, LayoutError, check_lengths, decode
from perfharness.tracer.sqlite_file import TraceFile
from perfharness.tracer.tables import SCHEMA_VERSION

if TYPE_CHECKING:
    from perfharness.tracer.session import Session

KILLED = "the process was killed before it could write what the GPU did"
NOT_FOLLOWED = "the embedded tracer could not follow this process, whose recorder wrote its ranges by itself"
TIMESTAMP_OF_TARGET = 1
SOURCE_INJECTION = 1
SEVERITY_WARNING = 2


def write_trace(session: Session) -> Path:
    """Write the trace of a session whose script has ended; returns its path.

    The file gets its name only when it is complete. Raises OSError or sqlite3.Error where it cannot be written.
    """
    output = Path(session.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    path = output / session.trace_name
    paths = [path for path in log_paths(output) if path.name == session.log_name]
    with _new_file(path) as file:
        _fill(file, session)
        try:
            _merge_logs(file, paths, session.origin_ns)
        except OSError:  # as of a script that has left no descriptor: the launch takes them in
            paths = []
        file.write_strings()
    _remove(paths)
    if session.gpu is not None:
        session.gpu.spool.remove()
    return path


def complete_traces(folder: Path, launched_pid: int | None = None, *, of_running: bool = True) -> list[Path]:
    """Turn the logs that processes left in a folder into traces, one a process; all traces there are, by name.

    For processes that were killed, or left that to the launcher. May be called again at any time: a log is taken once.
    Raises OSError or sqlite3.Error where a trace cannot be written.

    Args:
        launched_pid: of the process whose trace is called `trace.sqlite`; None: the one that began first.
        of_running: take the logs of running processes too; events that they record later are lost.
    """
    _remove_gpu_records(folder)
    logs: dict[tuple[int, int | None], list[Path]] = {}
    for log in log_paths(folder):
        if of_running or not _is_alive(log):
            facts = _facts(log)
            logs.setdefault((_pid_of(log), None if facts is None else facts.start_ticks), []).append(log)
    path = folder / schema.TRACE_NAME
    if path.is_symlink():
        raise OSError(f"{path} is a link")
    written = {int(found[1]): one for one in _traces(folder) if (found := CHILD_TRACE.fullmatch(one.name))}
    if launched_pid is None and not path.exists():
        launched_pid = next(iter([*(pid for pid, _ in logs), *written]), None)
    if launched_pid in written and not path.exists():
        written[launched_pid].rename(path)  # it used the GPU, and so wrote its trace itself
    launched = next((one for one in logs if one[0] == launched_pid), None)  # one that has its pid later is another
    for process, own in logs.items():
        _complete(path if process == launched else folder / schema.child_trace_name(*process), own)
    traces = _traces(folder)
    return [path, *traces] if launched_pid is not None and path.exists() else traces


def _traces(folder: Path) -> list[Path]:
    """The traces of processes that a launched one started, or that wrote theirs themselves."""
    return sorted(one for one in folder.iterdir() if CHILD_TRACE.fullmatch(one.name))


def _complete(path: Path, paths: list[Path]) -> None:
    """Add the logs of one process to its trace, made if there is none and one of them can be read."""
    if path.is_symlink():
        raise OSError(f"{path} is a link")
    if path.exists():
        with TraceFile(path, new=False) as file:
            merged = set(file.values(schema.TABLE_PERFHARNESS, schema.META_MERGED_LOG))
            origin_ns = int(file.values(schema.TABLE_PERFHARNESS, schema.META_CLOCK_ORIGIN_NS)[0])
            _merge_logs(file, [path for path in paths if path.name not in merged], origin_ns)
            file.write_strings()
    else:
        facts = min((one for one in map(_facts, paths) if one), key=lambda one: one.started_ns, default=None)
        if facts is None:
            return
        end = read_end(paths[-1])
        cuda_used = facts.gpu_present is not False if end.cuda_used is None else end.cuda_used
        unsaid = NOT_FOLLOWED if facts.gpu_present is None else KILLED
        reason = schema.ONLY_RANGES if facts.only_ranges else end.gpu_reason or unsaid
        with _new_file(path) as file:
            _write_session(file, facts.started_unix_ns, None, ["NvtxEvents"])
            meta = {
                schema.META_CUDA_TRACED: "no",
                schema.META_CUDA_USED: "yes" if cuda_used else "no",
                schema.META_CUDA_UNTRACED_REASON: reason,
                schema.META_TRACER_VERSION: VERSION,
                schema.META_CLOCK_ORIGIN_NS: str(facts.started_ns),
            }
            rows = [*meta.items(), *((schema.META_DIAGNOSTIC, text) for text in end.diagnostics)]
            file.insert(schema.TABLE_PERFHARNESS, ("name", "value"), rows)
            _merge_logs(file, paths, facts.started_ns)
            file.write_strings()
    _remove(paths)


CHILD_TRACE = re.compile(r"trace_(\d{1,9})(?:_\d{1,19})?\.sqlite", re.ASCII)


def log_paths(folder: Path) -> list[Path]:
    """The range logs in a folder that are in no trace yet, oldest first."""
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


def _merge_logs(file: TraceFile, paths: list[Path], origin_ns: int) -> None:
    """Write the events of these logs and their processes. A log that is damaged is named in the trace.

    Raises OSError where one cannot be read.
    """
    naming: dict[int, nvtx_table.Naming] = defaultdict(nvtx_table.Naming)
    for path in paths:
        rows = [(schema.META_MERGED_LOG, path.name)]
        try:
            log = read_log(path)
        except (FileNotFoundError, ValueError) as error:
            rows.append((schema.META_DIAGNOSTIC, f"the ranges in {path.name} cannot be read: {error}"))
        else:
            nvtx_table.write_log(file, log, origin_ns, naming[log.facts.pid])
            process = schema.global_tid(log.facts.pid, 0)
            name = Path(printable(log.facts.executable)).name
            file.insert("PROCESSES", ("globalPid", "pid", "name"), [(process, log.facts.pid, name)])
            rows.append((schema.META_LOST_EVENTS, str(log.lost_events)))
            rows.append((schema.META_PROCESS, json.dumps(asdict(log.facts))))
        file.insert(schema.TABLE_PERFHARNESS, ("name", "value"), rows)


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        path.with_suffix(NAMES_SUFFIX).unlink(missing_ok=True)


def _remove_gpu_records(folder: Path) -> None:
    """Remove the GPU records of killed processes: decoding them needs data from their memory."""
    for path in folder.glob(f"{FILE_PREFIX}*{FILE_SUFFIX}"):
        pid = path.name.removeprefix(FILE_PREFIX).removesuffix(FILE_SUFFIX)
        if pid.isdecimal() and not path.is_dir() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)


def _facts(path: Path) -> LogFacts | None:
    with contextlib.suppress(OSError, ValueError):
        return read_facts(path)
    return None


def _pid_of(log: Path) -> int:
    pid = log.name.removeprefix(LOG_PREFIX).partition("_")[0]
    return int(pid) if pid.isdecimal() else 0


def _is_alive(log: Path) -> bool:
    """Whether the process that writes this log still runs; another may have its pid by now."""
    try:
        stat = Path(f"/proc/{_pid_of(log)}/stat").read_text(errors="replace").rpartition(")")[2].split()
        state, ticks = stat[0], int(stat[19])
    except (OSError, IndexError, ValueError):
        return False
    facts = _facts(log)
    return state not in "ZX" and (facts is None or facts.start_ticks in (None, ticks))


def _fill(file: TraceFile, session: Session) -> None:
    records, meta = gpu_records(session)
    if session.gpu is not None and records is not None:
        records = gpu_tables.of_own_threads(records, session)
        session.diagnostics.extend(gpu_tables.write(file, session, records, session.gpu.api_names))
        meta[schema.META_ENDLESS] = json.dumps(nvtx_table.write_markers(file, session, records))
    captured = ["NvtxEvents"] + (["Cuda"] if session.gpu is not None else [])
    _write_session(file, session.origin_unix_ns, session.end_ns - session.origin_ns, captured)
    process = schema.global_tid(session.pid, 0)
    file.insert(
        "DIAGNOSTIC_EVENT",
        ("timestamp", "timestampType", "source", "severity", "text", "globalPid"),
        [(0, TIMESTAMP_OF_TARGET, SOURCE_INJECTION, SEVERITY_WARNING, text, process) for text in session.diagnostics],
    )
    if meta[schema.META_CUDA_USED] == "yes":
        driver = cupti.driver_library()
        if driver is not None:
            devices.write(file, driver, session.pid)
    meta[schema.META_TRACER_VERSION] = VERSION
    meta[schema.META_CLOCK_ORIGIN_NS] = str(session.origin_ns)
    rows = [*meta.items(), *((schema.META_DIAGNOSTIC, text) for text in session.diagnostics)]
    file.insert(schema.TABLE_PERFHARNESS, ("name", "value"), rows)


def gpu_records(session: Session) -> tuple[dict[int, Columns] | None, dict[str, str]]:
    """Decoded records by kind (None where the GPU was not traced), and metadata about it."""
    meta = {
        schema.META_CUDA_TRACED: "no",
        schema.META_CUDA_USED: "yes" if cuda_was_used() else "no",
        schema.META_GPU_PRESENT: "yes" if session.gpu_present else "no",
    }
    reason = session.gpu_reason
    if session.gpu is not None:
        meta[schema.META_CUPTI_VERSION] = f"{session.gpu.cupti.version} ({session.gpu.cupti.path})"
        try:
            dropped, taken_over = session.gpu.stop()
            meta[schema.META_DROPPED_RECORDS] = str(dropped)
            meta[schema.META_ALL_CALLS] = "yes" if session.gpu.all_calls and not dropped else "no"
            if taken_over:
                reason = "another user of CUPTI (torch.profiler?) took the records while the script ran"
            else:
                check_lengths(session.gpu.cupti, session.gpu.spool.buffers())
                records = decode(session.gpu.cupti, session.gpu.spool.buffers())
                meta[schema.META_CUDA_TRACED] = "yes"
                return records, meta
        except StalledError:
            reason = schema.CUPTI_STALLED
        except NotStartedError as error:
            reason = str(error)
        except (cupti.CuptiError, LayoutError, OSError) as error:
            reason = f"CUPTI's records could not be read: {error}"
    if reason:
        meta[schema.META_CUDA_UNTRACED_REASON] = reason
        if reason != schema.ONLY_RANGES and session.gpu_present and meta[schema.META_CUDA_USED] == "yes":
            session.diagnostics.append(f"GPU work is not in this trace: {reason}.")
    return None, meta


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
