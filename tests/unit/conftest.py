from __future__ import annotations

import pytest

from perfharness.recorder import recorder


@pytest.fixture(autouse=True)
def no_recorders() -> None:
    """Each test starts without recorders and without claimed domains."""
    recorder._domains.clear()
    recorder._recorders.clear()
