"""Join the telemetry of all nodes, on the clock of node 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfharness.errors import ResultError
from perfharness.model.findings import Finding, Severity
from perfharness.model.telemetry import (
    TELEMETRY_NAME,
    SampleLog,
    SubjectRecord,
    TelemetryMeta,
    of_node,
    process_subject,
)
from perfharness.telemetry.store import read_sample_log, write_sample_log


@dataclass(frozen=True)
class PartLog:
    """A part whose telemetry is joined.

    Args:
        offset_ns: offset to add to its times, for the clock of node 0.
        folders: new folders of the launched processes, by old folder.
    """

    folder: Path
    node: int
    offset_ns: int
    folders: Mapping[str, str]


def join_telemetry(parts: Sequence[PartLog], into: Path) -> list[Finding]:
    """Write the readings of all parts, if any; return findings on unreadable ones. Raises `OSError`."""
    logs, findings = list[SampleLog](), list[Finding]()
    for part in parts:
        if (part.folder / TELEMETRY_NAME).is_file():
            try:
                logs.append(_moved(read_sample_log(part.folder / TELEMETRY_NAME), part))
            except ResultError as error:
                message = f"Telemetry of node {part.node} is missing: {error}."
                findings.append(Finding("telemetry-incomplete", Severity.WARNING, message))
    if len(logs) > 1 or (logs and not (into / TELEMETRY_NAME).exists()):
        write_sample_log(into / TELEMETRY_NAME, _joined(logs))
    return findings


def _moved(log: SampleLog, part: PartLog) -> SampleLog:
    """Readings of a part, with the names of the joined run."""
    by_process = {process_subject(old): process_subject(new) for old, new in part.folders.items()}
    gpus = {one.subject for one in log.meta.subjects if one.kind in ("gpu", "mig")}

    def name(subject: str) -> str:
        launched, mark, pid = subject.partition("#")
        if launched in by_process:
            return by_process[launched] + mark + pid
        return subject if subject in gpus else of_node(part.node, subject)

    def rename(record: SubjectRecord) -> SubjectRecord:
        shown = part.folders.get(record.name or "", record.name)
        return record.model_copy(update={"subject": name(record.subject), "name": shown, "node": part.node})

    known = {subject for subject, _ in log.series} | {one.subject for one in log.meta.failures}
    log = log.with_names({subject: name(subject) for subject in known})
    meta = log.meta.model_copy(
        update={
            "subjects": list(map(rename, log.meta.subjects)),
            "update_periods": [
                one.model_copy(update={"subject": name(one.subject)}) for one in log.meta.update_periods
            ],
            **{
                field: None if time_ns is None else time_ns + part.offset_ns
                for field in ("idle_start_unix_ns", "idle_end_unix_ns")
                for time_ns in [getattr(log.meta, field)]
            },
        }
    )
    series = {key: replace(one, time_unix_ns=one.time_unix_ns + part.offset_ns) for key, one in log.series.items()}
    return SampleLog(series, meta)


def _joined(logs: Sequence[SampleLog]) -> SampleLog:
    """All readings. The first node counts for a GPU that two nodes have sampled."""
    metas = [log.meta for log in logs]
    series = {key: one for log in reversed(logs) for key, one in log.series.items()}
    subjects = {one.subject: one for meta in reversed(metas) for one in meta.subjects}
    costs = [meta.sampler_cpu_ns for meta in metas if meta.sampler_cpu_ns is not None]
    idle_start_ns, idle_end_ns = _idle_time(metas)
    meta = metas[0].model_copy(
        update={
            "subjects": sorted(subjects.values(), key=lambda one: one.node),
            "update_periods": [one for meta in metas for one in meta.update_periods],
            "failures": [one for meta in metas for one in meta.failures],
            "ended": "stopped" if all(meta.ended == "stopped" for meta in metas) else "cut_off",
            "idle_start_unix_ns": idle_start_ns,
            "idle_end_unix_ns": idle_end_ns,
            "sampler_cpu_ns": sum(costs) if costs else None,
        }
    )
    return SampleLog(series, meta)


def _idle_time(metas: Sequence[TelemetryMeta]) -> tuple[int, int] | tuple[None, None]:
    """Time in which the GPUs of all nodes were idle."""
    starts = [one for meta in metas if (one := meta.idle_start_unix_ns) is not None]
    ends = [one for meta in metas if (one := meta.idle_end_unix_ns) is not None]
    if len(starts) < len(metas) or len(ends) < len(metas) or max(starts) >= min(ends):
        return None, None
    return max(starts), min(ends)
