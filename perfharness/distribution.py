"""Name and version of the distribution."""

from __future__ import annotations

VERSION = "0.1.0"
"""Read by the build."""

DISTRIBUTION = "perfharness-nvtx"
"""`[project] name` in pyproject.toml; `perfharness` on PyPI is another project."""


def install_command(extra: str) -> str:
    """Return the command that installs the package with an extra, or several (`load,images`)."""
    from importlib.metadata import PackageNotFoundError, metadata  # takes 20 ms

    try:
        name = metadata(DISTRIBUTION)["Name"]
    except PackageNotFoundError:  # a checkout that is not installed
        name = DISTRIBUTION
    return f"pip install '{name}[{extra}]'"


def recorder_install_command(python: str) -> str:
    """Return the command that installs only the needs of a measured process, for an interpreter."""
    return f"{python} -m pip install --no-deps {DISTRIBUTION} nvtx"
