"""How many requests were somewhere at a time: in flight, or in a queue."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.load.proportions import Int64


def most_at_a_time(begin_ns: Int64, end_ns: Int64, starts_ns: Int64, stops_ns: Int64) -> Int64:
    """The most that had begun and not ended, in each window.

    Args:
        begin_ns, end_ns: of each request; one that ends as another begins is gone by then.
        starts_ns, stops_ns: of each window; what begins as a window stops is no part of it.
    """
    moments = np.concatenate([begin_ns, end_ns])
    steps = np.concatenate([np.ones(len(begin_ns), np.int64), -np.ones(len(end_ns), np.int64)])
    order = np.lexsort((steps, moments))
    moments, level = moments[order], np.concatenate([[0], np.cumsum(steps[order])])
    firsts, lasts = np.searchsorted(moments, starts_ns), np.searchsorted(moments, stops_ns)
    found = [int(level[first : last + 1].max()) for first, last in zip(firsts, lasts, strict=True)]
    return np.array(found, np.int64)
