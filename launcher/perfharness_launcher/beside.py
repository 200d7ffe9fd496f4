"""What runs beside every launch, in the order of its start: one line each."""

from __future__ import annotations

from collections.abc import Callable

from perfharness.model.plan import LaunchOptions
from perfharness_launcher.clock_companion import ClockCompanion
from perfharness_launcher.companions import Companion
from perfharness_launcher.cool_companion import CoolDownCompanion
from perfharness_launcher.exclusive import ExclusiveGpus
from perfharness_launcher.sampling import TelemetryCompanion


def companions_for(options: LaunchOptions, say: Callable[[str], None]) -> list[Companion]:
    """The companions that the options ask for.

    Args:
        say: hears what a companion waits for before the run begins.
    """
    companions: list[Companion] = [ExclusiveGpus(required=options.require_exclusive)]
    if options.cool_down_c is not None:  # before the clocks are locked, for an idle GPU with locked clocks stays warmer
        companions.append(CoolDownCompanion(options.cool_down_c, options.cool_down_limit_s, say))
    if options.maximize_clocks:  # before the sampler, so that the idle power is that of the clocks of the run
        companions.append(ClockCompanion(stop_on_refusal=options.clock_refusal == "stop"))
    if options.telemetry:
        companions.append(TelemetryCompanion())
    return companions
