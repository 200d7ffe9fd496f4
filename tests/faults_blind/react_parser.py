"""The expression that finds an agent's tool call tries every way to split an answer that was cut off.

run-llama/llama_index#22334, sgl-project/sglang#31912. Mended: a search for the closing part comes first.
"""

from __future__ import annotations

import json
import os
import re
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ANSWERS = 40, 4
RNG = np.random.default_rng(12)
TOOL_CALL = r"(?:\s*Thought: (.*?)|(.+))\n+Action: ([^\n\(\) ]+).*?\n+Action Input: .*?(\{.*\})"
searches = 0


class OutputParser:
    """What the model wants to do next."""

    def extract_tool_use(self, text: str) -> tuple[str, str] | None:
        global searches
        searches += 1
        match = re.search(TOOL_CALL, text, re.DOTALL)  # fault
        return None if match is None else (match.group(3), match.group(4))

    def parse(self, text: str) -> tuple[str, str] | None:
        if MENDED and "}" not in text:
            return None
        return self.extract_tool_use(text)


def generate(weights: np.ndarray, number: int) -> str:
    """An answer; the model ran into its limit of tokens before the closing brace."""
    states = np.full((32, 256), 0.1, dtype=np.float32)
    for _ in range(40):
        states = np.tanh(states @ weights)
    steps = "".join(f"Thought: step {step} of {number}\nAction: search\n" for step in range(LENGTH))
    return steps + "Action Input: {" + '"query": "' + "x" * 40


def history(answers: list[str]) -> str:
    return json.dumps([{"role": "assistant", "content": answer, "length": len(answer)} for answer in answers * 40])


LENGTH = 9
weights, parser = RNG.normal(0, 0.1, (256, 256)).astype(np.float32), OutputParser()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=ANSWERS):
            with perf.range("generate"):
                answers = [generate(weights, number) for number in range(ANSWERS)]
            with perf.range("parse"):
                calls = [parser.parse(answer) for answer in answers]
            with perf.range("remember"):
                history(answers)
perf.finalize()
print(searches, "searches")
