"""Run folders by hand for the tests of comparisons, as a launch writes them, and what `compare` makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.model.manifest import TracerRecord
from tests.unit.run_records import manifest_of, process

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def statistics(mean: float | None) -> dict[str, Any]:
    """As a file has them, of 40 batches that differ by a few percent."""
    return {"count": 40, "mean": mean, "p50": mean and mean * 0.99, "p95": mean and mean * 1.1, "p99": None}


def stage(cpu_ms: float | None, gpu_ms: float | None = 0.0, items: float | None = 4) -> dict[str, Any]:
    """A stage; `items` None: none were counted."""
    tree = {"cpu_time": statistics(cpu_ms), "gpu_time": statistics(gpu_ms), "gpu_busy_time": statistics(gpu_ms)}
    if items is not None:
        tree |= {f"{name}_per_item": statistics(one["mean"] and one["mean"] / items) for name, one in tree.items()}
    return {**tree, "count": statistics(1.0)}


def write_launch(
    folder: Path,
    times_ms: Mapping[str, float | None],
    *,
    start_s: float = 0.0,
    throughput: float | None = 100.0,
    environment: Mapping[str, Any] | None = None,
    ended: str = "ok",
    errors: Sequence[str] = (),
    items: int = 4,
    **manifest: Any,
) -> Path:
    """A run folder: `toy/batch` around the stages; returns it."""
    (folder / "proc_0_gpu_0").mkdir(parents=True)
    total = sum(value or 0.0 for value in times_ms.values())
    batch = {**stage(total, items=items), **{name: stage(value, items=items) for name, value in times_ms.items()}}
    tree = {
        "stats_minus_warmup": {"toy": {"batch": {**batch, "total_items": statistics(float(items))}}},
        "throughput": {"items_per_second": throughput, "reason": None if throughput else "too few periods"},
        "meta": {"findings": [{"code": code, "severity": "error"} for code in errors]},
    }
    for path in ("benchmark_mean.json", "proc_0_gpu_0/benchmark.json"):
        (folder / path).write_text(json.dumps(tree))
    made: dict[str, Any] = {
        "run_id": f"{folder.parent.name}-{folder.name}",
        "created": "2026-11-23T12:00:00+00:00",
        "warmup_batches": 2,
        "tracer": TracerRecord(kind="embedded", version="0.1.0"),
        "environment": {"cpu": "AMD EPYC", "cpu_count": 2, "python": "3.11.7", **(environment or {})},
    }
    record = process(0, gpu_uuid=None, pid=None, ended=ended, start_unix_ns=START + round(start_s * SECOND))
    (folder / "manifest.json").write_text(manifest_of(record, **{**made, **manifest}).model_dump_json())
    return folder


def write_side(
    folder: Path, decode_ms: Sequence[float], infer_ms: float = 20.0, *, turn: int = 0, name: str = "infer", **more: Any
) -> str:
    """Launches of one side as `perfharness compare` takes them; the second of two sides in turns has `turn` 1."""
    runs = [
        write_launch(
            folder / f"launch_{number}",
            {"decode": time, name: infer_ms * (1 + 0.001 * (-1) ** number)},
            start_s=10.0 * (2 * number + turn),
            throughput=4000 / (time + infer_ms),
            **more,
        )
        for number, time in enumerate(decode_ms)
    ]
    return ",".join(map(str, runs))


def compared(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict[str, Any]:
    """What `compare` prints as JSON."""
    capsys.readouterr()
    assert run(["compare", *map(str, words), "--format", "json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def first_version(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict[str, Any]:
    """The first version of `compared`."""
    version: dict[str, Any] = compared(capsys, *words, code=code)["versions"][0]
    return version
