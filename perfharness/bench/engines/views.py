"""Data of the pictures of a comparison, computed from its files: maps and errors, latencies, readings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.analysis.telemetry_lines import NS_PER_S, line_points
from perfharness.bench.accuracy.depth import SMALLEST_DISPARITY, normalised
from perfharness.bench.accuracy.figure import SampleError
from perfharness.bench.accuracy.samples import IMAGE_SUFFIXES, read_image, read_map, resized_map
from perfharness.bench.engines.compare import engine_map
from perfharness.bench.engines.model import IMAGE_FOLDER, WALL_NAME, EngineComparison, EngineResult
from perfharness.errors import PerfHarnessError
from perfharness.model.telemetry import TELEMETRY_NAME, Float64, SampleLog
from perfharness.telemetry.store import read_sample_log

NS_PER_MS = 1e6
PERCENTILES = {"p5": 5, "q1": 25, "median": 50, "q3": 75, "p95": 95}


@dataclass(frozen=True)
class Tile:
    """One bitmap: (height, width) of values, NaN where there is none, or (height, width, 3) of an image.

    `values` None: `reason` is shown instead. `top`: the value of the last colour; larger values have the same colour.
    """

    title: str
    values: npt.NDArray[Any] | None = None
    caption: str = ""
    reason: str = ""
    top: float | None = None


@dataclass(frozen=True)
class LatencyBox:
    """Latencies of all timed iterations of an engine, ms, by the names of `PERCENTILES`."""

    engine: str
    percentiles: dict[str, float]


@dataclass(frozen=True)
class EngineLine:
    """Readings of the GPU while an engine ran, s since its first round; `reason` where there are none."""

    engine: str
    seconds: Float64
    values: Float64
    reason: str = ""


# ---- maps ----


def map_tiles(comparison: EngineComparison, folder: Path) -> list[list[Tile]]:
    """Columns of tiles: the image and its ground truth; for each engine its map, error and difference to the first.

    Without ground truth there is no row of errors. All errors have one `top`, the 99th percentile of the worst.
    """
    maps = [_engine_map(one, folder, comparison.settings.image.stem) for one in comparison.engines]
    truth = _truth(comparison)
    rows = [[_image(comparison), *map(_map_tile, comparison.engines, maps)]]
    if comparison.settings.truth is not None:
        errors = [_error(one, found, truth, comparison) for one, found in zip(comparison.engines, maps, strict=True)]
        worst = [float(np.nanpercentile(one, 99)) for one in errors if not isinstance(one, str)]
        top = max(1e-9, *worst, 0.0) if worst else 1.0
        tiles = [_error_tile(one, error, top) for one, error in zip(comparison.engines, errors, strict=True)]
        rows.append([_truth_tile(comparison, truth), *tiles])
    differences = [_difference_tile(found, maps[0]) for found in maps[1:]]
    return [*rows, [Tile(""), Tile(""), *differences]] if differences else rows


def _image(comparison: EngineComparison) -> Tile:
    path = comparison.settings.image
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return Tile("input", read_image(path), path.name)
    return Tile("input", reason=f"{path.name} is an array")


def _engine_map(engine: EngineResult, folder: Path, image: str) -> Float64 | str:
    """The map, or why there is none."""
    if engine.output is None:
        return f"{engine.status}: {engine.reason}"
    try:
        return engine_map(folder / engine.name / IMAGE_FOLDER, image, engine)
    except SampleError as error:
        return str(error)


def _map_tile(engine: EngineResult, found: Float64 | str) -> Tile:
    runner = f"{engine.backend}/{engine.mode}" if engine.mode else engine.backend
    latency = "" if engine.latency is None else f", {engine.latency.mean.value:.3f} ms"
    caption = f"{runner}, {engine.precision or '?'}{latency}"
    return _tile(engine.name, found, caption)


def _truth(comparison: EngineComparison) -> Float64 | str:
    settings = comparison.settings
    if settings.truth is None:
        return "no ground truth was given"
    try:
        found = read_map(settings.truth, settings.truth_scale)
    except PerfHarnessError as error:
        return str(error)
    depth = settings.depth
    valid = np.isfinite(found) & (found > depth.min_depth) & (found < depth.max_depth)
    return np.where(valid, found, np.nan)


def _truth_tile(comparison: EngineComparison, truth: Float64 | str) -> Tile:
    name = comparison.settings.truth.name if comparison.settings.truth else ""
    valid = "" if isinstance(truth, str) else f"{int(np.isfinite(truth).sum())} of {truth.size} pixels are valid"
    return _tile(f"ground truth: {name}", truth, valid)


def _error(
    engine: EngineResult, found: Float64 | str, truth: Float64 | str, comparison: EngineComparison
) -> Float64 | str:
    """|prediction - truth| / truth where the truth is valid, scaled as for the figures; or why there is none."""
    record = engine.image_accuracy
    scale = record.metrics.get("scale") if record else None
    if isinstance(found, str) or isinstance(truth, str) or record is None or scale is None:
        why = record.reasons.get("failed_samples", "") if record else ""
        return why or (truth if isinstance(truth, str) else "no errors were computed")
    depth = comparison.settings.depth
    own = resized_map(found, (truth.shape[0], truth.shape[1]))
    if depth.prediction == "disparity":
        own = 1 / np.maximum(own, SMALLEST_DISPARITY)
    return np.asarray(np.abs(np.clip(own * scale, depth.min_depth, depth.max_depth) - truth) / truth)


def _error_tile(engine: EngineResult, error: Float64 | str, top: float) -> Tile:
    metrics = engine.image_accuracy.metrics if engine.image_accuracy else {}
    names = ("abs_rel", "rmse", "delta1")
    figures = [f"{name} {'-' if metrics.get(name) is None else format(metrics[name], '.4g')}" for name in names]
    return _tile("relative error to ground truth", error, "  ".join(figures), top)


def _difference_tile(found: Float64 | str, first: Float64 | str) -> Tile:
    title = "difference to the first engine's"
    if isinstance(found, str) or isinstance(first, str):
        return Tile(title, reason="one of the two has no map")
    try:
        error = np.abs(normalised(resized_map(found, (first.shape[0], first.shape[1]))) - normalised(first))
    except SampleError as reason:
        return Tile(title, reason=str(reason))
    return _tile(title, error, f"MAE {error.mean():.3g}  max {error.max():.3g}", max(1e-9, float(error.max())))


def _tile(title: str, values: Float64 | str, caption: str, top: float | None = None) -> Tile:
    return Tile(title, reason=values) if isinstance(values, str) else Tile(title, values, caption, top=top)


# ---- speed ----


def latency_boxes(comparison: EngineComparison, folder: Path) -> list[LatencyBox]:
    """Latencies of the engines that were timed."""
    boxes = []
    for engine in comparison.engines:
        path = folder / engine.name / WALL_NAME
        if engine.latency is not None and path.exists():
            values = np.percentile(np.load(path) / NS_PER_MS, list(PERCENTILES.values())).tolist()
            boxes.append(LatencyBox(engine.name, dict(zip(PERCENTILES, values, strict=True))))
    return boxes


# ---- GPU ----


def gpu_lines(comparison: EngineComparison, folder: Path, metrics: tuple[str, ...], scale: float) -> list[EngineLine]:
    """Readings of each engine's telemetry pass.

    Args:
        metrics: the first one with readings is used.
        scale: to the unit of the axis.
    """
    return [_gpu_line(comparison, engine, folder, metrics, scale) for engine in comparison.engines]


def _gpu_line(
    comparison: EngineComparison, engine: EngineResult, folder: Path, metrics: tuple[str, ...], scale: float
) -> EngineLine:
    begin, end, uuid = engine.gpu.start_unix_ns, engine.gpu.end_unix_ns, comparison.gpu_uuid
    if uuid is None:
        return _no_line(engine, comparison.gpu_reason or "there is no GPU")
    if begin is None or end is None:
        return _no_line(engine, f"the second pass was not done ({engine.status})")
    try:
        log: SampleLog = read_sample_log(folder / engine.name / TELEMETRY_NAME)
    except PerfHarnessError as error:
        return _no_line(engine, engine.reason or str(error))
    for name in metrics:
        series = log.get(uuid, name)
        if series is not None and series.is_read.any():
            inside = series.between(begin - round(NS_PER_S), end + round(NS_PER_S))
            return EngineLine(engine.name, *line_points(inside, begin, scale))
    reasons = [one.reason for one in log.meta.failures if (one.subject, one.metric) == (uuid, metrics[0])]
    return _no_line(engine, reasons[0] if reasons else "it was not read")


def _no_line(engine: EngineResult, reason: str) -> EngineLine:
    return EngineLine(engine.name, np.zeros(0), np.zeros(0), reason)
