"""A launch does not depend on who reads what it prints: no reader, a full disk, one that does not read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from perfharness.cli.support.streams import LastingStream
from tests.integration.launches import PATIENCE_S, command, environment, manifest, wait_for

LINES = 20_000
SCRIPT = f"""
import sys
print("up", flush=True)
if sys.argv[1:] == ["many"]:
    for number in range({LINES}):
        print("line", number, "x" * 100)
    print("the end", end="")
"""
PLAIN = ("--tracer", "none")


def test_a_reader_that_has_gone_costs_no_result(script: Path, tmp_path: Path) -> None:
    """As in `perfharness launch … | head -1`."""
    out = tmp_path / "out"
    with subprocess.Popen(
        command(*PLAIN, "--show-output", "-o", out, script, "many"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(),
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        assert launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(PATIENCE_S) == 0
    assert manifest(out)["processes"][0]["ended"] == "ok"
    assert (out / "benchmark_mean.json").exists()


@pytest.mark.slow
def test_a_full_disk_behind_stdout_costs_no_result(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(*PLAIN, "--show-output", "-o", out, script),
            stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0
    assert manifest(out)["processes"][0]["ended"] == "ok"
    assert (out / "benchmark_mean.json").exists()


def test_a_reader_that_does_not_read_holds_up_nothing_and_gets_every_line(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command(*PLAIN, "--show-output", "-o", out, script, "many"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(),
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        wait_for((out / "manifest.json").exists)
        printed = launcher.stdout.read().decode().splitlines()
        assert launcher.wait(PATIENCE_S) == 0
    mirrored = [line.partition(" | ")[2] for line in printed if line.startswith("proc_0_gpu_0 | ")]
    assert mirrored == ["up", *(f"line {number} {'x' * 100}" for number in range(LINES)), "the end"]


def test_a_stream_without_a_reader_swallows_what_is_written() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as pipe:
        stream = LastingStream(pipe)
        assert [stream.write("a line\n") for _ in range(3)] == [7, 7, 7]
        stream.flush()
        print("more", file=pipe, flush=True)  # its descriptor leads nowhere now
