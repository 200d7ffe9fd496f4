from __future__ import annotations

import pytest

from perfharness.recorder import claims


@pytest.fixture(autouse=True)
def unclaimed_domains() -> None:
    """Each test is a process of its own as far as recorders go: none has a domain yet."""
    claims.claims.clear()
