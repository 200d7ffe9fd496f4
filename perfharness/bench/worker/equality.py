"""Whether two backends give equal outputs for the same inputs; checked before any timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from perfharness.model.base import Settings
from perfharness.model.bench import EqualityRecord, Precision

Outputs = Mapping[str, npt.NDArray[Any]]


class Tolerance(Settings):
    """An output is equal where |difference| <= absolute + relative * |reference|, as `numpy.allclose` has it."""

    absolute: float = Field(default=1e-3, ge=0)
    relative: float = Field(default=1e-3, ge=0)


LOW_PRECISION: dict[Precision, Tolerance] = {
    "tf32": Tolerance(absolute=1e-2, relative=1e-2),
    "fp16": Tolerance(absolute=2e-2, relative=2e-2),
    "bf16": Tolerance(absolute=1e-1, relative=1e-1),
    "int8": Tolerance(absolute=5e-1, relative=1e-1),
}


def tolerance_of(precision: Precision, least: Tolerance = Tolerance()) -> Tolerance:  # noqa: B008 - frozen
    """Tolerance for a precision, never tighter than `least`."""
    low = LOW_PRECISION.get(precision, least)
    return Tolerance(absolute=max(low.absolute, least.absolute), relative=max(low.relative, least.relative))


def compare_outputs(reference: str, expected: Outputs, found: Outputs, tolerance: Tolerance) -> EqualityRecord:
    """Compare outputs of a case with the reference's.

    An element is equal where |found - expected| <= absolute + relative * |expected| (`numpy.allclose`); NaN equals NaN,
    and an infinity one of the same sign. Outputs are matched by name, or by position where the names differ.
    """
    pairs = _matched(expected, found)
    common: dict[str, Any] = {
        "reference": reference,
        "absolute_tolerance": tolerance.absolute,
        "relative_tolerance": tolerance.relative,
    }
    if isinstance(pairs, str):
        return EqualityRecord(**common, equal=False, reason=pairs)
    found_all: dict[str, _Compared] = {}
    for name, wanted, got in pairs:
        if wanted.shape != got.shape:
            reason = f"output {name} is {got.shape}, the reference's {wanted.shape}"
            return EqualityRecord(**common, equal=False, worst_output=name, reason=reason)
        found_all[name] = _compared(wanted.astype(np.float64), got.astype(np.float64), tolerance)
    worst = max(found_all, key=lambda name: found_all[name].excess, default=None)
    excess = 0.0 if worst is None else found_all[worst].excess
    return EqualityRecord(
        **common,
        equal=excess <= 1.0,
        max_absolute=_finite(max((one.absolute for one in found_all.values()), default=0.0)),
        max_relative=_finite(max((one.relative for one in found_all.values()), default=0.0)),
        cosine=smallest([one.cosine for one in found_all.values()]),
        worst_output=worst,
        reason=None if excess <= 1.0 else f"output {worst} differs by up to {excess:.3g} times the tolerance",
    )


class _Compared(NamedTuple):
    """Figures of one output. `excess`: the largest difference as a multiple of the tolerance."""

    absolute: float
    relative: float
    cosine: float | None
    excess: float


def _compared(wanted: npt.NDArray[np.float64], got: npt.NDArray[np.float64], tolerance: Tolerance) -> _Compared:
    if wanted.size == 0:
        return _Compared(0.0, 0.0, None, 0.0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        same = (wanted == got) | (np.isnan(wanted) & np.isnan(got))
        difference = np.where(same, 0.0, np.abs(got - wanted))
        difference = np.where(np.isnan(difference), np.inf, difference)  # NaN on one side only
        allowed = tolerance.absolute + tolerance.relative * np.where(np.isfinite(wanted), np.abs(wanted), 0.0)
        excess = np.where(difference == 0, 0.0, difference / allowed)
        relative = np.where(difference == 0, 0.0, difference / np.abs(wanted))
    known = relative[~np.isnan(relative)]
    return _Compared(float(difference.max()), float(known.max(initial=0.0)), _cosine(wanted, got), float(excess.max()))


def _cosine(wanted: npt.NDArray[np.float64], got: npt.NDArray[np.float64]) -> float | None:
    """Cosine of the whole output as one vector; None where one has no direction or is not finite."""
    a, b = wanted.ravel(), got.ravel()
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    scale_a, scale_b = np.abs(a).max(), np.abs(b).max()
    if scale_a == 0 or scale_b == 0:
        return None
    a, b = a / scale_a, b / scale_b  # so that no square overflows
    return float(min(1.0, a @ b / (np.linalg.norm(a) * np.linalg.norm(b))))


def smallest(values: Sequence[float | None]) -> float | None:
    """The smallest value; None where one is unknown."""
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None


def _finite(value: float) -> float | None:
    """None for values that JSON cannot hold."""
    return value if np.isfinite(value) else None


def _matched(expected: Outputs, found: Outputs) -> list[tuple[str, npt.NDArray[Any], npt.NDArray[Any]]] | str:
    if set(expected) == set(found):
        return [(name, expected[name], found[name]) for name in expected]
    if len(expected) != len(found):
        return (
            f"it has {len(found)} outputs ({', '.join(found)}), the reference {len(expected)} ({', '.join(expected)})"
        )
    return [(name, wanted, got) for (name, wanted), got in zip(expected.items(), found.values(), strict=True)]
