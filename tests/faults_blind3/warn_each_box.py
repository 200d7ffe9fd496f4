"""A deprecation warning is issued for each box and always shown, since a library has reset the filters.

pytorch/pytorch#76952, google-research/flood-forecasting#45. Mended: the filter shows it once.
"""

from __future__ import annotations

import io
import sys
import warnings

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, BOXES = 40, 900
shown = 0


class CountingStream(io.StringIO):
    """Where the service's messages go."""

    def write(self, text: str) -> int:
        global shown
        shown += "deprecated" in text
        return len(text)


def to_corners(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    warnings.warn("boxes as (x, y, w, h) are deprecated", FutureWarning, stacklevel=2)  # fault
    x, y, width, height = box
    return x, y, x + width, y + height


def convert(boxes: list[tuple[float, float, float, float]]) -> list[tuple[float, float, float, float]]:
    return [to_corners(box) for box in boxes]  # fault


def detect(index: int) -> list[tuple[float, float, float, float]]:
    seen = sum(number * number % 7 for number in range(12 * BOXES))
    return [(index % 7, number % 11, number % 13 + 1.0, seen % 17 + 1.0) for number in range(BOXES)]


def draw(boxes: list[tuple[float, float, float, float]]) -> int:
    return sum(int(left + right) for left, _, right, _ in boxes * 20)


warnings.resetwarnings()
warnings.simplefilter("once" if MENDED else "always")
sys.stderr = CountingStream()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=BOXES):
            with perf.range("detect"):
                boxes = detect(index)
            with perf.range("convert"):
                corners = convert(boxes)
            with perf.range("draw"):
                draw(corners)
perf.finalize()
print(shown, "warnings shown")
