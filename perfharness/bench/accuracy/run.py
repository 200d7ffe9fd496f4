"""Measure the accuracy of one case: run the user's samples through its session and compare each output.

In the process of the case, after `session.allocate`:

    record = measure_accuracy(session, shapes, settings, against="onnxruntime/cpu/fp32", baseline=folder)

The baseline's case gets `store=folder` and no `baseline`: its outputs are written there, one file per sample, and
compared only with ground truth. Other cases read these files. Only sums and one batch are kept in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.arrays import read_arrays
from perfharness.backends.session import Session
from perfharness.bench.accuracy.data import (
    Preprocessor,
    Sample,
    SampleError,
    as_map,
    read_map,
    resized_map,
)
from perfharness.bench.accuracy.depth import depth_errors, depth_means
from perfharness.bench.accuracy.metrics import (
    ClassAccumulator,
    Figures,
    OutputError,
    OwnMetric,
    regression_figures,
    withheld,
)
from perfharness.bench.accuracy.outputs import DifferenceAccumulator, figures_by_output, matched_outputs
from perfharness.bench.accuracy.settings import AccuracySettings
from perfharness.errors import UsageError
from perfharness.model.bench import AccuracyRecord

Outputs = dict[str, npt.NDArray[Any]]
GROUND_TRUTH = "ground truth"
DETAILS_NAME = "accuracy.json"
OUTPUT = "output."
"""Prefix of names in files, because an output may be named like an argument of `numpy.savez`."""

DIFFERENCES, CLASSES, VALUES, DEPTH, OWN = "differences", "classes", "values", "depth", "own"
"""Kinds of figures."""

MAX_LISTED = 20
"""Most failed samples to list."""


class Comparison:
    """Sums over the samples of a case.

    Attributes:
        failed: a line per failed sample, the first `MAX_LISTED`.
        samples: number with something to compare, out of `seen`.
        not_computed: kind of figure -> number of samples whose outputs prevented it.
    """

    def __init__(self, settings: AccuracySettings, class_names: Sequence[str] = ()) -> None:
        self.settings, self.class_names = settings, class_names
        self.failed: list[str] = []
        self.failures = self.seen = self.samples = 0
        self.not_computed: Counter[str] = Counter()
        self.differences: dict[str, DifferenceAccumulator] = {}
        self.classes = ClassAccumulator(settings.top_k, class_names)
        self.agreement = ClassAccumulator(top_k=1)
        self.values: list[tuple[float, float]] = []
        self.depth: list[dict[str, float]] = []
        self.own = [OwnMetric(text) for text in settings.metrics]

    def update(self, sample: Sample, outputs: Outputs, baseline: Path | None) -> None:
        """Add one sample to all applicable figures; `baseline` is the folder of its outputs. Notes failures."""
        try:
            self._update(sample, outputs, None if baseline is None else read_outputs(baseline, sample.name))
        except SampleError as error:
            self.fail(sample, error)

    def fail(self, sample: Sample, error: SampleError) -> None:
        """Record a sample that could not be read or compared."""
        self.failures += 1
        if len(self.failed) < MAX_LISTED:
            self.failed.append(f"{sample.name}: {error}")

    def _update(self, sample: Sample, outputs: Outputs, baseline: Outputs | None) -> None:
        self.seen += 1
        name = self.settings.output_name or next(iter(outputs))
        if name not in outputs:
            raise SampleError(f"the model has no output {name!r}; it has: {', '.join(outputs)}")
        try:
            before = {} if baseline is None else matched_outputs(outputs, baseline)
        except OutputError:
            self.not_computed.update((DIFFERENCES, CLASSES))
            raise
        truth = None if sample.truth is None else read_map(sample.truth, self.settings.truth_scale)
        results = [
            self._try(DIFFERENCES, lambda: self._differences(sample, outputs, before)),
            self._try(CLASSES, lambda: self._classes(sample, outputs[name], before.get(name))),
            self._try(VALUES, lambda: self._regression(sample, outputs[name])),
            self._try(DEPTH, lambda: self._depth(outputs[name], truth)),
            self._try(OWN, lambda: self._own(sample, outputs, before, truth)),
        ]
        self.samples += True in results
        if errors := [one for one in results if isinstance(one, str)]:
            raise SampleError("; ".join(errors))

    def _try(self, kind: str, part: Callable[[], bool]) -> bool | str:
        """Whether there was something to compare, or the reason of a failure."""
        try:
            return part()
        except SampleError as error:
            self.not_computed[kind] += isinstance(error, OutputError)
            return str(error)

    def _differences(self, sample: Sample, outputs: Outputs, before: Outputs) -> bool:
        for key, values in before.items():
            self.differences.setdefault(key, DifferenceAccumulator()).update(outputs[key], values, sample.name)
        return bool(before)

    def _classes(self, sample: Sample, scores: npt.NDArray[Any], other: npt.NDArray[Any] | None) -> bool:
        """Compare classes; without labels, top classes are compared if the suite names classes."""
        row, base = scores.reshape(1, -1), None if other is None else other.reshape(1, -1)
        if sample.label is not None:
            self.classes.update(row, [sample.label], base)
        elif base is not None and self.class_names:
            if scores.size != len(self.class_names):
                raise OutputError(f"the output has {scores.size} values, but {len(self.class_names)} classes are named")
            if np.isnan(base).any():
                raise SampleError("the baseline's scores have NaN, so there is no first class")
            self.agreement.update(row, [int(np.argmax(base))])
        return sample.label is not None

    def _regression(self, sample: Sample, values: npt.NDArray[Any]) -> bool:
        if sample.value is None:
            return False
        if values.size != 1:
            raise OutputError(f"the output is {values.shape}, but the truth one number")
        pair = float(values.reshape(-1)[0]), sample.value
        if not np.isfinite(pair).all():
            raise OutputError("values of the output or of the truth are NaN or infinite")
        self.values.append(pair)
        return True

    def _depth(self, prediction: npt.NDArray[Any], truth: npt.NDArray[Any] | None) -> bool:
        if truth is not None:
            own = resized_map(as_map(prediction), truth.shape)
            self.depth.append(depth_errors(own, truth, self.settings.depth))
        return truth is not None

    def _own(self, sample: Sample, outputs: Outputs, before: Outputs, truth: npt.NDArray[Any] | None) -> bool:
        reference = dict(before)
        if truth is not None:
            reference["truth"] = truth
        if sample.label is not None:
            reference["label"] = np.asarray(sample.label)
        if sample.value is not None:
            reference["value"] = np.asarray(sample.value)
        for metric in self.own:
            metric.update(outputs, reference, sample.name)
        return bool(self.own)

    def figures(self) -> Figures:
        """Figures by metric, named `output.metric` if there are several outputs."""
        found = self._of_all(DIFFERENCES, figures_by_output(self.differences))
        if self.settings.labels is not None:
            found |= self._of_all(CLASSES, self.classes.figures())
        elif self.agreement.samples or self.not_computed[CLASSES]:
            found |= self._of_all(CLASSES, {"top1_agreement": self.agreement.figures()["top1"]})
        if self.settings.values is not None:
            found |= self._of_all(VALUES, regression_figures(self.values))
        if self.settings.truth is not None:
            found |= self._of_all(DEPTH, depth_means(self.depth))
        for metric in self.own:
            for name, one in metric.figures().items():
                found[f"{metric.name}.{name}" if name in found else name] = one
        return found

    def _of_all(self, kind: str, figures: Figures) -> Figures:
        """Withhold figures if an output could not be compared, because the others alone would overstate accuracy."""
        if not (count := self.not_computed[kind]):
            return figures
        return withheld(figures, f"the outputs of {count} of {self.seen} samples could not be compared")

    def record(self, against: str, remarks: Sequence[str] = ()) -> AccuracyRecord:
        """Record for `bench.json`."""
        reasons: dict[str, str] = {}
        if self.failures:
            more = "" if self.failures <= 3 else f"; and {self.failures - 3} more"
            count = f"{self.failures} of {self.failures + self.samples} samples could not be compared"
            reasons["failed_samples"] = f"{count}: {'; '.join(self.failed[:3])}{more}"
        if remarks:
            reasons["unmatched_files"] = "; ".join(remarks)
        if not self.samples:
            reasons["samples"] = "no sample could be compared"
        return record_of(against, self.samples, self.figures(), self.classes.lost(), reasons)


def record_of(
    against: str, samples: int, figures: Figures, lost: dict[str, float], reasons: Mapping[str, str] | None = None
) -> AccuracyRecord:
    """Record of figures; `reasons` are added to those of figures without values."""
    own = {name: one.reason for name, one in figures.items() if one.value is None and one.reason}
    return AccuracyRecord(
        against=against,
        samples=samples,
        metrics={name: one.value for name, one in figures.items()},
        lost_classes=lost,
        reasons=own | dict(reasons or {}),
    )


def measure_accuracy(
    session: Session,
    shapes: Mapping[str, tuple[int, ...]],
    settings: AccuracySettings,
    *,
    against: str = GROUND_TRUTH,
    baseline: Path | None = None,
    store: Path | None = None,
    details: Path | None = None,
) -> AccuracyRecord:
    """Run and compare all samples.

    Args:
        session: allocated for `shapes`, whose first dimensions are the batch size.
        against: name of the baseline, for the record.
        baseline: folder written by another case with `store`; None for ground truth only.
        store: folder for the outputs.
        details: folder for `accuracy.json` with every class and its interval, and failed samples.

    Raises `UsageError` if settings do not match the model or there are no samples, `BackendError` from the session.
    Files that are unreadable or have no baseline are reported in `reasons`; the others are compared.
    """
    found = settings.samples()
    comparison = Comparison(settings, found.class_names)
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
    for sample, outputs in run_samples(session, dict(shapes), settings, found.samples, comparison.fail):
        if store is not None:
            write_outputs(store, sample.name, outputs)
        comparison.update(sample, outputs, baseline)
    record = comparison.record(against, found.remarks)
    if details is not None:
        whole = {
            **record.model_dump(),
            "classes": [asdict(one) for one in comparison.classes.classes()],
            "confusion": [[*pair, count] for pair, count in sorted(comparison.classes.confusion.items())],
            "worst_samples": {name: one.worst_sample for name, one in comparison.differences.items()},
            "failed": comparison.failed,
        }
        details.mkdir(parents=True, exist_ok=True)
        (details / DETAILS_NAME).write_text(json.dumps(whole, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return record


def write_outputs(folder: Path, sample: str, outputs: Outputs) -> None:
    """Write a sample's outputs."""
    path = folder / f"{sample}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    named: dict[str, Any] = {f"{OUTPUT}{name}": values for name, values in outputs.items()}
    np.savez(path, **named)


