"""The distribution: its name for pip, and its version."""

from __future__ import annotations

VERSION = "0.1.0"
"""The build takes it from here; a checkout that is not installed has it too."""

DISTRIBUTION = "perfharness-nvtx"
"""`[project] name` in pyproject.toml; another project holds `perfharness` on PyPI."""


def install_command(extra: str) -> str:
    """The command that installs the package with an extra, or with several: `load,images`.

    The name is that in the metadata of the installed package; a checkout on the path has none.
    """
    from importlib.metadata import PackageNotFoundError, metadata  # takes 20 ms

    try:
        name = metadata(DISTRIBUTION)["Name"]
    except PackageNotFoundError:
        name = DISTRIBUTION
    return f"pip install '{name}[{extra}]'"


def recorder_install_command(python: str) -> str:
    """The command that installs what a measured process needs, and nothing else, for another interpreter."""
    return f"{python} -m pip install --no-deps {DISTRIBUTION} nvtx"
