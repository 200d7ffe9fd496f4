"""Depth maps against ground truth, and maps of two engines against each other.

Errors and thresholds: Eigen, Puhrsch, Fergus, Depth map prediction from a single image using a multi-scale deep
network, NIPS 2014, section 4. Median scaling, per image: Zhou, Brown, Snavely, Lowe, Unsupervised learning of depth and
ego-motion from video, CVPR 2017, section 4.1. As in their evaluation: only pixels whose truth lies between the caps
count, a scaled prediction is clipped to the caps, and the figures of a data set are the means of its images'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from perfharness.bench.accuracy.figure import Figures, OutputError, SampleError, figure, nothing

Float64 = npt.NDArray[np.float64]
DEPTH_METRICS = ("abs_rel", "sq_rel", "rmse", "rmse_log", "delta1", "delta2", "delta3")
MAP_METRICS = ("mae", "rmse", "max")
SMALLEST_DISPARITY = 1e-6


class DepthSettings(BaseModel):
    """How a map is compared with the truth.

    Args:
        min_depth, max_depth: caps, in the truth's unit; `min_depth` is more than 0, for errors are divided by depth.
        scaling: `median` where a model knows depth up to a factor only.
        prediction: `disparity` where a larger value means nearer: its inverse is taken first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_depth: float = Field(default=1e-3, gt=0)
    max_depth: float = Field(default=80.0, gt=0)
    scaling: Literal["median", "none"] = "median"
    prediction: Literal["depth", "disparity"] = "depth"


@dataclass(frozen=True)
class DepthErrors:
    """Of one image; `scale` is what the prediction was multiplied by."""

    pixels: int
    scale: float
    abs_rel: float
    sq_rel: float
    rmse: float
    rmse_log: float
    delta1: float
    delta2: float
    delta3: float


def depth_errors(
    prediction: npt.NDArray[Any],
    truth: npt.NDArray[Any],
    settings: DepthSettings = DepthSettings(),  # noqa: B008 - frozen
    mask: npt.NDArray[np.bool_] | None = None,
) -> DepthErrors:
    """The errors of one image, maps of one shape.

    Args:
        mask: where the truth is valid, in addition to being finite and between the caps.

    Raises `SampleError` where there is no valid pixel, `OutputError` where a valid one has no finite
    prediction, or there is no scale.
    """
    p, t = np.asarray(prediction, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    if p.shape != t.shape:
        raise OutputError(f"the map is {p.shape}, the ground truth {t.shape}")
    valid = np.isfinite(t) & (t > settings.min_depth) & (t < settings.max_depth)
    if mask is not None:
        valid &= mask
    if not valid.any():
        raise SampleError(f"no pixel of the ground truth is between {settings.min_depth:g} and {settings.max_depth:g}")
    p, t = p[valid], t[valid]
    if bad := int((~np.isfinite(p)).sum()):
        raise OutputError(f"{bad} of {p.size} valid pixels have a prediction that is NaN or infinite")
    if settings.prediction == "disparity":
        p = 1.0 / np.maximum(p, SMALLEST_DISPARITY)
    scale = _median_scale(p, t) if settings.scaling == "median" else 1.0
    p = np.clip(p * scale, settings.min_depth, settings.max_depth)
    error, ratio = p - t, np.maximum(p / t, t / p)
    squared = error**2
    return DepthErrors(
        pixels=t.size,
        scale=scale,
        abs_rel=float((np.abs(error) / t).mean()),
        sq_rel=float((squared / t).mean()),
        rmse=float(np.sqrt(squared.mean())),
        rmse_log=float(np.sqrt(((np.log(p) - np.log(t)) ** 2).mean())),
        delta1=float((ratio < 1.25).mean()),
        delta2=float((ratio < 1.25**2).mean()),
        delta3=float((ratio < 1.25**3).mean()),
    )


def _median_scale(p: Float64, t: Float64) -> float:
    middle = float(np.median(p))
    if middle <= 0:
        raise OutputError(f"the median of the prediction is {middle:g}, and median scaling takes a positive one")
    return float(np.median(t)) / middle


class DepthAccumulator:
    """Means over images."""

    def __init__(self, settings: DepthSettings = DepthSettings()) -> None:  # noqa: B008 - frozen
        self.settings, self.samples = settings, 0
        self._sums = dict.fromkeys((*DEPTH_METRICS, "scale"), 0.0)

    def update(
        self, prediction: npt.NDArray[Any], truth: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None
    ) -> DepthErrors:
        """Add one image; returns its errors. Raises `SampleError` like `depth_errors`, and adds nothing then."""
        errors = depth_errors(prediction, truth, self.settings, mask)
        for name in self._sums:
            self._sums[name] += getattr(errors, name)
        self.samples += 1
        return errors

    def merge(self, other: DepthAccumulator) -> None:
        """Add the images of another accumulator."""
        self.samples += other.samples
        for name, value in other._sums.items():
            self._sums[name] += value

    def figures(self) -> Figures:
        """Means of the images' errors, and of their scales."""
        if not self.samples:
            return nothing((*self._sums,), "no image could be compared with its ground truth")
        return {name: figure(value / self.samples) for name, value in self._sums.items()}


def normalised(values: npt.NDArray[Any]) -> Float64:
    """A map from 0 to 1. Raises `SampleError` where it is constant or not finite."""
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        raise SampleError("the map is empty")
    if bad := int((~np.isfinite(found)).sum()):
        raise SampleError(f"{bad} of {found.size} values of the map are NaN or infinite")
    low, high = float(found.min()), float(found.max())
    if low == high:
        raise SampleError(f"all values of the map are {low:g}, so it has no range to be normalised by")
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (found - low) / (high - low)
    if not np.isfinite(scaled).all():
        raise SampleError("the range of the map is beyond that of float64")
    return np.asarray(scaled, dtype=np.float64)


@dataclass(frozen=True)
class MapDifference:
    """Of two normalised maps."""

    mae: float
    rmse: float
    max: float


def map_difference(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> MapDifference:
    """Difference of two maps of one shape, each normalised separately. Raises `SampleError`."""
    if np.shape(first) != np.shape(second):
        raise SampleError(f"the maps are {np.shape(first)} and {np.shape(second)}")
    error = np.abs(normalised(first) - normalised(second))
    return MapDifference(float(error.mean()), float(np.sqrt((error**2).mean())), float(error.max()))


class MapAccumulator:
    """`mae` and `rmse` are means over images, `max` the largest of any image."""

    def __init__(self) -> None:
        self.samples, self._mae, self._rmse, self._max = 0, 0.0, 0.0, 0.0

    def update(self, first: npt.NDArray[Any], second: npt.NDArray[Any]) -> MapDifference:
        """Add one image's maps; returns their difference. Raises `SampleError`, and adds nothing then."""
        found = map_difference(first, second)
        self.samples += 1
        self._mae += found.mae
        self._rmse += found.rmse
        self._max = max(self._max, found.max)
        return found

    def merge(self, other: MapAccumulator) -> None:
        """Add the images of another accumulator."""
        self.samples += other.samples
        self._mae += other._mae
        self._rmse += other._rmse
        self._max = max(self._max, other._max)

    def figures(self) -> Figures:
        """Of all images."""
        if not self.samples:
            return nothing(MAP_METRICS, "no pair of maps could be compared")
        return {
            "mae": figure(self._mae / self.samples),
            "rmse": figure(self._rmse / self.samples),
            "max": figure(self._max),
        }
