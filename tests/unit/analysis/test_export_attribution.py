"""Which stage a call belongs to, against the definition said out loud."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.timeline.attribution import stage_of_calls
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(1, 2)), min_size=1, max_size=12)


@given(ranges=SPANS, calls=SPANS)
@pytest.mark.parametrize("start_end", [False, True])
def test_the_innermost_stage_around_the_call(
    ranges: list[tuple[int, int, int]], calls: list[tuple[int, int, int]], start_end: bool
) -> None:
    """Start/end ranges overlap as they like; of those around a call, the one that began last is meant."""
    builder = TraceBuilder()
    for number, (start, length, tid) in enumerate(ranges):
        builder.range(f"r{number}", start, start + length, tid=tid, start_end=start_end)
    for start, length, tid in calls:
        builder.call("cudaFree", start, start + length, tid=tid)
    with tempfile.TemporaryDirectory() as folder:
        trace = open_trace(builder.write(Path(folder) / "t.sqlite"))
    stages, api = Analysis(trace).stages, trace.api
    found = stage_of_calls(stages, api, np.arange(len(api)))
    begins, ends = trace.ranges.start_ns[stages.index], trace.ranges.end_ns[stages.index]
    for call, stage in enumerate(found.tolist()):
        around = np.flatnonzero(
            (stages.thread == api.thread[call]) & (begins <= api.start_ns[call]) & (ends >= api.end_ns[call])
        )
        assert (stage >= 0) == (len(around) > 0)
        if len(around):
            assert stage in around
            assert begins[stage] == begins[around].max()


def test_a_stage_that_overlaps_the_one_around_the_last(tmp_path: Path) -> None:
    """
    a |---------------|
    b           |-----------------|
    c             |-|
                            call
    """
    builder = TraceBuilder()
    for name, start, end in (("a", 0, 75), ("b", 50, 150), ("c", 60, 70)):
        builder.range(name, start, end, start_end=True)
    builder.call("cudaFree", 80, 81)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    stages = Analysis(trace).stages
    found = stage_of_calls(stages, trace.api, np.arange(1))
    assert trace.names[stages.name[found[0]]] == "b"
