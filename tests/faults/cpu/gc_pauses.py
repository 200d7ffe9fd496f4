"""Full garbage collections go through many long-lived objects. Mended: frozen, and no collections."""

import collections
import gc

from tests.faults.frame import MENDED, count, run, squaring

REQUESTS, PIECES = 90, 900
CACHE = [{"id": i} for i in range(260_000)]
WINDOW = collections.deque(maxlen=300)


def parse(_):
    for request in range(REQUESTS):
        WINDOW.append(parse_one(request))


def parse_one(request):
    return [(request, [piece]) for piece in range(PIECES)]  # fault


gc.collect()
if MENDED:
    gc.freeze()
    gc.disable()
before = gc.get_stats()[2]["collections"]
run(24, REQUESTS, parse=parse, infer=squaring(200_000))
count(gc.get_stats()[2]["collections"] - before)
