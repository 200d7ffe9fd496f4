"""A scheduler formats its whole state for a debug message that is never shown.

vllm-project/vllm#4261. Mended: it is formatted only where the level asks for it.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, SEQUENCES, STEPS = 20, 60, 24
logger = logging.getLogger("scheduler")
formatted = 0


@dataclass
class Sequence:
    name: str
    tokens: list[int] = field(default_factory=lambda: list(range(120)))
    blocks: dict[int, int] = field(default_factory=lambda: {i: i * 16 for i in range(20)})


def schedule(running: list[Sequence]) -> int:
    global formatted
    if MENDED:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("running: %s", running)
    else:
        logger.debug(f"running: {running}")  # fault
        formatted += 1
    return sum(len(sequence.blocks) for sequence in running)


perf = PerfRecorder("faults")
sequences = [Sequence(f"sequence {i}") for i in range(SEQUENCES)]
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=SEQUENCES):
            with perf.range("schedule"):
                for _ in range(STEPS):
                    schedule(sequences)
            with perf.range("infer"):
                sum(value * value for value in range(200_000))
perf.finalize()
print(formatted, "messages formatted")
