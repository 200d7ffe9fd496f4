"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast a machine is that does other things besides says nothing about the code.
settings.register_profile("perfharness", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perfharness")
