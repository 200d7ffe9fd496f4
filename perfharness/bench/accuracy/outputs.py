"""Compare outputs with a baseline's: value by value over any number of samples, and equality in one round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from perfharness.bench.accuracy.metrics import Figure, Figures, OutputError, figure, nothing, withheld
from perfharness.model.base import Settings
from perfharness.model.bench import EqualityRecord, Precision

Outputs = Mapping[str, npt.NDArray[Any]]

BLOCK = 1 << 20
"""Values per block of computation in float64."""

COUNTS = ("nan", "inf", "baseline_nan", "baseline_inf", "zero_baseline")
ON_VALUES = ("cosine", "cosine_min", "mse", "max_absolute", "max_relative")


@dataclass
class _Sums:
    """Sums over values: `unlike` are NaN or infinite on one side only, `compared` finite on both."""

    count: int = 0
    compared: int = 0
    unlike: int = 0
    nan: int = 0
    inf: int = 0
    baseline_nan: int = 0
    baseline_inf: int = 0
    zero_baseline: int = 0
    relative_count: int = 0
    dot: float = 0.0
    square: float = 0.0
    baseline_square: float = 0.0
    error_square: float = 0.0
    max_absolute: float = 0.0
    max_relative: float = 0.0

    def add(self, other: _Sums) -> None:
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name.startswith("max_") else mine + value)

    def cosine(self) -> Figure:
        if not self.square or not self.baseline_square:
            whose = "the baseline" if self.square else "the output"
            zero = f"of {whose} are 0" if self.square or self.baseline_square else "are 0 on both sides"
            return Figure(None, f"all values {zero}, so there is no direction")
        with np.errstate(over="ignore", invalid="ignore"):
            value = float(np.float64(self.dot) / (np.sqrt(self.square) * np.sqrt(self.baseline_square)))
        return figure(min(1.0, max(-1.0, value)) if np.isfinite(value) else value)


class DifferenceAccumulator(_Sums):
    """Cosine, mean squared error, largest differences, NaN and infinite values.

    - `cosine`: over all values of all samples as one vector; `cosine_min`: of the worst sample, None if any has none.
    - `max_relative`: |x - b| / |b| over values with a baseline b other than 0; `zero_baseline_count` counts excluded
      values with x other than 0.
    - Values that are NaN, or infinite with equal sign, on both sides are equal and excluded. If they are on one side
      only, figures are None, with those of the remaining values in the reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0
        self.worst_sample: str | None = None  # with the largest absolute difference
        self._worst = -1.0
        self._cosines: list[float] = []
        self._without_cosine: list[str] = []

    def update(self, values: npt.NDArray[Any], baseline: npt.NDArray[Any], sample: str = "") -> None:
        """Add one sample's output. Raises `OutputError` if shapes differ or values are not real numbers."""
        values, baseline = np.asarray(values), np.asarray(baseline)
        if values.shape != baseline.shape:
            raise OutputError(f"the output is {values.shape}, but the baseline's is {baseline.shape}")
        if values.dtype.kind not in "fiub" or baseline.dtype.kind not in "fiub":
            raise OutputError(f"values of {values.dtype} and {baseline.dtype} are not real numbers")
        own = _Sums()
        flat, other = values.reshape(-1), baseline.reshape(-1)
        for begin in range(0, flat.size, BLOCK):
            block = slice(begin, begin + BLOCK)
            own.add(_block_sums(flat[block].astype(np.float64), other[block].astype(np.float64)))
        self.add(own)
        self.samples += 1
        cosine = own.cosine() if own.compared else Figure(None, "no values")
        if cosine.value is None:
            self._without_cosine.append(f"{sample}: {cosine.reason}" if sample else str(cosine.reason))
        else:
            self._cosines.append(cosine.value)
        if own.compared and own.max_absolute > self._worst:
            self._worst, self.worst_sample = own.max_absolute, sample

    def figures(self) -> Figures:
        """All metrics by name; counts are never None."""
        return {**self._on_values(), **{f"{name}_count": Figure(float(getattr(self, name))) for name in COUNTS}}

    def _on_values(self) -> Figures:
        if not self.count:
            return nothing(ON_VALUES, "there are no values")
        if not self.compared:
            return nothing(ON_VALUES, f"none of {self.count} values is finite on both sides")
        relative, all_zero = figure(self.max_relative), Figure(None, "all values of the baseline are 0")
        found = {
            "cosine": self.cosine(),
            "cosine_min": self._cosine_min(),
            "mse": figure(self.error_square / self.compared),
            "max_absolute": figure(self.max_absolute),
            "max_relative": relative if self.relative_count else all_zero,
        }
        if not self.unlike:
            return found
        return withheld(found, f"{self.unlike} of {self.count} values are NaN or infinite on one side only")

    def _cosine_min(self) -> Figure:
        least = Figure(min(self._cosines, default=None))
        if not (without := self._without_cosine):
            return least
        why = f"{len(without)} of {self.samples} samples have no cosine ({without[0]})"
        return withheld({"cosine_min": least}, why)["cosine_min"]


