"""The fake backend does what its script says; other tests rest on that."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perfharness.backends import BackendOptions, ModelSource, backend, model_source
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError, UsageError
from tests.support.fake_backend import FAKE_BACKEND, FakeBackend, FakeClock, FakeScript, FakeSession, write_model

MODEL = ModelSource("tiny", factory="nowhere:create")


def session(script: FakeScript, batch: int = 2, **options: object) -> tuple[FakeSession, FakeClock]:
    clock = FakeClock(0)
    made = FakeBackend(script, clock).load(MODEL, BackendOptions(**options))  # type: ignore[arg-type]
    made.allocate({"x": (batch, script.features)})
    made.write_inputs({"x": np.ones((batch, script.features), np.float32)})
    return made, clock


def test_on_a_device_the_host_goes_on_and_synchronize_waits() -> None:
    script = FakeScript(has_device=True, launch_ms=1, copy_in_ms=5, execute_ms=10, copy_out_ms=3)
    made, clock = session(script)
    timer = made.device_timer()
    assert timer is not None
    made.copy_in()
    timer.start()
    made.execute()
    timer.stop()
    made.copy_out()
    assert clock() == 3_000_000, "three launches"
    made.synchronize()
    assert clock() == 19_000_000, "one launch, then the device's 5 + 10 + 3"
    assert timer.milliseconds() == 10


def test_without_a_device_each_call_takes_its_time() -> None:
    made, clock = session(FakeScript(execute_ms=2, per_item_ms=3), batch=4)
    made.execute()
    assert clock() == 14_000_000
    assert made.device_timer() is None
    assert made.device_memory_bytes() is None


def test_outputs_are_those_of_the_last_execution() -> None:
    made, _ = session(FakeScript(scale=3, bias=1))
    made.run_round()
    assert made.read_outputs()["y"].tolist() == [[4, 4, 4, 4], [4, 4, 4, 4]]


def test_failures() -> None:
    made, _ = session(FakeScript(has_device=True, model_bytes=10, bytes_per_item=5, device_bytes=40), batch=6)
    assert made.device_memory_bytes() == 40
    with pytest.raises(OutOfMemoryError, match="45 bytes"):
        made.allocate({"x": (7, 4)})
    for script, kind in (
        (FakeScript(oom_at_batch=2, oom_in_execute=True), OutOfMemoryError),
        (FakeScript(error_at_batch=2), BackendError),
    ):
        made, _ = session(script)
        with pytest.raises(kind):
            made.execute()
    with pytest.raises(BackendUnavailableError, match="no such device"):
        FakeBackend(FakeScript(unavailable="no such device")).load(MODEL, BackendOptions())


def test_in_a_process_of_its_own_it_is_named_by_text_and_may_crash(tmp_path: Path) -> None:
    text = write_model(tmp_path / "crashing.py", FakeScript(crash_at_execution=1, execute_ms=0))
    assert model_source(text).name == "crashing"
    program = f"""
from perfharness.backends import BackendOptions, backend, model_source
made = backend({FAKE_BACKEND!r}).load(model_source({text!r}), BackendOptions())
made.allocate({{"x": (1, 4)}})
made.execute()
print("once", flush=True)
made.execute()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("once\n", -signal.SIGKILL), done.stderr


def test_a_backend_that_is_not_there_is_a_usage_error() -> None:
    for name in ("none", "no.such:Backend", "perfharness.errors:Backend"):
        with pytest.raises(UsageError, match="there is no backend"):
            backend(name)
