"""What the profiling pass shows of the stages stands in tables, and nothing where there is nothing."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from perfharness.model.diagnosis import (
    FunctionTime,
    KernelGroup,
    KernelKind,
    RooflinePoint,
    StageDiagnosis,
)
from perfharness.render.terminal.console import Console
from perfharness.render.terminal.evidence import print_evidence
from tests.support.diagnosis_builder import gpu_work
from tests.unit.diagnosis_results import counters, function, profile, stage

KERNEL = KernelGroup(
    name="kernel", gpu=0, kind=KernelKind.UNKNOWN, grid=None, block=None, registers=None, shared_bytes=None, waves=None,
    occupancy=None, limiter=None, count=1.0, time_ms=1.0, mean_us=1000.0, share=1.0,
)  # fmt: skip


def printed(*stages: StageDiagnosis, details: bool = False, markdown: bool = False) -> str:
    console = Console(file=io.StringIO(), markdown=markdown)
    print_evidence(console, stages, details=details)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(said: str, title: str) -> list[list[str]]:
    """The rows of the table below a title that begins so; a blank first cell is ''."""
    lines = said.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith(title))
    rule = next(place for place, line in enumerate(lines[begin:], begin) if line.startswith(" ──"))
    rows = []
    for line in lines[rule + 1 :]:
        if not line.startswith(" "):
            break
        rows.append(([""] if line.startswith("  ") else []) + line.split())
    return rows


def test_functions_are_listed_with_their_line_and_error() -> None:
    top = [function(self_ms=6.0, error_ms=0.25, cumulative_ms=7.5), function("read", line=9, self_ms=3.0)]
    assert cells(printed(stage("decode", profile=profile(*top))), "Functions") == [
        ["decode", "resize",
         "app/pipeline.py:42", "6.000", "0.250", "7.500", "60", "%"],
        ["", "read", "app/pipeline.py:9", "3.000", "0.500", "7.000", "30", "%"],
    ]  # fmt: skip


def functions_of(stages: Sequence[StageDiagnosis], *, details: bool) -> list[list[str]]:
    return [row[:2] for row in cells(printed(*stages, details=details), "Functions")]


def test_a_stage_does_not_repeat_the_functions_of_those_inside_it() -> None:
    def at(name: str, ms: float) -> FunctionTime:
        return function(name, self_ms=ms)

    outer = stage("", profile=profile(at("resize", 6.0), at("own", 3.0), at("shared", 4.0)), cpu_ms=20.0)
    inner = stage("decode", profile=profile(at("resize", 6.0), at("shared", 1.0)))
    assert functions_of([outer, inner], details=False) == [
        ["batch", "own"], ["", "shared"], ["decode", "resize"], ["", "shared"],
    ]  # fmt: skip
    assert len(functions_of([outer, inner], details=True)) == 5


def test_states_and_who_held_the_interpreter_lock() -> None:
    states = {"running": 6.0, "gil": 3.0, "lock": None, "file": 0.0, "sleep": 0.1}
    held = [function("encode", line=7, self_ms=3.0), function("rare", self_ms=0.01)]
    said = printed(stage("a", profile=profile(state_ms=states, on_cpu_ms=6.5, gil_holders=held)))
    assert cells(said, "Threads") == [["a", "6.500", "6.000", "3.000", "1000"]]
    assert cells(said, "Interpreter lock") == [["a", "encode", "app/pipeline.py:7", "3.000"]]


def test_counters_are_shares_of_the_peak() -> None:
    made = stage("a", counters=[counters(tensor=0.914, dram=0.23), counters(1, dram=0.5)])
    said = printed(made)
    assert cells(said, "GPU counters") == [
        ["a", "0", "91.4", "23.0", "0.500"],
        ["", "1", "-", "50.0", "0.500"],
    ]
    assert "occupancy" not in said


def test_a_roofline_has_a_row_for_the_stage_and_in_detail_for_its_kernels() -> None:
    point = RooflinePoint(0, 0.91, 900e12, 989e12, 1.0e12, 4.0e12, 900.0, 989e12)
    nothing = replace(point, flop_per_s=0.0, tensor_share=0.0, flop_per_byte=None, ceiling_flop_per_s=0.0)
    gpu = gpu_work(
        limits=replace(gpu_work().limits, roofline=[point]),
        top_kernels=[replace(KERNEL, name="copy", roofline=nothing)],
    )
    made = stage("a", gpu=gpu)
    whole = ["a", "all", "0", "900", "91", "1000", "25", "900", "91"]
    assert cells(printed(made), "Roofline") == [whole]
    assert cells(printed(made, details=True), "Roofline") == [
        whole, ["", "copy", "0", "0", "0", "1000", "25", "-", "-"],
    ]  # fmt: skip


def test_names_of_others_steer_nothing() -> None:
    evil = function("\x1b[2J[red]", "\u202efile")
    said = printed(stage("a", profile=profile(evil, gil_holders=[evil])), details=True)
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert said.count("[red]") == 2
