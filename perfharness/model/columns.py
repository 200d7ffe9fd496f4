"""Column types of traces and samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Integers = npt.NDArray[np.signedinteger[Any]]  # codes, indices and numbers, as narrow as possible


@dataclass(frozen=True)
class Columns:
    """A table: all fields, or at least the first, are columns of one length."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))
