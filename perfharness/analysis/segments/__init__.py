"""Division of threads' time by stage and activity.

`paint` lays recorded events onto the ranges of threads, most specific last, so that a range's segments add up to its
duration exactly. Time without events is `unknown`; `sample_times` divides it by samples, with their numbers.
"""

from perfharness.analysis.segments.paint import Segments as Segments
from perfharness.analysis.segments.paint import Sums as Sums
from perfharness.analysis.segments.paint import paint as paint
from perfharness.analysis.segments.samples import SampleTimes as SampleTimes
from perfharness.analysis.segments.samples import sample_times as sample_times
