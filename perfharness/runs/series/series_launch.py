"""One launch of a series: of a repeat, a sweep, cold starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import BaseModel

from perfharness.errors import LaunchInterruptedError, PerfHarnessError

if TYPE_CHECKING:
    from perfharness.runs.launch import LaunchResult

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class SeriesLaunch(Generic[_Model]):
    """One launch of a series.

    Attributes:
        row: of the file.
        result: None: it was not run, or failed as a whole.
        error: why it failed as a whole.
    """

    row: _Model
    result: LaunchResult | None = None
    error: PerfHarnessError | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it, and with it the series."""
        if self.result is None:
            return isinstance(self.error, LaunchInterruptedError)
        ended = any(one.ended == "interrupted" for one in self.result.manifest.processes)
        return ended or self.result.explaining_interrupted
