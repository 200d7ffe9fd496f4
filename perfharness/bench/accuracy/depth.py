"""Compare depth maps with ground truth, and maps of two engines with each other.

Errors and thresholds: Eigen, Puhrsch, Fergus, Depth map prediction from a single image using a multi-scale deep
network, NIPS 2014, section 4. Median scaling, per image: Zhou, Brown, Snavely, Lowe, Unsupervised learning of depth and
ego-motion from video, CVPR 2017, section 4.1. As in their evaluation, only pixels with a truth between the caps count,
scaled predictions are clipped to the caps, and a data set's figures are means over its images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from perfharness.bench.accuracy.data import SampleError
from perfharness.bench.accuracy.metrics import Figures, OutputError, figure, nothing
from perfharness.model.base import Settings
from perfharness.model.columns import Float64

DEPTH_METRICS = ("abs_rel", "sq_rel", "rmse", "rmse_log", "delta1", "delta2", "delta3", "scale")
SMALLEST_DISPARITY = 1e-6


class DepthSettings(Settings):
    """How to compare a map with the truth.

    Args:
        min_depth, max_depth: caps in the truth's unit; `min_depth` is more than 0, because errors are divided by depth.
        scaling: `median` for models that predict depth up to a factor.
        prediction: `disparity` if larger values are nearer; they are inverted first.
    """

    min_depth: float = Field(default=1e-3, gt=0)
    max_depth: float = Field(default=80.0, gt=0)
    scaling: Literal["median", "none"] = "median"
    prediction: Literal["depth", "disparity"] = "depth"


def valid_depth(truth: npt.NDArray[Any], settings: DepthSettings) -> Float64:
    """The truth with NaN for pixels that do not count."""
    found = np.asarray(truth, dtype=np.float64)
    return np.where((found > settings.min_depth) & (found < settings.max_depth), found, np.nan)


def scaled_depth(prediction: npt.NDArray[Any], truth: Float64, settings: DepthSettings) -> tuple[Float64, float]:
    """The prediction for each valid pixel of the truth (`valid_depth`), scaled and clipped, and the scale.

    Raises `SampleError` without valid pixels, `OutputError` if a valid one has no finite prediction or there is no
    scale.
    """
    p, valid = np.asarray(prediction, dtype=np.float64), np.isfinite(truth)
    if p.shape != truth.shape:
        raise OutputError(f"the map is {p.shape}, the ground truth {truth.shape}")
    if not valid.any():
        raise SampleError(f"no pixel of the ground truth is between {settings.min_depth:g} and {settings.max_depth:g}")
    p, t = p[valid], truth[valid]
    if bad := int((~np.isfinite(p)).sum()):
        raise OutputError(f"{bad} of {p.size} valid pixels have a prediction that is NaN or infinite")
    if settings.prediction == "disparity":
        p = 1.0 / np.maximum(p, SMALLEST_DISPARITY)
    scale = 1.0
    if settings.scaling == "median":
        middle = float(np.median(p))
        if middle <= 0:
            raise OutputError(f"the median of the prediction is {middle:g}, but median scaling needs a positive one")
        scale = float(np.median(t)) / middle
    return np.clip(p * scale, settings.min_depth, settings.max_depth), scale


def depth_errors(
    prediction: npt.NDArray[Any],
    truth: npt.NDArray[Any],
    settings: DepthSettings = DepthSettings(),  # noqa: B008 - frozen
) -> dict[str, float]:
    """Errors of one image (`DEPTH_METRICS`), from maps of equal shape; raises like `scaled_depth`."""
    whole = valid_depth(truth, settings)
    p, scale = scaled_depth(prediction, whole, settings)
    t = whole[np.isfinite(whole)]
    error, ratio = p - t, np.maximum(p / t, t / p)
    return {
        "abs_rel": float((np.abs(error) / t).mean()),
        "sq_rel": float((error**2 / t).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "rmse_log": float(np.sqrt(((np.log(p) - np.log(t)) ** 2).mean())),
        **{f"delta{power}": float((ratio < 1.25**power).mean()) for power in (1, 2, 3)},
        "scale": scale,
    }


def normalised(values: npt.NDArray[Any]) -> Float64:
    """Normalise a map to 0 to 1. Raises `SampleError` if it is constant or not finite."""
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        raise SampleError("the map is empty")
    if bad := int((~np.isfinite(found)).sum()):
        raise SampleError(f"{bad} of {found.size} values of the map are NaN or infinite")
    low, high = float(found.min()), float(found.max())
    if low == high:
        raise SampleError(f"all values of the map are {low:g}, so it cannot be normalised")
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (found - low) / (high - low)
    if not np.isfinite(scaled).all():
        raise SampleError("the range of the map exceeds float64")
    return np.asarray(scaled, dtype=np.float64)


def map_difference(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> dict[str, float]:
    """`mae`, `rmse` and `max` of two maps of equal shape, each normalised separately. Raises `SampleError`."""
    error = np.abs(normalised(first) - normalised(second))
    return {"mae": float(error.mean()), "rmse": float(np.sqrt((error**2).mean())), "max": float(error.max())}


def depth_means(images: Sequence[Mapping[str, float]]) -> Figures:
    """Means of `depth_errors` over all images."""
    if not images:
        return nothing(DEPTH_METRICS, "no image could be compared with its ground truth")
    return {name: figure(sum(one[name] for one in images) / len(images)) for name in DEPTH_METRICS}
