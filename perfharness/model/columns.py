"""Column types of traces and samples."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Integers = npt.NDArray[np.signedinteger[Any]]  # codes, indices and numbers, as narrow as possible


@dataclass(frozen=True)
class Columns:
    """A table: all fields, or at least the first, are columns of one length."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def select(self, rows: Bool | Integers) -> Self:
        """Select rows by mask or index; fields that are no columns stay."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: one[rows] for name, one in columns.items() if isinstance(one, np.ndarray)})
