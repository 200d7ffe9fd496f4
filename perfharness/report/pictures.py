"""Whether pictures can be drawn: asked before a run, without loading what draws them."""

from __future__ import annotations

import importlib.util

from perfharness.errors import ToolNotFoundError
from perfharness.model.distribution import install_command


def require_matplotlib(option: str = "--plots") -> None:
    """Raises `ToolNotFoundError` naming the option where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ToolNotFoundError(f"{option} needs matplotlib, which is not installed; {install_command('plots')}")
