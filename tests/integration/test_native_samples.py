"""Samples of native code in real processes, against what the threads count themselves."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perfharness.host_probe.perf_events import NativeSampler, UnavailableError
from perfharness.model.host_samples import HostProbe, NativeSamples
from perfharness.trace.host_samples import read_host_probe
from tests.integration.launches import environment, run_to_the_end
from tests.integration.test_host_probe import explained, run

HERE = Path(__file__).parent

SPLIT = """
import ctypes, json, sys, threading
from perfharness import PerfRecorder

class Work(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("rounds", "first", "second", "first_ns", "second_ns")]

library = ctypes.CDLL(LIBRARY)
own, helpers = Work(ROUNDS, 70_000, 30_000), (Work * 3)(*[Work(ROUNDS, 30_000, 70_000)] * 3)
perf = PerfRecorder("pipe")
with perf.range("own"):
    library.split(ctypes.byref(own))
with perf.range("helped"):
    library.split_in_threads(helpers, 3)
perf.finalize()

def spent(works):
    return [sum(work.first_ns for work in works), sum(work.second_ns for work in works)]

said = {"tid": threading.get_native_id(), "own": spent([own]), "helpers": spent(helpers)}
json.dump(said, open(sys.argv[1], "w"))
"""
"""Two functions, in the thread itself and in threads that run nothing else, and their CPU time."""

LENGTHS = """
import ctypes
from perfharness import PerfRecorder

libc = ctypes.CDLL(None)
libc.strlen.argtypes = [ctypes.c_void_p]
text = ctypes.create_string_buffer(b"\\1" * (48 << 20))
perf = PerfRecorder("pipe")
with perf.range("run"):
    for index in range(30):
        with perf.batch(index), perf.range("measure"):
            for _ in range(10):
                libc.strlen(text)
perf.finalize()
"""

FORBIDDING = """
import ctypes, os, sys
number = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
filters = (ctypes.c_uint64 * 4)(0x20, number << 32 | 1 << 24 | 0x15, (0x50000 | ERRNO) << 32 | 6, 0x7FFF0000 << 32 | 6)
program = (ctypes.c_uint64 * 2)(4, ctypes.addressof(filters))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Runs a script where `perf_event_open` gives an error, as the seccomp profile of many containers has it."""


def is_permitted() -> bool:
    try:
        NativeSampler(os.getpid()).close()
    except UnavailableError:
        return False
    return True


def check_share(native: NativeSamples, rows: np.ndarray, spent: list[int]) -> None:
    """That of the first function is the one by CPU time, within five standard deviations of as many samples."""
    names = [native.functions[number].function for number in native.function[rows].tolist()]
    first, second = names.count("first_function"), names.count("second_function")
    assert first + second > 200
    assert first + second > 0.95 * len(rows)
    share = spent[0] / sum(spent)
    assert abs(first / (first + second) - share) < 5 * math.sqrt(share * (1 - share) / (first + second)) + 0.01


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A script of two functions in a library with symbols."""
    library = tmp_path_factory.mktemp("library") / "libsplit.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "native_split.c", "-lpthread"], check=True)
    return SPLIT.replace("LIBRARY", repr(str(library))).replace("ROUNDS", "9000")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc)")
@pytest.mark.slow
@pytest.mark.parametrize("tracer", ["none", pytest.param("nsys", marks=pytest.mark.nsys)])
def test_two_functions_in_a_thread_and_in_threads_without_python(tmp_path: Path, split: str, tracer: str) -> None:
    probe, said = run(tmp_path, split, tracer)
    native = probe.native
    if not is_permitted():
        assert native is None
        assert len(probe.native_missing) == 1
        return
    assert probe.native_missing == ()
    assert native is not None
    own, of_helpers = said["own"], said["helpers"]
    assert isinstance(own, list)
    assert isinstance(of_helpers, list)
    is_of_split = np.asarray([one.file.endswith("libsplit.so") for one in native.functions])[native.function]
    is_own = (native.thread & 0xFFFFFF) == said["tid"]
    check_share(native, np.flatnonzero(is_of_split & is_own), own)
    helpers = np.flatnonzero(is_of_split & ~is_own)
    check_share(native, helpers, of_helpers)
    assert len(np.unique(native.thread[helpers])) == 3
    assert not np.isin(native.thread[helpers], probe.samples.thread).any()
    counted = float(native.length_ns[is_of_split & is_own].sum())
    assert counted == pytest.approx(sum(own), rel=5 / math.sqrt(counted / 1e6))


@pytest.mark.slow
def test_without_permission_there_is_a_reason_and_everything_else(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(LENGTHS)
    out.mkdir()
    command = [sys.executable, "-c", FORBIDDING.replace("ERRNO", str(errno.EPERM)), str(script)]
    subprocess.run(command, env=explained(out), check=True, timeout=120)
    recorded = read_host_probe(out)
    assert recorded is not None
    probe: HostProbe = recorded.probe
    assert probe.native is None
    assert probe.missing == ()
    (reason,) = probe.native_missing
    assert "perf_event_open" in reason
    assert len(probe.samples) > 0


@pytest.mark.slow
def test_a_launch_names_the_native_function_of_a_stage(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(LENGTHS)
    done = run_to_the_end(("--explain", "--tracer", "embedded", "-w", 0, "-o", out, script), environment())
    assert done.returncode == 0, done.stderr
    # The pass's own: beside the measured one it is trusted only where both got as much of the machine.
    result = json.loads((out / "explain" / "proc_0_gpu_0" / "benchmark.json").read_text())
    stages = {stage["path"][-1]: stage for stage in result["diagnosis"]["stages"]}
    profile, (cause, *_) = stages["measure"]["profile"], stages["measure"]["causes"]
    if not is_permitted():
        assert profile["native"] is None
        assert any("perf_event_open" in sentence for sentence in profile["missing"])
        return
    assert (out / "explain" / "proc_0_gpu_0" / "native_symbols.json").exists()
    first = profile["native"]["functions"][0]
    assert "strlen" in first["function"]
    assert Path(first["library"]).exists()
    assert first["share"] > 0.9
    assert profile["native"]["cpu_ms"] == pytest.approx(profile["on_cpu_ms"], rel=0.3)
    assert cause["code"] == "cpu-bound"
    assert cause["native"]["function"] == first["function"]
    assert cause["where"]["function"] == "<module>"
