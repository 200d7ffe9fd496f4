"""The user's own metric: `module:function`, or `file.py:function`. docs/guides/accuracy.md has the contract.

A function is called for each sample and returns a number, or numbers by name; the figure is their mean. A class is made
once, `update` is called for each sample, and `result` returns the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.bench.accuracy.figure import Figure, Figures, figure
from perfharness.bench.accuracy.functions import user_function

Arrays = Mapping[str, npt.NDArray[Any]]


class OwnMetric:
    """A user metric; an exception in it becomes the reason for a missing value, and other metrics continue.

    Args:
        text: as on the command line. Raises `UsageError` where there is no such function.
    """

    def __init__(self, text: str) -> None:
        made = user_function(text)
        self.name = text.rpartition(":")[2]
        self.samples = 0
        self._reason: str | None = None
        self._object: Any = None
        self._function: Any = made
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        if isinstance(made, type):
            self._object = self._asked(made)

    def update(self, outputs: Arrays, reference: Arrays, sample: str) -> None:
        """Pass one sample to the metric.

        Args:
            outputs: of the case, by name, without the batch dimension.
            reference: of the baseline by name, `truth` where there is ground truth, `label` where there is a class.
        """
        self.samples += 1
        if self._reason is not None:
            return
        if self._object is not None:
            self._asked(self._object.update, outputs, reference, sample)
        elif not isinstance(self._function, type):
            for name, value in self._named(self._asked(self._function, outputs, reference, sample)).items():
                if value is not None and np.isfinite(value):
                    self._sums[name] = self._sums.get(name, 0.0) + float(value)
                    self._counts[name] = self._counts.get(name, 0) + 1
                else:
                    self._sums.setdefault(name, 0.0)

    def figures(self) -> Figures:
        """By name; None where a function gave no number for a sample."""
        if self._reason is None and self._object is not None:
            found = self._named(self._asked(self._object.result))
            if self._reason is None:
                return {name: self._figure(value) for name, value in found.items()}
        if self._reason is not None:
            return {self.name: Figure(None, self._reason)}
        if not self._sums:
            return {self.name: Figure(None, "no sample was shown to it")}
        return {name: self._mean(name, total) for name, total in self._sums.items()}

    def _mean(self, name: str, total: float) -> Figure:
        count = self._counts.get(name, 0)
        if count == self.samples:
            return figure(total / count)
        text = f"it gave no number for {self.samples - count} of {self.samples} samples"
        return Figure(None, f"{text}; of the others the mean is {total / count:.6g}" if count else text)

    def _figure(self, value: float | None) -> Figure:
        return Figure(None, "the metric has no value") if value is None or not np.isfinite(value) else Figure(value)

    def _named(self, value: Any) -> dict[str, float | None]:
        if self._reason is not None:
            return {}
        try:
            if isinstance(value, Mapping):
                return {str(name): None if one is None else float(one) for name, one in value.items()}
            return {self.name: None if value is None else float(value)}
        except (TypeError, ValueError):
            self._reason = f"it returned {type(value).__name__}, which is neither a number nor numbers by name"
            return {}

    def _asked(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            self._reason = f"it raised {type(error).__name__}: {error}"
            return None
