"""Which variables the measured processes get from the launcher's environment, where `--env-allow` names some."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NEEDED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS",
)  # fmt: skip
"""What the interpreter, the loader and ordinary programs need."""

NEEDED_FAMILIES = ("LC_", "PERFHARNESS_", "CUDA_", "NVIDIA_")
"""What names begin with that perfharness, CUDA and the driver's libraries read."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
"""A variable, or the beginning of several: `OMP_*`."""


def allowed_environment(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The variables that are named, and those that are needed; all where none is named."""
    if not names:
        return dict(environ)
    exact = {*NEEDED, *(name for name in names if not name.endswith("*"))}
    beginnings = (*NEEDED_FAMILIES, *(name[:-1] for name in names if name.endswith("*")))
    return {name: value for name, value in environ.items() if name in exact or name.startswith(beginnings)}
