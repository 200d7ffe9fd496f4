"""Join the parts of a run, one per node, into one run folder, on the clock of node 0.

In `proc_X_gpu_Y`, X counts on from node to node; Y stays the GPU's index on its machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfharness.errors import ResultError
from perfharness.files import read_model, write_model
from perfharness.model.findings import Finding, Severity
from perfharness.model.journal import JOURNAL_NAME, JOURNALS_OF_CHILDREN
from perfharness.model.manifest import (
    EXPLAIN_NAME,
    MANIFEST_NAME,
    EnvironmentRecord,
    NodeRecord,
    ProcessRecord,
    RunManifest,
    StartBarrierRecord,
)
from perfharness.model.telemetry import (
    TELEMETRY_NAME,
    SampleLog,
    SubjectRecord,
    TelemetryMeta,
    of_node,
    process_subject,
)
from perfharness.telemetry.store import read_sample_log, write_sample_log

COMPARED = ("os", "kernel", "cpu", "cpu_count", "python", "perfharness", "nvtx", "driver", "cuda_driver")
"""Fields of the environment that should agree on all nodes."""

MAX_PACKAGES = 4
"""Most differing packages with separate findings."""

SINGLE_RANK = "ranks-missing"
"""Finding on each node with one rank of several."""

JOIN_FINDINGS = ("node-missing", "nodes-differ", "nodes-started")
"""Findings that are made anew with each joined part."""

Take = Callable[[Path, Path], object]
"""Moves or copies a folder."""


@dataclass(frozen=True)
class Part:
    """A run to join: of one node (manifest with `node`), or joined with missing nodes (`nodes`)."""

    folder: Path
    manifest: RunManifest

    @classmethod
    def read(cls, folder: Path) -> Part | None:
        """Read the run in a folder; None if it is missing or unreadable."""
        manifest = None
        with suppress(ResultError):
            manifest = read_model(folder / MANIFEST_NAME, RunManifest)
        return None if manifest is None else cls(folder, manifest)

    @property
    def rank(self) -> int:
        """Number of the node; 0 for a joined run."""
        return 0 if self.manifest.node is None else self.manifest.node.rank

    @property
    def offset_ns(self) -> int:
        """Offset to add to its times, for the clock of node 0."""
        return 0 if self.manifest.node is None else self.manifest.node.clock_offset_ns

    @property
    def nodes(self) -> list[NodeRecord]:
        """Its nodes, with environment and conditions."""
        manifest = self.manifest
        if manifest.node is None:
            return manifest.nodes
        barrier = manifest.start_barrier
        times = {
            "opened_unix_ns": None if barrier is None else barrier.opened_unix_ns,
            "container_start_unix_ns": manifest.container_start_unix_ns,
        }
        known = {"environment": manifest.environment, "companions": manifest.companions}
        return [manifest.node.model_copy(update={**known, **moved(times, self.offset_ns)})]


def join(parts: Sequence[Part], into: Path, take: Take, why_missing: Callable[[int], str]) -> RunManifest:
    """Join parts into a folder; return the manifest, not yet written. Raises `OSError`.

    Args:
        parts: the first is of node 0 or joined, and may be in `into`.
        take: moves or copies the folder of a process.
        why_missing: reason why a node has no part.
    """
    into.mkdir(parents=True, exist_ok=True)
    numbered, logs, findings = list[RunManifest](), list[SampleLog](), list[Finding]()
    for part in parts:
        before = [process for one in numbered for process in one.processes]
        names = _new_names(part.manifest, 1 + max((_place(one.folder) for one in before), default=-1))
        _take_processes(part, names, into, take)
        numbered.append(_numbered(part, len(before), names))
        findings += numbered[-1].findings
        try:
            if (part.folder / TELEMETRY_NAME).is_file():
                logs.append(_moved_log(part, names))
        except ResultError as error:
            message = f"Telemetry of node {part.rank} is missing: {error}."
            findings.append(Finding("telemetry-incomplete", Severity.WARNING, message))
    if len(logs) > 1 or (logs and not (into / TELEMETRY_NAME).exists()):
        write_sample_log(into / TELEMETRY_NAME, _joined_log(logs))
    processes = [process for one in numbered for process in one.processes]
    if len({one.rank for process in processes for one in process.measured} - {None}) > 1:
        findings = [one for one in findings if one.code != SINGLE_RANK]  # the comparison of the ranks reports it
    nodes = sorted((node for part in parts for node in part.nodes), key=lambda node: node.rank)
    manifest = numbered[0].model_copy(
        update={
            "complete": True,  # a finding reports parts whose launcher was killed
            "processes": processes,
            "findings": findings,
            "start_barrier": _barrier(numbered),
            "explained": any(one.explained for one in numbered),
            "node": None,
            "nodes": nodes,
        }
    )
    if not manifest.explaining:
        found = [*_missing(manifest, why_missing), *_differences(nodes), *_start(nodes)]
        manifest = manifest.model_copy(update={"findings": [*manifest.findings, *found]})
        _join_profiling_passes(parts, into, take)
    return manifest


def _join_profiling_passes(parts: Sequence[Part], into: Path, take: Take) -> None:
    passes = []
    for part in parts:
        found = Part.read(part.folder / EXPLAIN_NAME)  # the analysis of the joined pass reports missing parts
        if found is not None:
            passes.append(replace(found, manifest=found.manifest.model_copy(update={"node": part.manifest.node})))
    if passes:
        manifest = join(passes, into / EXPLAIN_NAME, take, lambda rank: "")
        write_model(into / EXPLAIN_NAME / MANIFEST_NAME, manifest)


def _place(folder: str) -> int:
    """X of `proc_X_gpu_Y`."""
    return int(folder.split("_")[1])


def _new_names(manifest: RunManifest, first: int) -> dict[str, str]:
    """New folders of the launched processes, by old folder."""
    folders = [one.folder for one in manifest.processes]
    return {old: f"proc_{_place(old) + first}_gpu_{old.split('_gpu_')[1]}" for old in folders}


def moved(tree: Any, offset_ns: int, *, is_time: bool = False) -> Any:
    """Add an offset to the UTC times in JSON: values of keys that end in `unix_ns`, and of `started_ns`."""
    if isinstance(tree, dict):
        return {
            key: moved(value, offset_ns, is_time=is_time or key.endswith("unix_ns") or key == "started_ns")
            for key, value in tree.items()
        }
    if isinstance(tree, list):
        return [moved(value, offset_ns, is_time=is_time) for value in tree]
    return tree + offset_ns if is_time and isinstance(tree, int) else tree


def _take_processes(part: Part, names: Mapping[str, str], into: Path, take: Take) -> None:
    """Take the folders of the processes; convert the times in their journals to node 0's clock."""
    for old, new in names.items():
        if part.folder / old == into / new or not (part.folder / old).is_dir():
            continue
        take(part.folder / old, into / new)
        for pattern in (JOURNAL_NAME, JOURNALS_OF_CHILDREN, f"*/{JOURNAL_NAME}"):
            for path in (into / new).glob(pattern) if part.offset_ns else ():
                path.write_text(json.dumps(moved(json.loads(path.read_bytes()), part.offset_ns)), encoding="utf-8")


