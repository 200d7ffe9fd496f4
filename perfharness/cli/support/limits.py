"""`--fail-if` of `stress` and `mlperf`: conditions on one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.cli.support.output import Output
from perfharness.errors import UsageError

if TYPE_CHECKING:
    from perfharness.runs.comparison.limits import Limit


def limits_of(texts: Sequence[str]) -> list[Limit]:
    """Parse conditions. Raises `UsageError`, also for a change in %."""
    from perfharness.runs.comparison.limits import parse_limit

    limits = [parse_limit(text) for text in texts]
    for limit in limits:
        if limit.is_change:
            raise UsageError(
                f"--fail-if '{limit.text}': % is a change from BASE and needs `perfharness compare`; give a number"
                " such as error_rate > 0.01"
            )
    return limits


def are_kept(run_folder: Path, limits: Sequence[Limit], output: Output) -> bool:
    """Print the conditions that are met; return whether there are none. Raises `UsageError`, `ResultError`."""
    from perfharness.runs.comparison.limits import judge_run

    failed = [one for one in judge_run(run_folder, limits) if one.failed]
    for one in failed:
        output.message(f"--fail-if {one.limit}: {one.reason or f'{one.value:.4g} {one.unit}'}")
    return not failed
