"""Which ranges get through to the tracer with `--capture-batches`: the wanted batches, whole, and what is around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.stages.journal_check import check_journals
from perfharness.model.findings import Severity
from perfharness.model.journal import CapturedRecord, RecorderJournal, RecorderRecord
from perfharness.model.manifest import GpuRecord
from perfharness.recorder.capture import Capture, Gate
from perfharness.recorder.channels import Channel
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder
from tests.unit.launcher.test_plan import plan, refusal


class Tracer:
    """Takes what is recorded, and whether it was switched on then."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.switched: list[str] = []

    def start(self) -> Callable[[], object]:
        self.switched.append("on")
        return lambda: self.switched.append("off")

    def channel(self, stack: str) -> Channel:
        def note(what: str) -> Callable[..., None]:
            return lambda *given: self.note(stack, what, given)

        return Channel(
            attributes=lambda message, color, category: message,
            attributes_with_value=lambda message, color, category: message,
            push=note("push"), push_value=note("batch"), pop=note("pop"), start=note("start"),
            start_value=note("start"), end=note("end"), mark=note("mark"), mark_value=note("mark"),
        )  # fmt: skip

    def note(self, stack: str, what: str, given: tuple[Any, ...]) -> None:
        assert self.switched == ["on"], "recorded while the tracer was off"
        self.events.append((f"{stack} {what}", *given))


def gated(tracer: Tracer, capture: Capture, stack: str) -> tuple[Gate, Channel]:
    gate = Gate(capture, lambda channel: channel.mark("recorder"))
    return gate, gate.channel(tracer.channel(stack))


def run_loop(channel: Channel, batches: int) -> None:
    channel.push("pipeline")
    for index in range(batches):
        channel.push("outside")
        channel.pop()
        channel.push_value("batch", index)
        channel.push("stage")
        channel.mark_value("items", 4)
        channel.pop()
        channel.pop()
    channel.pop()


def test_what_is_no_loop_is_recorded_while_a_loop_is_and_to_its_end() -> None:
    """It begins nothing by itself, and the tracer is on until it has ended."""
    tracer = Tracer()
    capture = Capture(1, 2, tracer.start)
    assert not capture.join_others()
    assert capture.join()
    assert capture.join_others()
    capture.leave()
    assert tracer.switched == ["on"]
    capture.leave()
    assert tracer.switched == ["on", "off"]
    assert not capture.join_others()
    assert not capture.join()


def test_the_wanted_batches_and_what_is_around_them() -> None:
    tracer = Tracer()
    capture = Capture(1, 3, tracer.start)
    gate, channel = gated(tracer, capture, "a")
    run_loop(channel, 5)
    stage = [("a push", "stage"), ("a mark", "items", 4), ("a pop",), ("a pop",)]
    assert tracer.events == [
        ("a mark", "recorder"), ("a push", "pipeline"),
        ("a batch", "batch", 1), *stage,
        ("a push", "outside"), ("a pop",),
        ("a batch", "batch", 2), *stage,
        ("a pop",),
    ]  # fmt: skip
    assert (gate.batches, gate.ranges) == (2, 6)
    assert tracer.switched == ["on", "off"]


@given(st.integers(0, 4), st.integers(1, 5), st.integers(1, 3), st.randoms(use_true_random=False), st.integers(0, 12))
def test_every_batch_is_recorded_whole_or_not_at_all(
    first: int, count: int, stacks: int, random: Any, batches: int
) -> None:
    """Loops of several threads, their steps in any order."""
    tracer = Tracer()
    capture = Capture(first, first + count, tracer.start)
    steps: list[list[Callable[[], object]]] = []
    gates: list[Gate] = []
    for number in range(stacks):
        gate, channel = gated(tracer, capture, str(number))
        gates.append(gate)
        own: list[Callable[[], object]] = [lambda c=channel: c.push("around")]  # type: ignore[misc]
        for index in range(batches):
            own.append(lambda c=channel, i=index: c.push_value("batch", i))  # type: ignore[misc]
            own.append(lambda c=channel: c.push("stage"))  # type: ignore[misc]
            own += [channel.pop, channel.pop]
        steps.append([*own, channel.pop])
    order = [number for number, own in enumerate(steps) for _ in own]
    random.shuffle(order)
    for number in order:
        steps[number].pop(0)()
    for number, gate in enumerate(gates):
        events = [event for event in tracer.events if event[0].startswith(f"{number} ")]
        depth: list[str] = []
        seen: list[int] = []
        for event in events:
            what = event[0].split(" ")[1]
            if what == "pop":
                if depth.pop() == "batch":
                    seen.append(1)
            elif what != "mark":
                depth.append(what)
        is_whole = batches >= first + count
        assert not depth or not is_whole
        indices = [event[2] for event in events if event[0].endswith("batch")]
        wanted = list(range(first, min(first + count, batches)))
        assert indices in (wanted, []), "none where the other loops were through before this one began"
        assert len(seen) == len(indices) == gate.batches
        assert gate.ranges == sum(event[0].split(" ")[1] in ("push", "batch") for event in events)
    if stacks == 1 and batches >= first + count:
        assert gates[0].batches == count
        assert tracer.switched == ["on", "off"]