def _numbered(part: Part, first: int, names: Mapping[str, str]) -> RunManifest:
    """Manifest of a part on node 0's clock, with the processes' numbers and folders in the joined run."""
    manifest = part.manifest
    if part.offset_ns:
        manifest = RunManifest.model_validate(moved(manifest.model_dump(), part.offset_ns))
    node = None if manifest.node is None else part.nodes[0]
    barrier = manifest.start_barrier
    if barrier is not None:
        arrived = {names.get(folder, folder): time for folder, time in barrier.arrived_unix_ns.items()}
        barrier = barrier.model_copy(update={"arrived_unix_ns": arrived})
    processes = [_numbered_process(one, names[one.folder], one.index + first, node) for one in manifest.processes]
    findings = [_named_finding(one, names, node) for one in manifest.findings if one.code not in JOIN_FINDINGS]
    return manifest.model_copy(update={"processes": processes, "findings": findings, "start_barrier": barrier})


def _numbered_process(process: ProcessRecord, folder: str, index: int, node: NodeRecord | None) -> ProcessRecord:
    measured = [
        one.model_copy(update={"folder": folder + one.folder[len(process.folder) :], "launched_index": index})
        for one in process.measured
    ]
    rank = process.node if node is None else node.rank
    return process.model_copy(update={"folder": folder, "index": index, "node": rank, "measured": measured})


def _named_finding(finding: Finding, names: Mapping[str, str], node: NodeRecord | None) -> Finding:
    """The finding with the new folder of its process, or with the name of its node if it has no process."""
    if finding.process is not None:
        launched, *below = finding.process.split("/")
        return replace(finding, process="/".join([names.get(launched, launched), *below]))
    return finding if node is None else replace(finding, message=f"On {node.name}: {finding.message}")


def _barrier(manifests: Sequence[RunManifest]) -> StartBarrierRecord | None:
    barriers = [one.start_barrier for one in manifests if one.start_barrier is not None]
    if not barriers:
        return None
    return StartBarrierRecord(
        timeout_s=barriers[0].timeout_s,
        opened_unix_ns=min((one.opened_unix_ns for one in barriers if one.opened_unix_ns is not None), default=None),
        arrived_unix_ns={folder: time for one in barriers for folder, time in one.arrived_unix_ns.items()},
    )


