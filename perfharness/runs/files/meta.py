"""`meta` of the result files: the origin of the numbers."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable

from perfharness.distribution import VERSION
from perfharness.model.findings import Finding
from perfharness.model.journal import JOURNAL_NAME
from perfharness.model.manifest import MANIFEST_NAME, NodeRecord, ProcessRecord, RunManifest
from perfharness.model.result import SCHEMA_VERSION, BatchLoop, ProcessResult, Tree, path_text
from perfharness.model.trace import TraceMeta
from perfharness.model.units import NS_PER_MS
from perfharness.runs.files.process_analysis import TraceResult

OF_PROCESS = {"index", "folder", "pid", "ended", "exit_code", "signal", "command"}
OF_TREE = {"parent_pid", "rank", "local_rank", "world_size", "rank_source"}


def process_meta(
    manifest: RunManifest,
    process: ProcessRecord,
    result: ProcessResult,
    analysed: TraceResult,
    warmup_batches: int,
    findings: list[Finding],
) -> Tree:
    """`meta` of benchmark.json, with those findings of the run that are about the process."""
    trace, journal = analysed.trace_meta, analysed.journal
    return {
        **_common(manifest, warmup_batches, [one for one in findings if one.process == process.folder]),
        "process": {
            **process.model_dump(include=OF_PROCESS),
            **process.measured_self.model_dump(include=OF_TREE),
            **({"node": process.node} if manifest.nodes else {}),
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
        **_head(warmup_batches, result.findings),
        **_of_trace(trace, result),
        "device": {"id": None, "uuid": None, "name": _only_device(trace)},
        "sources": {"trace": source, "recorder": None},
        "versions": {"perfharness": VERSION},
    }


def _trace_name(process: ProcessRecord) -> str | None:
    """Path of the trace, relative to the folder of the process."""
    if process.trace is None:
        return None
    return posixpath.relpath(f"{process.launched_folder}/{process.trace}", process.folder)


def _by_path(loops: list[BatchLoop], count: Callable[[BatchLoop], int]) -> dict[str, int]:
    """Totals per path. Each thread, task and pass over the data is a separate loop."""
    total = Counter[str]()
    for loop in loops:
        total[path_text(loop.path)] += count(loop)
    return dict(total)


def _head(warmup_batches: int, findings: list[Finding]) -> Tree:
    return {
        "schema_version": SCHEMA_VERSION,
        "measurement_unit": "milliseconds",
        "warmup_batches": warmup_batches,
        "findings": [finding.to_json() for finding in findings],
    }


def _common(manifest: RunManifest, warmup_batches: int, findings: list[Finding]) -> Tree:
    copied = ("run_id", "created", "script", "script_arguments")
    return {**_head(warmup_batches, findings), **{name: getattr(manifest, name) for name in copied}}


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


def _device(manifest: RunManifest, process: ProcessRecord, trace: TraceMeta) -> Tree | list[Tree]:
    """GPU or list of GPUs given to the process, or the CPU if the machine has no GPU."""
    machine = manifest.machine_of(process).environment
    if not process.given_gpus:
        name = "CPU" if not machine.gpus else None
        return {"id": process.gpu_index, "uuid": None, "name": name}
    known: dict[str | None, Tree] = {
        gpu.uuid: {"id": gpu.index, "uuid": gpu.uuid, "name": gpu.name} for gpu in machine.gpus
    }
    devices = [known.get(uuid, {"id": None, "uuid": uuid, "name": None}) for uuid in process.given_gpus]
    if len(devices) > 1:
        return devices
    (device,) = devices
    name = device["name"] if device["uuid"] in known else _only_device(trace)
    return {**device, "id": process.gpu_index, "name": name}


def _versions(manifest: RunManifest) -> dict[str, str | None]:
    known = ("perfharness", "python", "driver", "cuda_driver")
    versions = {name: getattr(manifest.environment, name) for name in known}
    return {**versions, "analysed_by_perfharness": VERSION}