def journal(captured: CapturedRecord | None) -> RecorderJournal:
    record = RecorderRecord(
        name="net", domain="perfharness", ranges=9, batches=8, items=32, finalized=True, captured=captured
    )
    return RecorderJournal(schema_version=1, pid=1, ended="finalized", recorders=[record])


@pytest.mark.parametrize(
    ("captured", "codes"),
    [
        (CapturedRecord(ranges=2, batches=1), ["batches-captured"]),
        (CapturedRecord(ranges=3, batches=2), ["trace-missing-ranges", "batches-captured"]),
        (None, ["trace-missing-ranges", "trace-missing-items"]),
    ],
)
def test_a_trace_is_checked_against_what_was_captured(
    tmp_path: Any, captured: CapturedRecord | None, codes: list[str]
) -> None:
    trace = TraceBuilder()
    trace.mark("perfharness.recorder", 0, domain="perfharness", category="net")
    trace.range("pipeline", 1, 10, domain="perfharness", category="net")
    trace.range("batch", 2, 9, domain="perfharness", category="net", payload=1)
    opened = open_trace(trace.write(tmp_path / "trace.sqlite"))
    found = [finding.code for finding in check_journals([journal(captured)], opened)]
    assert [code for code in found if code != "gpu-work-not-traced"] == codes


@pytest.mark.parametrize(("batches", "severity"), [(8, Severity.NOTE), (0, Severity.ERROR)])
def test_a_recorder_that_makes_no_batches_has_none_to_capture(tmp_path: Any, batches: int, severity: Severity) -> None:
    """As that of `--annotate-collectives`; of no recorder at all a batch is an error."""
    trace = TraceBuilder()
    trace.mark("perfharness.recorder", 0, domain="perfharness", category="net")
    trace.range("all_reduce", 1, 10, domain="perfharness", category="annotated")
    opened = open_trace(trace.write(tmp_path / "trace.sqlite"))
    captured = CapturedRecord(ranges=0, batches=min(batches, 2))
    records = [
        RecorderRecord(
            name=name, domain="perfharness", ranges=9, batches=count, items=0, finalized=True, captured=captured
        )
        for name, count in (("net", batches), ("annotated", 0))
    ]
    journals = [RecorderJournal(schema_version=1, pid=1, ended="finalized", recorders=records)]
    found = [one for one in check_journals(journals, opened) if one.code == "batches-captured"]
    assert {one.severity for one in found} == {severity}
    assert [one for one in found if "annotated" in one.message and batches] == []


@pytest.mark.parametrize(
    "change",
    [
        {"capture_batches": "5"}, {"capture_batches": "5:5"}, {"capture_batches": "-1:5"}, {"capture_batches": "a:b"},
        {"explain": True}, {"telemetry": True}, {"tracer": "none"},
    ],
)  # fmt: skip
def test_what_does_not_go_with_it(change: dict[str, Any]) -> None:
    right = {"capture_batches": "1:5", "telemetry": False, "tracer": "embedded"}
    assert "--capture-batches" in refusal(**{**right, **change})


def test_the_embedded_tracer_does_not_capture_gpu_work_in_part() -> None:
    gpus = {"gpus": (GpuRecord(index=0, uuid="GPU-aaaa"),)}
    assert "--tracer nsys" in refusal(gpus, capture_batches="1:5", telemetry=False, tracer="embedded")
    plan(gpus, capture_batches="1:5", telemetry=False, tracer="ranges")
