"""Files of NumPy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.errors import PerfHarnessError


def read_arrays(path: Path, error: type[PerfHarnessError]) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a `.npz` by name, or of a `.npy` with an empty name. Raises `error`."""
    try:
        with path.open("rb") as file:  # numpy.load does not close damaged archives
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            with loaded as archive:
                return {name: archive[name] for name in archive.files}
    except Exception as cause:  # damaged archives raise errors of zipfile and zlib
        problem = str(cause) or type(cause).__name__
        if "pickle" in problem:
            problem = "it is not a file of plain NumPy arrays"
        raise error(f"{path} cannot be read: {problem}") from cause
