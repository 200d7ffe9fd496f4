"""Settings of all tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["PERFHARNESS_HISTORY"] = "off"  # no test writes into the history of who runs it
DEFAULT_DATA = tempfile.mkdtemp(prefix="perfharness-tests-")
os.environ["XDG_DATA_HOME"] = DEFAULT_DATA  # nor does a process that a test starts without that variable

# What is ignored here (by nohup, in a background job of a shell) would be in every process that a test starts; what has
# a handler is not.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The gate draws the same examples in each run, scripts/test --all new ones. The speed of a shared machine does not
# depend on the code. A machine with a GPU that runs only tests/gpu may be without Hypothesis.
with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    random = settings.get_profile("random")
    settings.register_profile("gate", random, derandomize=True, database=None, max_examples=50)
    settings.load_profile(os.environ.get("PERFHARNESS_TEST_PROFILE", "gate"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `nsys` where scripts/test has found none."""
    names = ("PERFHARNESS_TEST_NSYS", "PERFHARNESS_TEST_NVTX_SITE")
    if item.get_closest_marker("nsys") and not all(map(os.environ.get, names)):
        pytest.skip(f"{names[0]} or {names[1]} is unset; scripts/test sets them")


@pytest.fixture(scope="session", autouse=True)
def default_history_stays_empty() -> Iterator[None]:
    """Whatever a test launches reaches no history that the test did not name."""
    yield
    found = sorted(Path(DEFAULT_DATA).rglob("*.db"))
    shutil.rmtree(DEFAULT_DATA, ignore_errors=True)
    assert found == []
