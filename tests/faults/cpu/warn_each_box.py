"""A deprecation warning is shown for each box. Mended: the filter shows it once."""

import io
import sys
import warnings

from tests.faults.frame import MENDED, count, run

BOXES = 900


class CountingStream(io.StringIO):
    """Where the service's messages go."""

    def write(self, text):
        count("deprecated" in text)
        return len(text)


def to_corners(box):
    warnings.warn("boxes as (x, y, w, h) are deprecated", FutureWarning, stacklevel=2)  # fault
    x, y, width, height = box
    return x, y, x + width, y + height


def convert(boxes):
    return [to_corners(box) for box in boxes]  # fault


def detect(index):
    seen = sum(number * number % 7 for number in range(12 * BOXES))
    return [(index % 7, number % 11, number % 13 + 1.0, seen % 17 + 1.0) for number in range(BOXES)]


def draw(boxes):
    return sum(int(left + right) for left, _, right, _ in boxes * 20)


warnings.resetwarnings()
warnings.simplefilter("once" if MENDED else "always")
sys.stderr = CountingStream()
run(40, BOXES, detect=detect, convert=convert, draw=draw)
