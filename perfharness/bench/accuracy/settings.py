"""Accuracy settings of a suite or a command line."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from perfharness.bench.accuracy.data import PreprocessSettings, SampleSet, find_samples
from perfharness.bench.accuracy.depth import DepthSettings
from perfharness.model.base import Settings


class AccuracySettings(Settings):
    """What a case is compared on.

    Args:
        inputs: a folder of arrays or images, or one file.
        labels: a CSV of name,label, or the same folder as `inputs`, whose subfolders are the classes.
        class_names: by the number of the model's output; a text file with one name per line. None: by number, or
            in order of the names in `labels`.
        truth: a folder of maps of the same names (depth).
        values: a CSV of name,number: the one number that the output should be (regression).
        truth_scale: what the values of 16-bit images are divided by.
        output_name: the output that labels, values or maps are for; None: the model's first.
        metrics: user metrics, `module:function`.
        limit: at most so many samples.
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
        """The samples. Raises `UsageError` where there are none."""
        return find_samples(self.inputs, self.truth, self.labels, self.limit, self.class_names, self.values)


class AccuracyPass(Settings):
    """Accuracy settings for the process of a case.

    Args:
        against: name of the baseline, for the record.
        baseline: the folder of the baseline's outputs; None: ground truth only.
        store: this case is the baseline; its outputs are kept in its folder.
    """

    settings: AccuracySettings
    against: str
    baseline: Path | None = None
    store: bool = False
