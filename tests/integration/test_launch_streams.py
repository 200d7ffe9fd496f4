"""What passes through a launch: output to a reader that is gone or slow, names and arguments that are not UTF-8."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.integration.launches import PATIENCE_S, command, environment, manifest, wait_for

LINES = 20_000
SCRIPT = f"""
import os, sys
print("up", flush=True)
if sys.argv[1] == "many":
    for number in range({LINES}):
        print("line", number, "x" * 100)
print(os.fsencode(sys.argv[-1]), end="")
"""
NO_UTF_8 = os.fsdecode(b"caf\xe9")


@contextmanager
def launched(folder: Path, *arguments: str, code: int) -> Iterator[IO[bytes]]:
    """A launch whose output the test reads."""
    script = folder / f"{NO_UTF_8}.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        command("--tracer", "none", "-v", "-o", folder / "out", script, *arguments),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(),
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        yield launcher.stdout
        assert launcher.wait(PATIENCE_S) == code


def test_a_reader_that_is_gone_and_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    """As in `perfharness launch … | head -1`: it ends, and what was measured is there."""
    with launched(tmp_path, "few", NO_UTF_8, code=1) as output:
        assert output.readline()
        output.close()
    assert manifest(tmp_path / "out")["processes"][0]["command"][-1] == "caf\\udce9"
    assert (tmp_path / "out" / "proc_0_gpu_0" / "stdout.log").read_text() == "up\nb'caf\\xe9'"


@pytest.mark.slow
def test_a_slow_reader_delays_nothing_and_gets_every_line(tmp_path: Path) -> None:
    with launched(tmp_path, "many", "end", code=0) as output:
        wait_for((tmp_path / "out" / "manifest.json").exists)
        printed = output.read().decode().splitlines()
    mirrored = [line.partition(" | ")[2] for line in printed if line.startswith("proc_0_gpu_0 | ")]
    assert mirrored == ["up", *(f"line {number} {'x' * 100}" for number in range(LINES)), "b'end'"]
