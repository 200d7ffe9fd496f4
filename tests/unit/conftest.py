from __future__ import annotations

import pytest

from perfharness.recorder import core


@pytest.fixture(autouse=True)
def no_recorders() -> None:
    """Each test is a process of its own as far as recorders go: there is none, and none has a domain yet."""
    core.claims.clear()
    core.recorders.clear()
