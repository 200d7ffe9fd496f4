"""Data for the pictures of a comparison, from its files: maps and errors, latencies, readings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from perfharness.analysis.metrics.telemetry_lines import line_points
from perfharness.bench.accuracy.data import IMAGE_SUFFIXES, SampleError, open_image, read_map, resized_map
from perfharness.bench.accuracy.depth import DepthSettings, normalised, scaled_depth, valid_depth
from perfharness.bench.engines.compare import engine_map
from perfharness.bench.engines.model import EngineComparison, EngineResult
from perfharness.bench.results import ITERATIONS_TABLE
from perfharness.errors import PerfHarnessError
from perfharness.model.columns import Float64
from perfharness.model.telemetry import TELEMETRY_NAME
from perfharness.model.units import NS_PER_MS, NS_PER_S
from perfharness.telemetry.store import read_sample_log

PERCENTILES = {"p5": 5, "q1": 25, "median": 50, "q3": 75, "p95": 95}

MapOrReason = Float64 | str
"""A map (height, width), or the reason for none."""


@dataclass(frozen=True)
class Tile:
    """One bitmap: values (height, width) with NaN for none, or an image (height, width, 3).

    A text in `values` is the reason for a missing bitmap. `top`: value of the last colour, shared by larger values.
    """

    title: str
    values: npt.NDArray[Any] | str = ""
    caption: str = ""
    top: float | None = None


# ---- maps ----


def map_tiles(comparison: EngineComparison, folder: Path) -> list[list[Tile]]:
    """Rows of tiles: the image and each engine's map; ground truth and errors; differences from the first engine.

    Without ground truth there is no row of errors. All errors share one `top`, the 99th percentile of the worst.
    """
    engines, settings = comparison.engines, comparison.settings
    maps = [_engine_map(one, folder) for one in engines]
    rows = [[_image(settings.image), *map(_map_tile, engines, maps)]]
    if settings.truth is not None:
        truth = _truth(comparison)
        errors = [_error(found, truth, settings.depth) for found in maps]
        worst = [float(np.nanpercentile(one, 99)) for one in errors if not isinstance(one, str)]
        top = max(1e-9, *worst) if worst else 1.0
        valid = "" if isinstance(truth, str) else f"{np.isfinite(truth).sum()} of {truth.size} pixels are valid"
        tiles = [_error_tile(one, error, top) for one, error in zip(engines, errors, strict=True)]
        rows.append([Tile(f"ground truth: {settings.truth.name}", truth, valid), *tiles])
    if differences := [_difference_tile(found, maps[0]) for found in maps[1:]]:
        rows.append([Tile(""), Tile(""), *differences])
    return rows


def _image(path: Path) -> Tile:
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        return Tile("input", f"{path.name} is an array")
    return Tile("input", np.asarray(open_image(path).convert("RGB"), dtype=np.uint8), path.name)


def _engine_map(engine: EngineResult, folder: Path) -> MapOrReason:
    if engine.output is None:
        return f"{engine.status}: {engine.reason}"
    try:
        return engine_map(folder, engine)
    except SampleError as error:
        return str(error)


def _map_tile(engine: EngineResult, found: MapOrReason) -> Tile:
    case, latency = engine.case, "" if engine.latency is None else f", {engine.latency.mean.value:.3f} ms"
    return Tile(engine.name, found, f"{case.backend}/{case.mode}, {case.precision}{latency}")


def _truth(comparison: EngineComparison) -> MapOrReason:
    settings = comparison.settings
    assert settings.truth is not None
    try:
        found = read_map(settings.truth, settings.truth_scale)
    except PerfHarnessError as error:
        return str(error)
    return valid_depth(found, settings.depth)


def _error(found: MapOrReason, truth: MapOrReason, settings: DepthSettings) -> MapOrReason:
    """|prediction - truth| / truth for valid truth, scaled as for the figures."""
    if isinstance(found, str) or isinstance(truth, str):
        return truth if isinstance(truth, str) else found
    error = np.array(truth)
    try:
        error[np.isfinite(truth)], _ = scaled_depth(resized_map(found, truth.shape), truth, settings)
    except SampleError as reason:
        return str(reason)
    return np.asarray(np.abs(error - truth) / truth)


def _error_tile(engine: EngineResult, error: MapOrReason, top: float) -> Tile:
    metrics = engine.image_accuracy.metrics if engine.image_accuracy else {}
    values = {name: metrics.get(name) for name in ("abs_rel", "rmse", "delta1")}
    figures = [f"{name} {'-' if value is None else format(value, '.4g')}" for name, value in values.items()]
    return Tile("relative error to ground truth", error, "  ".join(figures), top)


def _difference_tile(found: MapOrReason, first: MapOrReason) -> Tile:
    title = "difference to the first engine's"
    if isinstance(found, str) or isinstance(first, str):
        return Tile(title, "one of the two has no map")
    try:
        error = np.abs(normalised(resized_map(found, first.shape)) - normalised(first))
    except SampleError as reason:
        return Tile(title, str(reason))
    return Tile(title, error, f"MAE {error.mean():.3g}  max {error.max():.3g}", max(1e-9, float(error.max())))


# ---- speed ----


def latency_boxes(comparison: EngineComparison, folder: Path) -> dict[str, dict[str, float]]:
    """Percentiles of timed latencies, ms, by the names of `PERCENTILES`, for each timed engine."""
    found = {}
    for one in comparison.engines:
        path = folder / one.name / ITERATIONS_TABLE
        if one.latency is not None and path.exists():
            with path.open("rb") as file:
                rows = pq.read_table(file, filters=[("pass", "=", "timed")])
            values = np.percentile(rows["wall_ns"].to_numpy() / NS_PER_MS, [*PERCENTILES.values()])
            found[one.name] = dict(zip(PERCENTILES, values.tolist(), strict=True))
    return found


# ---- GPU ----


def gpu_line(
    comparison: EngineComparison, engine: EngineResult, folder: Path, metric: str, scale: float
) -> tuple[Float64, Float64] | str:
    """Readings of an engine's telemetry pass, scaled, with s since its first round, or the reason for none."""
    window, uuid = engine.telemetry_unix_ns, comparison.gpu_uuid
    if uuid is None:
        return comparison.gpu_reason or "there is no GPU"
    if window is None:
        return f"the second pass was not done ({engine.status})"
    begin, end = window
    try:
        log = read_sample_log(folder / engine.name / TELEMETRY_NAME)
    except PerfHarnessError as error:
        return engine.reason or str(error)
    series = log.get(uuid, metric)
    if series is not None and series.is_read.any():
        return line_points(series.between(begin - round(NS_PER_S), end + round(NS_PER_S)), begin, scale)
    reasons = (one.reason for one in log.meta.failures if (one.subject, one.metric) == (uuid, metric))
    return next(reasons, "it was not read")
