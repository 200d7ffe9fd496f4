from __future__ import annotations

import pytest

from perfharness.recorder import core


@pytest.fixture(autouse=True)
def no_recorders() -> None:
    """Each test starts without recorders and without claimed domains."""
    core._domains.clear()
    core.recorders.clear()
