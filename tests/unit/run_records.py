"""Manifests of runs that were made up."""

from __future__ import annotations

from typing import Any

from perfharness.model.manifest import EnvironmentRecord, GpuRecord, ProcessRecord, RunManifest, TracerRecord


def process(index: int, **changes: Any) -> ProcessRecord:
    """A process that ended well."""
    record: dict[str, Any] = {
        "index": index, "gpu_index": 0, "gpu_uuid": "GPU-1", "folder": f"proc_{index}_gpu_0",
        "command": ["python", "toy.py"], "pid": 100, "exit_code": 0, "ended": "ok", "trace": "trace.sqlite",
    }  # fmt: skip
    return ProcessRecord(**(record | changes))


def manifest_of(*processes: ProcessRecord, **changes: Any) -> RunManifest:
    """Of these processes, on one GPU."""
    record: dict[str, Any] = {
        "run_id": "r1", "created": "2026-01-01T00:00:00Z", "command": ["perfharness", "launch", "toy.py"],
        "script": "toy.py",
        "num_processes_per_gpu": len(processes), "warmup_batches": 1,
        "tracer": TracerRecord(kind="nsys", version="2025.3"),
        "environment": EnvironmentRecord(gpus=[GpuRecord(index=0, uuid="GPU-1", name="NVIDIA H200")]),
        "processes": list(processes),
    }  # fmt: skip
    return RunManifest(**(record | changes))
