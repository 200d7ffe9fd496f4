"""A fixture for pytest: a test fails where a version is slower than another, or beyond a limit."""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from perfharness.runs.comparison.result import Comparison


class Compare(Protocol):
    """What the fixture is."""

    def __call__(
        self, base: str | Path, *others: str | Path, fail_on: Collection[str] = ("slower",), **options: Any
    ) -> Comparison:
        """Compare versions; the test fails where a row has one of the verdicts, a limit is met, or nothing can be
        compared.

        Args:
            base: as in `perfharness.compare_runs`, with all its options.
            fail_on: verdicts.
        """


@pytest.fixture
def perfharness_compare() -> Compare:
    """Compare versions, and fail with the table: `perfharness_compare("before", "after", fail_on=["slower"])`."""

    def compare(
        base: str | Path, *others: str | Path, fail_on: Collection[str] = ("slower",), **options: Any
    ) -> Comparison:
        from perfharness.render.comparison.terminal import print_comparison
        from perfharness.render.terminal.console import Console
        from perfharness.runs.comparison.compare import compare_runs
        from perfharness.runs.comparison.result import VERDICTS

        if unknown := [verdict for verdict in fail_on if verdict not in VERDICTS]:
            raise pytest.UsageError(f"fail_on={unknown[0]!r}: no such verdict; there are {', '.join(VERDICTS)}")
        comparison = compare_runs(base, *others, **options)
        failed = [result.limit for result in comparison.limits if result.failed]
        if failed or comparison.verdicts().intersection(fail_on) or comparison.has_nothing:
            text = io.StringIO()
            print_comparison(Console(file=text, width=200), comparison)
            pytest.fail(text.getvalue(), pytrace=False)
        return comparison

    return compare
