"""Read results of trtexec (a file of `--exportTimes`, or the log) as a launch of a comparison.

    trtexec                      "Latency" of a query: h2d + compute + d2h on the GPU
    trtexec/h2d, compute, d2h    between CUDA events
    trtexec/enqueue              on the host

trtexec drops its own warm-up. A query is a batch with an unknown number of items.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from perfharness.analysis.statistics import summarise
from perfharness.errors import ResultError
from perfharness.model.result import Path as StagePath
from perfharness.runs.comparison.launches import LaunchFigures
from perfharness.runs.figures import Figure, Value

ROOT: StagePath = ("trtexec",)

TIMES_OF = {
    "latencyMs": ROOT,
    "h2dMs": (*ROOT, "h2d"),
    "inMs": (*ROOT, "h2d"),  # before TensorRT 8.5
    "computeMs": (*ROOT, "compute"),
    "d2hMs": (*ROOT, "d2h"),
    "outMs": (*ROOT, "d2h"),
}
"""Keys of `--exportTimes` and their stages."""

SUMMARY = "=== Performance summary ==="
LINES_OF = {
    "Latency": ROOT,
    "H2D Latency": (*ROOT, "h2d"),
    "GPU Compute Time": (*ROOT, "compute"),
    "D2H Latency": (*ROOT, "d2h"),
    "Enqueue Time": (*ROOT, "enqueue"),
}
"""Lines of the log's summary and their stages."""

LINE = re.compile(rf"({'|'.join(LINES_OF)}): min = .*", re.MULTILINE)
WORDS = {"mean": "mean", "p50": "median", "p95": "percentile(95%)", "p99": "percentile(99%)"}
FIGURE = re.compile(r"(mean|median|percentile\(\d+%\)) = ([\d.eE+-]+) ms")
DEVICE = re.compile(r"Selected Device: *(.+)")
VERSION = re.compile(r"TensorRT version: *([\d.]+)|\[TensorRT v(\d+)\]")


def is_trtexec(path: Path) -> bool:
    """Whether a file has the content of a trtexec file."""
    try:
        with path.open("rb") as file:
            head = _utf8(file.read(4096)).lstrip()
    except OSError:
        return False
    return (head.startswith(b"[") and b'"computeMs"' in head) or b"TensorRT.trtexec" in head or b"[I] === " in head


def _utf8(content: bytes) -> bytes:
    """Convert UTF-16 (PowerShell) to UTF-8, and remove a byte order mark (Windows)."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def read_trtexec(path: Path) -> LaunchFigures:
    """Read a run of trtexec as a launch. Raises `ResultError`."""
    try:
        content = _utf8(path.read_bytes())
    except OSError as error:
        raise ResultError(f"{path} cannot be read ({error})") from error
    is_exported = content.lstrip().startswith(b"[") and b'"computeMs"' in content
    figures, environment, errors = (
        _exported(path, content) if is_exported else _logged(path, content.decode("utf-8", "replace"))
    )
    no_rate = Value(None, "trtexec counts queries, whose number of items is unknown")
    return LaunchFigures(
        folder=path,
        run_id=f"trtexec-{hashlib.sha256(content).hexdigest()[:16]}",
        figures={**figures, Figure((), "throughput"): no_rate},
        environment=environment,
        errors=errors,
        batches={ROOT: None},
    )


Read = tuple[dict[Figure, Value], Mapping[str, str | None], tuple[str, ...]]


def _exported(path: Path, content: bytes) -> Read:
    try:
        rows: list[dict[str, Any]] = orjson.loads(content)
        columns = {key: np.asarray([row[key] for row in rows], dtype=np.float64) for key in TIMES_OF if key in rows[0]}
        if "startEnqMs" in rows[0]:
            columns["enqueue"] = np.asarray([row["endEnqMs"] - row["startEnqMs"] for row in rows], dtype=np.float64)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ResultError(f"{path} is not a trtexec --exportTimes file ({type(error).__name__}: {error})") from error
    figures: dict[Figure, Value] = {}
    for key, values in columns.items():
        found = summarise(values)
        figures |= _figures(TIMES_OF.get(key, (*ROOT, "enqueue")), {name: getattr(found, name) for name in WORDS})
    return figures, {}, ()


def _logged(path: Path, text: str) -> Read:
    summary = text.rpartition(SUMMARY)[2] if SUMMARY in text else ""
    lines = {found[1]: dict(FIGURE.findall(found[0])) for found in LINE.finditer(summary)}
    if "GPU Compute Time" not in lines:
        raise ResultError(
            f"{path} has no '{SUMMARY}' with a GPU Compute Time. Use the complete log of trtexec (TensorRT 8 or newer) "
            "or an --exportTimes file."
        )
    figures: dict[Figure, Value] = {}
    for name, stage in LINES_OF.items():
        if name in lines:
            named = {key: float(lines[name][word]) if word in lines[name] else None for key, word in WORDS.items()}
            figures |= _figures(stage, named)
    device, version = DEVICE.search(text), VERSION.search(text)
    environment = {
        "gpu": f"1 x {device[1].strip()}" if device else None,
        "package tensorrt": (version[1] or version[2]) if version else None,
    }
    is_unstable = "GPU compute time is unstable" in summary
    return figures, environment, ("gpu-compute-time-unstable",) if is_unstable else ()


def _figures(stage: StagePath, found: Mapping[str, float | None]) -> dict[Figure, Value]:
    mean = Figure(stage, "cpu_time" if stage[-1] == "enqueue" else "gpu_time")
    return {mean if name == "mean" else Figure(stage, name): Value(value) for name, value in found.items()}
