"""Accuracy settings of a suite or a command line."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from perfharness.bench.accuracy.depth import DepthSettings
from perfharness.bench.accuracy.preprocess import PreprocessSettings
from perfharness.bench.accuracy.samples import Sample, SampleSet, find_samples
from perfharness.errors import UsageError


class AccuracySettings(BaseModel):
    """What a case is compared on.

    Args:
        inputs: a folder of arrays or images, or one file.
        labels: a CSV of name,label, or the same folder as `inputs`, whose subfolders are the classes.
        class_names: by the number of the model's output; a text file with one name per line. None: by number, or
            in order of the names in `labels`.
        truth: a folder of maps of the same names (depth).
        truth_scale: what the values of 16-bit images are divided by.
        output_name: the output that labels or maps are for; None: the model's first.
        metrics: user metrics, `module:function`.
        limit: at most so many samples.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: Path
    labels: Path | None = None
    class_names: Path | None = None
    truth: Path | None = None
    truth_scale: float = Field(default=1.0, gt=0)
    depth: DepthSettings = DepthSettings()
    preprocess: PreprocessSettings = PreprocessSettings()
    top_k: int = Field(default=5, ge=1)
    output_name: str | None = None
    metrics: tuple[str, ...] = ()
    limit: int | None = Field(default=None, ge=1)

    def samples(self) -> SampleSet:
        """The samples. Raises `UsageError` where there are none."""
        found = find_samples(self.inputs, self.truth, self.labels, self.limit)
        return found if self.class_names is None else with_class_numbers(found, self.class_names)


def with_class_numbers(found: SampleSet, names_file: Path) -> SampleSet:
    """Convert labels that are names to class numbers, by a file with the class names in order. Raises `UsageError`."""
    try:
        names = tuple(line.strip() for line in names_file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"class names cannot be read from {names_file}: {error}") from error
    if not found.class_names:
        return SampleSet(found.samples, names, found.remarks)
    if unknown := [name for name in found.class_names if name not in names]:
        raise UsageError(f"the label {unknown[0]!r} is none of the classes in {names_file}")
    numbers = [names.index(name) for name in found.class_names]
    samples = tuple(
        Sample(one.name, one.path, one.truth, None if one.label is None else numbers[one.label])
        for one in found.samples
    )
    return SampleSet(samples, names, found.remarks)


class AccuracyPass(BaseModel):
    """Accuracy settings for the process of a case.

    Args:
        against: name of the baseline, for the record.
        baseline: the folder of outputs of the case that is the baseline; None: ground truth only.
        store: keep the outputs, in the case's folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: AccuracySettings
    against: str
    baseline: Path | None = None
    store: bool = False
