"""Several sessions in threads: what is counted, by hand; who works in which thread; what is no number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions, ModelSource, Session
from perfharness.bench.spec import CaseSpec, LatencySettings
from perfharness.bench.worker.concurrent import concurrent_figures
from perfharness.bench.worker.latency import Timed
from perfharness.bench.worker.streams import Stream, run_streams, summarize_streams
from perfharness.model.bench import BenchCase, MemoryUse
from tests.support.fake_backend import FAKE_BACKEND, FakeBackend, FakeClock, FakeScript, FakeSession
from tests.unit.bench_results import known

MS = 1_000_000


def timed(*rounds: tuple[float, float]) -> Timed:
    """Rounds from and to, in milliseconds."""
    start, end = (np.asarray([round(one[place] * MS) for one in rounds], np.int64) for place in (0, 1))
    return Timed(start, end - start)


def spec(streams: int = 2, **fields: Any) -> CaseSpec:
    case = BenchCase(
        case_id="one", model="fake", backend=FAKE_BACKEND, mode="plain", precision="fp32",
        device=fields.pop("device", "cpu"), batch_size=4,
    )  # fmt: skip
    return CaseSpec(case=case, model="fake.py:create", streams=streams, **fields)


def sessions(*scripts: FakeScript) -> tuple[list[FakeSession], list[FakeClock]]:
    """Each with a clock of its own."""
    clocks = [FakeClock() for _ in scripts]
    model = ModelSource("m", factory="no:one")
    return [
        FakeBackend(script, clock).load(model, BackendOptions()) for script, clock in zip(scripts, clocks, strict=True)
    ], clocks


def prepare(number: int, session: Session) -> None:
    session.allocate({"x": (2, 4)})
    session.write_inputs({"x": np.full((2, 4), number, np.float32)})


def test_rounds_on_the_border_of_the_window_count_by_their_part() -> None:
    """
    one    |0....10|10....20|20....30|30....40|40....50|
    other       |5.....17|17.....29|29.....41|41.....53|
    window      |5                                  50|
    """
    one, other = [(at, at + 10) for at in range(0, 50, 10)], [(at, at + 12) for at in range(5, 50, 12)]
    found = concurrent_figures([timed(*one), timed(*other)], 4, 7, "streams")
    # 4.5 rounds and 3.75 rounds, of 4 items each, in 45 ms.
    assert found["window_ms"] == 45
    assert found["items_per_second_each"] == pytest.approx([400, 3.75 * 4 / 0.045])
    assert found["items_per_second"] == pytest.approx((4.5 + 3.75) * 4 / 0.045)
    assert found["mean_running"] == 2
    assert (found["latency"].iterations, found["latency"].warmup_iterations) == (9, 7)
    assert found["latency"].mean.value == pytest.approx((5 * 10 + 4 * 12) / 9)


def test_whoever_pauses_is_not_running() -> None:
    """Four rounds of 10 ms, one each 15 ms, beside rounds without a pause: 3.2 periods of 15 ms in 5 ... 53 ms."""
    one, other = [(0, 10), (15, 25), (30, 40), (45, 60)], [(at, at + 12) for at in range(5, 50, 12)]
    found = concurrent_figures([timed(*one), timed(*other)], 4, 0, "streams")
    assert found["mean_running"] == pytest.approx((5 + 10 + 10 + 8 + 48) / 48)
    assert found["items_per_second_each"][0] == pytest.approx(3.2 * 4 / 0.048)


@pytest.mark.parametrize("begins", [0, 10, 30])
def test_who_hardly_worked_at_the_same_time_has_no_throughput(begins: int) -> None:
    one, other = [(at, at + 10) for at in (0, 10, 20)], [(begins + at, begins + at + 10) for at in (0, 10, 20)]
    found = concurrent_figures([timed(*one), timed(*other)], 4, 0, "streams")
    assert (found.keys() == {"reason"}) == (begins > 0)


def test_known_times_come_out_as_they_went_in() -> None:
    """Rounds of 2 ms and of 4 ms, each on a clock of its own; four before the timed ones, which take 20 ms."""
    made, clocks = sessions(FakeScript(execute_ms=2), FakeScript(execute_ms=4))
    settings = LatencySettings(warmup=2, iterations=5, min_seconds=0.02)
    streams = run_streams(made, settings, prepare, lambda: None, clocks)
    begin = FakeClock().now_ns
    starts = [(stream.timed.start_ns - begin) // MS for stream in streams]
    assert starts[0].tolist() == [8, 10, 12, 14, 16, 18, 20, 22, 24, 26]
    assert starts[1].tolist() == [16, 20, 24, 28, 32]
    assert [stream.warmup_iterations for stream in streams] == [2, 2]
    record = summarize_streams(spec(), streams, MemoryUse(host_peak_bytes=7, model_host_bytes=1))
    # All were at work from 16 to 28 ms: 6 rounds of one, 3 of the other, of 4 items each.
    assert record.window_ms == 12
    assert record.items_per_second == pytest.approx(9 * 4 / 0.012)
    assert record.items_per_second_each == pytest.approx([2000, 1000])
    assert record.mean_running == 2
    assert known(record.latency).mean.value == pytest.approx(40 / 15)
    assert (record.outputs_equal, record.reason) == (True, None)
    assert (record.memory.host_peak_bytes, record.memory.model_host_bytes) == (7, None)


def stream(first: float, alone: float, beside: float) -> Stream:
    outputs = [{"y": np.full((4, 2), value, np.float32)} for value in (first, alone, beside)]
    return Stream(0, timed((0, 10), (10, 20), (20, 30)), *outputs)


@pytest.mark.parametrize(
    ("streams", "equal"),
    [
        ([stream(1, 1, 1), stream(2, 2, 2)], True),
        ([stream(1, 1, 1), stream(2, 2, 1)], False),
        ([stream(1, 1, 1), stream(2, 3, 4)], None),  # a model that draws lots
        ([stream(1, 1, 3), stream(2, 3, 4)], False),
    ],
)
def test_wrong_outputs_have_no_speed(streams: Sequence[Stream], equal: bool | None) -> None:
    record = summarize_streams(spec(), streams, MemoryUse())
    assert record.outputs_equal is equal
    assert (record.reason is None) == (equal is not False)
    if equal is not False:
        assert record.items_per_second == pytest.approx(2 * 400)
    else:
        assert (record.items_per_second, record.latency, record.items_per_second_each) == (None, None, [])
