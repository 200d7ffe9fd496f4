"""Tokens go into a pipe whose reader is slower than the model. Mended: a fast reader."""

import subprocess
import sys
import time

import numpy as np

from tests.faults.frame import MENDED, count, run

LINES = 40
LINE = "token " + "▁" * 900 + "\n"
CONSOLE = """
import sys, time
for line in sys.stdin.buffer:
    float(sys.argv[1]) and time.sleep(float(sys.argv[1]))
"""


def write(data):
    began = time.monotonic()
    console.stdin.write(data)  # fault
    console.stdin.flush()  # fault
    count(time.monotonic() - began > 0.001)


def sample(index):
    np.random.default_rng(index).standard_normal((120, 900)).argmax(axis=1)
    return [LINE] * LINES


def moderate(lines):
    sum(letter == "t" for line in lines[:8] for letter in line)
    return lines


def show(lines):
    for line in lines:
        write(line.encode())


command = [sys.executable, "-c", CONSOLE, "0" if MENDED else "0.0012"]
console = subprocess.Popen(command, stdin=subprocess.PIPE)
show([LINE] * 60)  # the pipe is full
run(30, LINES, sample=sample, moderate=moderate, show=show)
console.stdin.close()
console.wait()
