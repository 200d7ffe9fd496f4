"""What most tests of the recorder begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perfharness import PerfRecorder
from perfharness.tracer.range_log import RangeLog
from tests.unit.recorder_events import recording


@pytest.fixture
def log() -> Iterator[RangeLog]:
    """The log that recorders of the test write to."""
    with recording() as log:
        yield log


@pytest.fixture
def perf(log: RangeLog) -> PerfRecorder:
    """A recorder that writes to the log."""
    return PerfRecorder("rec")
