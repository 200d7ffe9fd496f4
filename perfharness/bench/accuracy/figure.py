"""A number, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from perfharness.errors import PerfHarnessError


class SampleError(PerfHarnessError):
    """One sample cannot be read or compared; the others can."""


class OutputError(SampleError):
    """A model's output cannot be compared; another model's might be."""


@dataclass(frozen=True)
class Figure:
    """One metric: `value` is None where it cannot be computed, and `reason` then says why."""

    value: float | None
    reason: str | None = None


Figures = dict[str, Figure]


def figure(value: float) -> Figure:
    """A figure of a number; None with a reason where it is not finite."""
    return Figure(value) if isfinite(value) else Figure(None, "the sums are beyond the range of float64")


def nothing(names: Iterable[str], reason: str) -> Figures:
    """Figures without a value, for one reason."""
    return dict.fromkeys(names, Figure(None, reason))


def withheld(figures: Mapping[str, Figure], why: str) -> Figures:
    """The same without values, which cover only a part of the data; the reasons name them."""
    return {
        name: Figure(None, why if one.value is None else f"{why}; of the others it is {one.value:.6g}")
        for name, one in figures.items()
    }