def figures_by_output(differences: Mapping[str, DifferenceAccumulator]) -> Figures:
    """Metrics of all outputs, named `output.metric` if there are several."""
    found: Figures = {}
    for output, one in differences.items():
        prefix = f"{output}." if len(differences) > 1 else ""
        found |= {f"{prefix}{name}": value for name, value in one.figures().items()}
    return found


def _block_sums(x: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> _Sums:
    finite = np.isfinite(x) & np.isfinite(b)
    equal = (x == b) | (np.isnan(x) & np.isnan(b))
    found = _Sums(
        count=x.size,
        compared=int(finite.sum()),
        unlike=int((~finite & ~equal).sum()),
        nan=int(np.isnan(x).sum()),
        inf=int(np.isinf(x).sum()),
        baseline_nan=int(np.isnan(b).sum()),
        baseline_inf=int(np.isinf(b).sum()),
    )
    x, b = x[finite], b[finite]
    has_size = b != 0
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(x - b)
        found.zero_baseline = int((~has_size & (x != 0)).sum())
        found.relative_count = int(has_size.sum())
        found.dot, found.square, found.baseline_square = float(x @ b), float(x @ x), float(b @ b)
        found.error_square = float(error @ error)
        found.max_absolute = float(error.max(initial=0))
        found.max_relative = float((error[has_size] / np.abs(b[has_size])).max(initial=0))
    return found


class Tolerance(Settings):
    """Outputs are equal if |difference| <= absolute + relative * |baseline|, as in `numpy.allclose`."""

    absolute: float = Field(default=1e-3, ge=0)
    relative: float = Field(default=1e-3, ge=0)


LOW_PRECISION: dict[Precision, Tolerance] = {
    "tf32": Tolerance(absolute=1e-2, relative=1e-2),
    "fp16": Tolerance(absolute=2e-2, relative=2e-2),
    "bf16": Tolerance(absolute=1e-1, relative=1e-1),
    "int8": Tolerance(absolute=5e-1, relative=1e-1),
}


def matched_outputs(outputs: Outputs, baseline: Outputs) -> dict[str, npt.NDArray[Any]]:
    """The baseline's outputs by the names of the others, matched by order if the names differ.

    Raises `OutputError` if one is missing or has another shape.
    """
    if set(baseline) != set(outputs) and len(baseline) == len(outputs):
        baseline = dict(zip(outputs, baseline.values(), strict=True))
    if missing := sorted(set(outputs) - set(baseline)):
        raise OutputError(f"the baseline has no output {missing[0]!r}; it has: {', '.join(baseline)}")
    for key, values in outputs.items():
        if values.shape != baseline[key].shape:
            raise OutputError(f"output {key!r} is {values.shape}, but the baseline's is {baseline[key].shape}")
    return {key: baseline[key] for key in outputs}


def compare_outputs(reference: str, baseline: Outputs, outputs: Outputs, tolerance: Tolerance) -> EqualityRecord:
    """Compare the outputs of one round with the baseline's.

    NaN equals NaN, and infinities of equal sign are equal. `max_absolute`, `max_relative` and `cosine` are the worst of
    all outputs (`DifferenceAccumulator`); None if an output has none.
    """
    record = EqualityRecord(
        reference=reference,
        equal=False,
        absolute_tolerance=tolerance.absolute,
        relative_tolerance=tolerance.relative,
    )
    excess, found = {"": 0.0}, dict[str, Figures]()
    try:
        if len(outputs) != len(baseline):
            raise OutputError(f"it has {len(outputs)} outputs, but the baseline has {len(baseline)}")
        for name, wanted in matched_outputs(outputs, baseline).items():
            one = DifferenceAccumulator()
            one.update(outputs[name], wanted)
            found[name] = one.figures()
            if wanted.size:
                excess[name] = _excess(outputs[name].astype(np.float64), wanted.astype(np.float64), tolerance)
    except OutputError as error:
        return record.model_copy(update={"reason": str(error)})

    def all_of(figure_name: str, names: Iterable[str]) -> list[float]:
        """Values of a figure for these outputs; empty if one has none."""
        values = [found[name][figure_name].value for name in names]
        return [value for value in values if value is not None] if None not in values else []

    name = max(excess, key=excess.__getitem__)
    equal = excess[name] <= 1.0
    return record.model_copy(
        update={
            "equal": equal,
            "max_absolute": max(all_of("max_absolute", [*excess][1:]), default=None),
            "max_relative": max(all_of("max_relative", [*excess][1:]), default=None),
            "cosine": min(all_of("cosine", found), default=None),
            "worst_output": name or None,
            "reason": None if equal else f"output {name} differs by up to {excess[name]:.3g} times the tolerance",
        }
    )


def _excess(x: npt.NDArray[np.float64], b: npt.NDArray[np.float64], tolerance: Tolerance) -> float:
    """Largest difference as a multiple of the tolerance."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        same = (x == b) | (np.isnan(x) & np.isnan(b))
        allowed = tolerance.absolute + tolerance.relative * np.where(np.isfinite(b), np.abs(b), 0.0)
        excess = np.where(same, 0.0, np.abs(x - b) / allowed)
    return float(np.where(np.isnan(excess), np.inf, excess).max())
