"""Every request brings a regular expression of its own for guided decoding, which is compiled anew.

sgl-project/sglang#2168, dottxt-ai/outlines#483. Mended: what differs is compared after matching one expression.
"""

from __future__ import annotations

import re
import sys

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, REQUESTS = 24, 40
FORM = r"(?:name|title): ([A-Z][a-z]{1,12} ){2,5}; code: (%s)-[0-9a-f]{4,8}(?: or [0-9a-f]{2,8}){0,4}; (yes|no|maybe)"
ANY = re.compile(FORM % r"\w+")
TEXT = "name: Ada Byron Lovelace ; code: key17-00ff00ff or 12ab; yes"
compiled = 0


def compile_guide(key: str) -> re.Pattern[str]:
    global compiled
    compiled += 1
    options = "|".join(f"{key}{i}" for i in range(40))
    return re.compile(FORM % options)  # fault


def matches(key: str) -> bool:
    if MENDED:
        found = ANY.match(TEXT)
        return found is not None and found[2].startswith(key)
    return compile_guide(key).match(TEXT) is not None


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=REQUESTS):
            with perf.range("guide"):
                for request in range(REQUESTS):
                    matches(f"key{index}x{request}y")
            with perf.range("infer"):
                sum(value * value for value in range(200_000))
perf.finalize()
print(compiled, "expressions compiled")
