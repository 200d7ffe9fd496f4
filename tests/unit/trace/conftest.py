"""Traces made by hand, read through `open_trace`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfharness.model.trace import Trace
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

Read = Callable[..., Trace]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write what was built, and read it."""

    def write_and_read(builder: TraceBuilder, **options: Any) -> Trace:
        return open_trace(builder.write(tmp_path / "t.sqlite"), **options)

    return write_and_read