def _missing(manifest: RunManifest, why: Callable[[int], str]) -> Iterator[Finding]:
    for rank in manifest.missing_nodes:
        message = f"Node {rank} of {manifest.nodes[0].count} left no results: {why(rank)}."
        hint = f"If the node has a run in its output folder: perfharness analyze THIS_RUN .../node_{rank} -o JOINED"
        yield Finding("node-missing", Severity.ERROR, message, hint)


def _differences(nodes: Sequence[NodeRecord]) -> Iterator[Finding]:
    machines = [_facts(node.environment) for node in nodes]
    names = list(dict.fromkeys(name for one in machines for name in one))
    differing = [name for name in names if len({one.get(name) for one in machines}) > 1]
    rest = [name for name in differing if name.startswith("package ")][MAX_PACKAGES:]
    for name in [name for name in differing if name not in rest]:
        values = (f"{one.get(name) or 'none'} on {node.name}" for node, one in zip(nodes, machines, strict=True))
        yield Finding("nodes-differ", Severity.WARNING, f"The nodes differ in {name}: {'; '.join(values)}.")
    if rest:
        message = f"The nodes differ in {len(rest)} further packages: {', '.join(rest)}."
        yield Finding("nodes-differ", Severity.WARNING, message)


def _facts(environment: EnvironmentRecord) -> dict[str, str]:
    packages = {f"package {name}": version for name, version in environment.packages.items()}
    gpus = ", ".join(gpu.name or "unknown" for gpu in environment.gpus)
    return {**{name: str(getattr(environment, name)) for name in COMPARED}, "GPUs": gpus, **packages}


def _start(nodes: Sequence[NodeRecord]) -> Iterator[Finding]:
    opened = [node.opened_unix_ns for node in nodes if node.opened_unix_ns is not None]
    if len(opened) == len(nodes) > 1:
        apart, error = max(opened) - min(opened), max(node.clock_error_ns for node in nodes)
        message = (
            f"The measured batches of {len(nodes)} nodes began within {apart / 1e6:.3f} ms (clock error "
            f"{error / 1e6:.3f} ms)."
        )
        yield Finding("nodes-started", Severity.NOTE, message)


# ---- telemetry ----


def _moved_log(part: Part, names: Mapping[str, str]) -> SampleLog:
    """Readings of a part on node 0's clock, with the names of the joined run. Raises `ResultError`."""
    log = read_sample_log(part.folder / TELEMETRY_NAME)
    by_process = {process_subject(old): process_subject(new) for old, new in names.items()}
    gpus = {one.subject for one in log.meta.subjects if one.kind in ("gpu", "mig")}

    def name(subject: str) -> str:
        launched, mark, pid = subject.partition("#")
        if launched in by_process:
            return by_process[launched] + mark + pid
        return subject if subject in gpus else of_node(part.rank, subject)

    def rename(record: SubjectRecord) -> SubjectRecord:
        shown = names.get(record.name or "", record.name)
        return record.model_copy(update={"subject": name(record.subject), "name": shown, "node": part.rank})

    known = {subject for subject, _ in log.series} | {one.subject for one in log.meta.failures}
    log = log.with_names({subject: name(subject) for subject in known})
    meta = TelemetryMeta.model_validate(moved(log.meta.model_dump(), part.offset_ns))
    periods = [one.model_copy(update={"subject": name(one.subject)}) for one in meta.update_periods]
    meta = meta.model_copy(update={"subjects": list(map(rename, meta.subjects)), "update_periods": periods})
    series = {key: replace(one, time_unix_ns=one.time_unix_ns + part.offset_ns) for key, one in log.series.items()}
    return SampleLog(series, meta)


def _joined_log(logs: Sequence[SampleLog]) -> SampleLog:
    """All readings. The first node counts for a GPU that two nodes have sampled."""
    metas = [log.meta for log in logs]
    series = {key: one for log in reversed(logs) for key, one in log.series.items()}
    subjects = {one.subject: one for meta in reversed(metas) for one in meta.subjects}
    costs = [meta.sampler_cpu_ns for meta in metas if meta.sampler_cpu_ns is not None]
    starts, ends = ([getattr(meta, f"idle_{end}_unix_ns") for meta in metas] for end in ("start", "end"))
    was_idle = None not in (*starts, *ends) and max(starts) < min(ends)
    meta = metas[0].model_copy(
        update={
            "subjects": sorted(subjects.values(), key=lambda one: one.node),
            "update_periods": [one for meta in metas for one in meta.update_periods],
            "failures": [one for meta in metas for one in meta.failures],
            "ended": "stopped" if all(meta.ended == "stopped" for meta in metas) else "cut_off",
            "idle_start_unix_ns": max(starts) if was_idle else None,  # all GPUs were idle
            "idle_end_unix_ns": min(ends) if was_idle else None,
            "sampler_cpu_ns": sum(costs) if costs else None,
        }
    )
    return SampleLog(series, meta)
