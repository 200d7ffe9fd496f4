"""Stage times of a whole pipeline around the engine, traced, per batch.

The pipeline is the user's script with PerfRecorder, or `pipeline.py`; it is run by `perfharness launch` with the
embedded tracer, which has the least overhead, and its `benchmark.json` is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfharness.bench.spec import SPEC_NAME, CaseSpec
from perfharness.boot import without_current_folder
from perfharness.errors import BackendError
from perfharness.model import environment
from perfharness_launcher.processes.outcome import last_lines

FOLDER = "stages"
WARMUP_BATCHES = 5
BATCHES = 60
OUTSIDE = "outside of stages"
BETWEEN = "between batches"
BATCH = "batch"
TIME, BUSY = "cpu_time", "gpu_busy_time"

SCRIPT = "import sys\n\nfrom perfharness.bench.worker.pipeline import main\n\nmain(*sys.argv[1:])\n"
"""Is written to the case's folder: a script inside the package would have the package's files on its path."""


Fields = dict[str, Any]
"""Of `CaseResult`: `stages_ms`, `stages_gpu_busy_ms`, and in `reasons` why there are none."""


def measure_stages(spec: CaseSpec, folder: Path) -> Fields:
    """Launch the pipeline and read its stage times."""
    stages_folder = folder / FOLDER
    stages_folder.mkdir(exist_ok=True)
    if spec.pipeline is None:
        script, arguments = stages_folder / "pipeline.py", [str(folder / SPEC_NAME), str(BATCHES + 2 * WARMUP_BATCHES)]
        script.write_text(SCRIPT)
    else:
        script, arguments = Path(spec.pipeline), list(spec.pipeline_arguments)
    gpus = ["--gpus", spec.telemetry.gpu_uuids[0]] if spec.telemetry.gpu_uuids else []
    command = [sys.executable, "-m", "perfharness", "launch", "--tracer", "embedded", "--no-telemetry"]
    command += ["-w", str(WARMUP_BATCHES), "--python", sys.executable, *gpus, "-o", str(stages_folder / "run")]
    done = subprocess.run(
        without_current_folder([*command, str(script), *arguments]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in _OURS},
    )
    (stages_folder / "launch.log").write_text(done.stdout + done.stderr)
    results = sorted((stages_folder / "run").glob("proc_*/benchmark.json"))
    if done.returncode not in (0, 3) or not results:
        said = last_lines(done.stdout + done.stderr)
        raise BackendError(f"the pipeline could not be measured (exit {done.returncode}){said}")
    whole = json.loads((stages_folder / "run" / "benchmark_mean.json").read_text())
    return read_stages(json.loads(results[0].read_text()), whole)


_OURS = (environment.START_BARRIER, environment.PROCESS_INDEX, environment.OUTPUT_DIR)


def read_stages(result: Mapping[str, Any], whole: Mapping[str, Any]) -> Fields:
    """The stages of a `benchmark.json`, and the time between batches from `benchmark_mean.json`.

    Mean milliseconds of one batch, by stage; a stage inside another is named `outer/inner`. `batch` is the whole,
    `outside of stages` the part that no stage covers, `between batches` from the end of one to the start of the next.
    """
    batches = list(_batches(result.get("stats_minus_warmup", {})))
    if len(batches) != 1:
        none = "the pipeline has no batches; annotate them with PerfRecorder"
        several = "the pipeline has several loops of batches, and which of them is the engine's is not known"
        return {"reasons": {"stages_ms": several if batches else none}}
    batch = batches[0]
    times, busy = dict(_walk(batch, TIME)), dict(_walk(batch, BUSY))
    if (total := _mean(batch, TIME)) is None:
        return {"reasons": {"stages_ms": "no batch is left without the warm-up"}}
    inside = sum(value for path, value in times.items() if "/" not in path)
    found = {BATCH: total, **times, OUTSIDE: max(0.0, total - inside)}
    rate, items = whole.get("throughput") or {}, _mean(batch, "total_items")
    if rate.get("items") and rate.get("window_ms") and items:
        found[BETWEEN] = max(0.0, rate["window_ms"] * items / rate["items"] - total)
    if (whole_busy := _mean(batch, BUSY)) is not None:
        busy[BATCH] = whole_busy
    return {"stages_ms": {name: round(value, 6) for name, value in found.items()}, "stages_gpu_busy_ms": busy}


def _batches(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Outermost nodes that count items."""
    for node in tree.values():
        if isinstance(node, Mapping) and not _is_figure(node):
            if "total_items" in node and TIME in node:
                yield node
            else:
                yield from _batches(node)


def _walk(tree: Mapping[str, Any], figure: str, prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, node in tree.items():
        if isinstance(node, Mapping) and not _is_figure(node):
            mean = _mean(node, figure)
            if mean is not None:
                yield prefix + name, mean
            yield from _walk(node, figure, f"{prefix}{name}/")


def _mean(node: Mapping[str, Any], figure: str) -> float | None:
    found = node.get(figure)
    value = found.get("mean") if isinstance(found, Mapping) else None
    return None if value is None else float(value)


def _is_figure(node: Mapping[str, Any]) -> bool:
    return "mean" in node and "count" in node and not isinstance(node["mean"], Mapping)
