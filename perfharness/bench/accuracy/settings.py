"""Accuracy settings of a suite or a command line."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from perfharness.bench.accuracy.data import PreprocessSettings, SampleSet, find_samples
from perfharness.bench.accuracy.depth import DepthSettings
from perfharness.model.base import Settings


class AccuracySettings(Settings):
    """Data and metrics for comparing a case.

    Args:
        inputs: a folder of arrays or images, or one file.
        labels: a CSV of name,label, with numbers or names as labels, or the same folder as `inputs`, whose first-level
            subfolders are the classes, ordered by name.
        class_names: a text file with one name per line, by the model's output index. None for numbers, or the names in
            `labels` in order.
        truth: a folder of maps with the same names (depth), or one file for one input.
        values: a CSV of name,number with the expected number of the output (regression).
        truth_scale: divisor of the values in 16-bit images.
        output_name: the output to compare with labels, values or maps; None for the model's first.
        metrics: user metrics, `module:function`.
        limit: most samples to use, the first by name.
    """

    inputs: Path
    labels: Path | None = None
    class_names: Path | None = None
    truth: Path | None = None
    values: Path | None = None
    truth_scale: float = Field(default=1.0, gt=0)
    depth: DepthSettings = DepthSettings()
    preprocess: PreprocessSettings = PreprocessSettings()
    top_k: int = Field(default=5, ge=1)
    output_name: str | None = None
    metrics: tuple[str, ...] = ()
    limit: int | None = Field(default=None, ge=1)

    def samples(self) -> SampleSet:
        """Find the samples. Raises `UsageError` if there are none."""
        return find_samples(self.inputs, self.truth, self.labels, self.limit, self.class_names, self.values)


class AccuracyPass(Settings):
    """Accuracy settings for the process of a case.

    Args:
        against: name of the baseline, for the record.
        baseline: folder of the baseline's outputs; None for ground truth only.
        store: whether this case is the baseline, whose outputs are stored in its folder.
    """

    settings: AccuracySettings
    against: str
    baseline: Path | None = None
    store: bool = False
