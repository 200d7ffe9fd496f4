"""Tokens are printed into a pipe whose reader, a console that draws them, is slower than the model.

opencog/ros-behavior-scripting#148, siderolabs/talos#33. Mended: the console draws a screen, not each line.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, LINES = 30, 40
LINE = "token " + "▁" * 900 + "\n"
CONSOLE = """\
import sys, time
each = sys.argv[1] == "line"
for number, line in enumerate(sys.stdin.buffer):
    if each:
        time.sleep(0.0012)
"""
console = subprocess.Popen([sys.executable, "-c", CONSOLE, "screen" if MENDED else "line"], stdin=subprocess.PIPE)
assert console.stdin is not None
stalled = 0


class Stream:
    """What the user sees of an answer."""

    def show(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line.encode())

    def write(self, data: bytes) -> None:
        global stalled
        assert console.stdin is not None
        began = time.monotonic()
        console.stdin.write(data)  # fault
        console.stdin.flush()  # fault
        stalled += time.monotonic() - began > 0.001


def sample(index: int) -> list[str]:
    np.random.default_rng(index).standard_normal((120, 900)).argmax(axis=1)
    return [LINE] * LINES


def moderate(lines: list[str]) -> int:
    return sum(letter == "t" for line in lines[:8] for letter in line)


stream = Stream()
stream.show([LINE] * 60)  # the pipe is full
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=LINES):
            with perf.range("sample"):
                lines = sample(index)
            with perf.range("moderate"):
                moderate(lines)
            with perf.range("show"):
                stream.show(lines)
perf.finalize()
console.stdin.close()
console.wait()
print(stalled, "writes took more than 1 ms")
