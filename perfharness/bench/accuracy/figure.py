"""A number, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
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


def nothing(names: tuple[str, ...], reason: str) -> Figures:
    """Figures without a value, for one reason."""
    return {name: Figure(None, reason) for name in names}


def split(figures: Mapping[str, Figure]) -> tuple[dict[str, float | None], dict[str, str]]:
    """The values, and the reasons of those that are None."""
    values = {name: one.value for name, one in figures.items()}
    return values, {name: one.reason for name, one in figures.items() if one.value is None and one.reason}
