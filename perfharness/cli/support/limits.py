"""`--fail-if` of one run, which has no base: `stress` and `mlperf`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.cli.support.output import Output
from perfharness.errors import UsageError

if TYPE_CHECKING:
    from perfharness.runs.comparison.limits import Limit


def limits_of(texts: Sequence[str]) -> list[Limit]:
    """Conditions of one run. Raises `UsageError`."""
    from perfharness.runs.comparison.limits import parse_limit

    limits = [parse_limit(text) for text in texts]
    for limit in limits:
        if limit.is_change:
            raise UsageError(
                f"--fail-if '{limit.text}': % is a change against a base, which `compare` has; give a number, as "
                "error_rate > 0.01"
            )
    return limits


def are_kept(run_folder: Path, limits: Sequence[Limit], output: Output) -> bool:
    """Whether no condition is met; those that are, are messages. Raises `UsageError`, `ResultError`."""
    from perfharness.runs.comparison.limits import judge_run

    failed = [one for one in judge_run(run_folder, limits) if one.failed]
    for one in failed:
        output.message(f"--fail-if {one.limit}: {one.reason or f'{one.value:.4g} {one.unit}'}")
    return not failed
