"""`meta` of the result files: the origin of the numbers."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any

from perfharness.distribution import VERSION
from perfharness.model.findings import Finding
from perfharness.model.journal import JOURNAL_NAME
from perfharness.model.manifest import MANIFEST_NAME, NodeRecord, ProcessRecord, RunManifest
from perfharness.model.result import SCHEMA_VERSION, BatchLoop, ProcessResult, Tree, path_text
from perfharness.model.trace import TraceMeta
from perfharness.model.units import NS_PER_MS
from perfharness.runs.files.process_analysis import TraceResult

UNIT = "milliseconds"
OF_TREE = {"parent_pid", "rank", "local_rank", "world_size", "rank_source"}


def process_meta(
    manifest: RunManifest,
    process: ProcessRecord,
    result: ProcessResult,
    analysed: TraceResult,
    warmup_batches: int,
    findings: list[Finding],
) -> Tree:
    """`meta` of benchmark.json."""
    trace, journal = analysed.trace_meta, analysed.journal
    return {
        **_common(manifest, warmup_batches, findings),
        "process": {
            "index": process.index,
            "folder": process.folder,
            "pid": process.pid,
            **process.measured_self.model_dump(include=OF_TREE),
            **({"node": process.node} if manifest.nodes else {}),
            "ended": process.ended,
            "exit_code": process.exit_code,
            "signal": process.signal,
            "command": process.command,
        },
        **_of_trace(trace, result),
        "device": _device(manifest, process, trace),
        "args": {record.name: record.args for record in journal.recorders} if journal else {},
        "clock": None if trace.clock is None else trace.clock.to_json(),
        "sources": {
            "trace": _trace_name(process),
            "recorder": JOURNAL_NAME if journal else None,
            "trace_bytes": analysed.trace_bytes,
        },
        "versions": {**_versions(manifest), "nvtx": journal.nvtx_version if journal else manifest.environment.nvtx},
    }


def mean_meta(
    manifest: RunManifest, results: dict[str, ProcessResult], warmup_batches: int, findings: list[Finding]
) -> Tree:
    """`meta` of benchmark_mean.json."""
    return {
        **_common(manifest, warmup_batches, findings),
        "processes": list(results),
        "num_processes": len(manifest.processes),
        "command": manifest.command,
        "names": list(dict.fromkeys(name for result in results.values() for name in result.names)),
        "tracer": manifest.tracer.model_dump(),
        "environment": manifest.environment.model_dump(),
        **({"nodes": list(map(_node, manifest.nodes))} if manifest.nodes else {}),
        "sources": {
            "manifest": MANIFEST_NAME,
            "traces": {p.folder: _trace_name(p) for p in manifest.measured_processes},
        },
        "versions": _versions(manifest),
    }


def _node(node: NodeRecord) -> Tree:
    return {
        "rank": node.rank,
        "environment": node.environment.model_dump(),
        "clock_offset_ms": node.clock_offset_ns / NS_PER_MS,
        "clock_error_ms": node.clock_error_ns / NS_PER_MS,
        "clock_drift_ms": node.clock_drift_ns / NS_PER_MS,
    }


def trace_only_meta(trace: TraceMeta, result: ProcessResult, source: str, warmup_batches: int) -> Tree:
    """`meta` of a trace file alone. The Python of the traced program is not known."""
    return {
        "schema_version": SCHEMA_VERSION,
        "measurement_unit": UNIT,
        "warmup_batches": warmup_batches,
        **_of_trace(trace, result),
        "device": {"id": None, "uuid": None, "name": _only_device(trace)},
        "sources": {"trace": source, "recorder": None},
        "versions": {"perfharness": VERSION},
        "findings": [finding.to_json() for finding in result.findings],
    }


def _trace_name(process: ProcessRecord) -> str | None:
    """Path of the trace, relative to the folder of the process."""
    if process.trace is None:
        return None
    return posixpath.relpath(f"{process.launched_folder}/{process.trace}", process.folder)


def _by_path(loops: list[BatchLoop], count: Callable[[BatchLoop], int]) -> dict[str, int]:
    """Totals per path. Each thread, task and pass over the data is a separate loop."""
    total: dict[str, int] = {}
    for loop in loops:
        name = path_text(loop.path)
        total[name] = total.get(name, 0) + count(loop)
    return total


def _common(manifest: RunManifest, warmup_batches: int, findings: list[Finding]) -> Tree:
    return {
        "schema_version": SCHEMA_VERSION,
        "measurement_unit": UNIT,
        "run_id": manifest.run_id,
        "created": manifest.created,
        "script": manifest.script,
        "script_arguments": manifest.script_arguments,
        "warmup_batches": warmup_batches,
        "findings": [finding.to_json() for finding in findings],
    }


def _of_trace(trace: TraceMeta, result: ProcessResult) -> Tree:
    return {
        "names": result.names,
        "total_batches": _by_path(result.loops, lambda loop: loop.count),
        "total_batches_minus_warmup": _by_path(result.loops, lambda loop: loop.count_minus_warmup),
        "tracer": {
            "kind": trace.tracer,
            "version": trace.tracer_version,
            "gpu": trace.gpu_coverage,
            "gpu_reason": trace.gpu_coverage_reason,
        },
    }


def _only_device(trace: TraceMeta) -> str | None:
    return trace.device_names[0] if len(trace.device_names) == 1 else None


def _device(manifest: RunManifest, process: ProcessRecord, trace: TraceMeta) -> dict[str, Any] | list[dict[str, Any]]:
    """GPU or list of GPUs given to the process, or the CPU if the machine has no GPU."""
    machine = manifest.machine_of(process).environment
    if not process.given_gpus:
        name = "CPU" if not machine.gpus else None
        return {"id": process.gpu_index, "uuid": None, "name": name}
    known = {gpu.uuid: gpu for gpu in machine.gpus}
    records = [(uuid, known.get(uuid)) for uuid in process.given_gpus]
    if len(records) > 1:
        return [
            {"id": record and record.index, "uuid": uuid, "name": record and record.name} for uuid, record in records
        ]
    ((uuid, record),) = records
    return {"id": process.gpu_index, "uuid": uuid, "name": record.name if record else _only_device(trace)}


def _versions(manifest: RunManifest) -> dict[str, str | None]:
    environment = manifest.environment
    return {
        "perfharness": environment.perfharness,
        "analysed_by_perfharness": VERSION,
        "python": environment.python,
        "driver": environment.driver,
        "cuda_driver": environment.cuda_driver,
    }