def read_outputs(folder: Path, sample: str) -> Outputs:
    """Read the files of `write_outputs`. Raises `SampleError`."""
    arrays = read_arrays(folder / f"{sample}.npz", SampleError)
    return {name.removeprefix(OUTPUT): values for name, values in arrays.items()}


def run_samples(
    session: Session,
    shapes: dict[str, tuple[int, ...]],
    settings: AccuracySettings,
    samples: Sequence[Sample],
    fail: Callable[[Sample, SampleError], None],
) -> Iterator[tuple[Sample, Outputs]]:
    """Yield the outputs of each sample, without the batch dimension; partial batches are padded with their last item.

    `fail` gets the unreadable samples.
    """
    prepare = Preprocessor(settings.preprocess, session.inputs, shapes)
    sizes = {shape[0] for shape in shapes.values() if shape}
    if len(sizes) != 1:
        raise UsageError(f"the inputs have different first dimensions {sorted(sizes)}, so the batch size is unknown")
    batch = sizes.pop()
    waiting: list[tuple[Sample, Outputs]] = []
    for place, sample in enumerate(samples):
        try:
            waiting.append((sample, prepare(sample.path)))
        except SampleError as error:
            fail(sample, error)
        if waiting and (len(waiting) == batch or place == len(samples) - 1):
            yield from _run_batch(session, waiting, batch)
            waiting = []


def _run_batch(
    session: Session, items: Sequence[tuple[Sample, Outputs]], batch: int
) -> Iterator[tuple[Sample, Outputs]]:
    filled = [arrays for _, arrays in items] + [items[-1][1]] * (batch - len(items))
    session.write_inputs({name: np.stack([arrays[name] for arrays in filled]) for name in filled[0]})
    session.run_round()
    outputs = session.read_outputs()
    for name, values in outputs.items():
        if batch > 1 and values.shape[:1] != (batch,):
            raise UsageError(
                f"output {name!r} is {values.shape} for a batch of {batch}, so it cannot be divided by item; "
                "compare with a batch of 1"
            )
    for place, (sample, _) in enumerate(items):
        yield sample, {name: one[place] if one.shape[:1] == (batch,) else one for name, one in outputs.items()}
