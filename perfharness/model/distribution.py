"""What pip calls this package, for every message that names a command to install it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

DISTRIBUTION = "perfharness-nvtx"
"""`[project] name` in pyproject.toml; another project holds `perfharness` on PyPI."""


def install_command(extra: str) -> str:
    """The command that installs the package with an extra, or with several: `load,images`.

    The name is that in the metadata of the installed package; a checkout on the path has none.
    """
    try:
        name = metadata(DISTRIBUTION)["Name"]
    except PackageNotFoundError:
        name = DISTRIBUTION
    return f"pip install '{name}[{extra}]'"
