"""One division of threads' time: which stage, and what the thread does in it.

`paint` lays recorded events onto the ranges of threads, the most specific last, so that the segments of a range add up
to its duration, to the nanosecond. What no event covers is `unknown`. `sample_times` says what samples show of it:
proportions, with the number of samples.
"""

from perfharness.analysis.segments.paint import Segments as Segments
from perfharness.analysis.segments.paint import Sums as Sums
from perfharness.analysis.segments.paint import paint as paint
from perfharness.analysis.segments.samples import SampleTimes as SampleTimes
from perfharness.analysis.segments.samples import sample_times as sample_times
