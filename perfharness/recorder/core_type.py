"""What recorders of this process are made of."""

from __future__ import annotations

import os

from perfharness.model import environment
from perfharness.recorder.core import RecorderCore


def core_type() -> type[RecorderCore]:
    """Of a script under load, one that waits for requests; its module is imported only there."""
    if not os.environ.get(environment.PACE):
        return RecorderCore
    from perfharness.recorder.pacing import PacedCore

    return PacedCore
