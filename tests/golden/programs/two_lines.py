"""K: one function, two lines: sorted() takes two thirds of the stage, json.dumps one third."""

import json
import random

from perfharness import PerfRecorder

numbers = [random.random() for _ in range(20_000)]
records = [{"index": index, "text": str(index)} for index in range(3000)]


def parse() -> tuple[list[float], str]:
    ordered = sorted(numbers)
    text = json.dumps(records)
    return ordered, text


perf = PerfRecorder("lines")
with perf.range("pipeline"):
    for index in range(40):
        with perf.batch(index, total_items=1), perf.range("parse"):
            parse()
perf.finalize()
