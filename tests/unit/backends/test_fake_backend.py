"""Names of backends."""

from __future__ import annotations

import pytest

from perfharness.backends import backend
from perfharness.errors import UsageError


def test_a_backend_that_is_not_there_is_a_usage_error() -> None:
    for name in ("none", "no.such:Backend", "perfharness.errors:Backend"):
        with pytest.raises(UsageError, match=name):
            backend(name)
