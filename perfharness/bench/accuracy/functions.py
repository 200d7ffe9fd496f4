"""User functions, named `module:function` or `file.py:function`, and metrics made of them.

docs/guides/accuracy.md has the contract of a metric: a function is called for each sample and returns a number, or
numbers by name, of which the figure is the mean; a class is made once, `update` is called for each sample, and `result`
returns the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.models import ModelSource, named_function
from perfharness.bench.accuracy.figure import Figure, Figures, figure
from perfharness.errors import BackendError, UsageError

Arrays = Mapping[str, npt.NDArray[np.generic]]


def user_function(text: str) -> Any:
    """The function or class. Raises `UsageError`."""
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise UsageError(f"{text!r} names no function; name it as module:function or file.py:function")
    try:
        return named_function(ModelSource(name, factory=text))
    except BackendError as error:
        raise UsageError(str(error).replace("; name one that makes the model", "")) from error


class OwnMetric:
    """A user metric; an exception in it becomes the reason for a missing value, and other metrics continue.

    Args:
        text: as on the command line. Raises `UsageError` where there is no such function.
    """

    def __init__(self, text: str) -> None:
        self._made = user_function(text)
        self.name = text.rpartition(":")[2]
        self._samples = 0
        self._reason: str | None = None
        self._values: dict[str, list[float | None]] = {}
        self._object = self._try(self._made) if isinstance(self._made, type) else None

    def update(self, outputs: Arrays, reference: Arrays, sample: str) -> None:
        """Pass one sample to the metric.

        Args:
            outputs: of the case, by name, without the batch dimension.
            reference: of the baseline by name, `truth` where there is ground truth, `label` where there is a class.
        """
        self._samples += 1
        if self._reason is None and self._object is not None:
            self._try(self._object.update, outputs, reference, sample)
        elif self._reason is None:
            for name, value in self._named(self._try(self._made, outputs, reference, sample)).items():
                self._values.setdefault(name, []).append(value)

    def figures(self) -> Figures:
        """By name; None where a function gave no number for a sample."""
        found = {name: self._mean(values) for name, values in self._values.items()}
        if self._reason is None and self._object is not None:
            result = self._named(self._try(self._object.result))
            no_value = Figure(None, "the metric has no value")
            found = {name: Figure(value) if _is_number(value) else no_value for name, value in result.items()}
        if self._reason is not None or not found:
            return {self.name: Figure(None, self._reason or "no sample was shown to it")}
        return found

    def _mean(self, values: list[float | None]) -> Figure:
        known = [value for value in values if value is not None and isfinite(value)]
        if len(known) == self._samples:
            return figure(sum(known) / len(known))
        text = f"it gave no number for {self._samples - len(known)} of {self._samples} samples"
        return Figure(None, f"{text}; of the others the mean is {sum(known) / len(known):.6g}" if known else text)

    def _named(self, value: Any) -> dict[str, float | None]:
        if self._reason is not None:
            return {}
        try:
            named = value if isinstance(value, Mapping) else {self.name: value}
            return {str(name): None if one is None else float(one) for name, one in named.items()}
        except (TypeError, ValueError):
            self._reason = f"it returned {type(value).__name__}, which is neither a number nor numbers by name"
            return {}

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            self._reason = f"it raised {type(error).__name__}: {error}"
            return None


def _is_number(value: float | None) -> bool:
    return value is not None and isfinite(value)
