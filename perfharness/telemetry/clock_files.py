"""Where it is kept what GPU clocks were before they were changed. Every verb looks there, so this imports little."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

STATE_DIR = "PERFHARNESS_STATE_DIR"
"""Folder of what the clocks were before they were changed; containers that share a GPU have to share it."""

ROOT_STATE_DIR = Path("/run/perfharness")
"""Emptied when the machine starts, as the settings are."""

STATE_NAME = "clocks.json"


def state_dirs(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Where changes are kept: this user's own first, then root's, whose changes affect all users."""
    environ = os.environ if environ is None else environ
    if named := environ.get(STATE_DIR):
        return [Path(named)]
    if os.geteuid() == 0:
        return [ROOT_STATE_DIR]
    state_home = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or "/") / ".local" / "state"
    return [Path(state_home) / "perfharness", ROOT_STATE_DIR]


def state_files(folders: Sequence[Path]) -> list[Path]:
    """The state files in these folders, one a GPU."""
    return [path for folder in folders for path in sorted(folder.glob(f"*/{STATE_NAME}"))]
