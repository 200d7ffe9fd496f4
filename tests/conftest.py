"""Settings of all tests."""

from __future__ import annotations

import contextlib
import os

os.environ["PERFHARNESS_STORE"] = "off"  # no test writes into the store of who runs it

# The speed of a shared machine does not depend on the code. A machine with a GPU that runs only
# tests/gpu may be without Hypothesis.
with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    settings.register_profile("perfharness", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("perfharness")
