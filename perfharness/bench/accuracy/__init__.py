"""Compare outputs with a baseline or ground truth, one sample at a time; and find the samples."""

from perfharness.bench.accuracy.data import (
    Preprocessor,
    PreprocessSettings,
    Sample,
    SampleError,
    find_samples,
    read_map,
    resized_map,
    user_function,
)
from perfharness.bench.accuracy.depth import (
    DEPTH_METRICS,
    DepthMeans,
    DepthSettings,
    depth_errors,
    map_difference,
    normalised,
)
from perfharness.bench.accuracy.metrics import ClassAccumulator, Figures, RegressionAccumulator, wilson
from perfharness.bench.accuracy.outputs import (
    BLOCK,
    DifferenceAccumulator,
    Tolerance,
    compare_outputs,
)
from perfharness.bench.accuracy.run import Comparison, measure_accuracy, read_outputs
from perfharness.bench.accuracy.settings import AccuracySettings

__all__ = [
    "BLOCK",
    "DEPTH_METRICS",
    "AccuracySettings",
    "ClassAccumulator",
    "Comparison",
    "DepthMeans",
    "DepthSettings",
    "DifferenceAccumulator",
    "Figures",
    "PreprocessSettings",
    "Preprocessor",
    "RegressionAccumulator",
    "Sample",
    "SampleError",
    "Tolerance",
    "compare_outputs",
    "depth_errors",
    "find_samples",
    "map_difference",
    "measure_accuracy",
    "normalised",
    "read_map",
    "read_outputs",
    "resized_map",
    "user_function",
    "wilson",
]
