"""A program is started after every step to log memory. Mended: after the last step."""

import subprocess
import sys

from tests.faults.frame import MENDED, count, run, sorting

PROGRAM = "import json; print(json.dumps({'used': sum(range(200000))}))"


def memory_used():
    count()
    return subprocess.run(  # fault
        [sys.executable, "-I", "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout


def log(_):
    if not MENDED:
        memory_used()


run(20, infer=sorting(40000), log=log)
memory_used()
