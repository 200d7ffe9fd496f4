"""Division of threads' time by stage and activity: `paint` by recorded events, `sample_times` by samples."""

from perfharness.analysis.segments.paint import Segments as Segments
from perfharness.analysis.segments.paint import Sums as Sums
from perfharness.analysis.segments.paint import paint as paint
from perfharness.analysis.segments.samples import SampleTimes as SampleTimes
from perfharness.analysis.segments.samples import sample_times as sample_times
