"""Tests marked `nsys` are skipped where scripts/test has found none."""

import pytest

from tests.integration.launches import NSYS, NVTX_SITE


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("nsys") and not (NSYS and NVTX_SITE):
        pytest.skip("PERFHARNESS_TEST_NSYS and PERFHARNESS_TEST_NVTX_SITE are unset; scripts/test sets them")
