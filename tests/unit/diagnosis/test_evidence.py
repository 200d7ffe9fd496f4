"""What the explaining pass shows of the stages stands in tables, and nothing where there is nothing."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from perfharness.model.diagnosis import (
    Diagnosis,
    Explained,
    FunctionTime,
    KernelGroup,
    KernelKind,
    NativeFunction,
    NativeProfile,
    RooflinePoint,
    StageDiagnosis,
)
from perfharness.render.terminal.console import Console
from perfharness.render.terminal.diagnosis import print_example
from perfharness.render.terminal.evidence import print_evidence
from tests.support.diagnosis_builder import gpu_work
from tests.unit.diagnosis_results import cause, counters, diagnosis, function, profile, stage

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


def test_one_pass_has_no_tables() -> None:
    assert printed(stage("a", cause())) == ""


def test_functions_are_listed_with_their_line_and_error() -> None:
    top = [function(self_ms=6.0, error_ms=0.25, cumulative_ms=7.5), function("read", line=9, self_ms=3.0)]
    assert cells(printed(stage("decode", profile=profile(*top))), "Functions") == [
        ["decode", "resize",
         "app/pipeline.py:42", "6.000", "0.250", "7.500", "60", "%"],
        ["", "read", "app/pipeline.py:9", "3.000", "0.500", "7.000", "30", "%"],
    ]  # fmt: skip


def test_native_functions_are_named_with_their_library() -> None:
    native = function("blur", "/usr/lib/libcv.so", 0, is_native=True)
    assert cells(printed(stage("a", profile=profile(native))), "Functions")[0][2] == "libcv.so"


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


def test_by_default_only_what_takes_some_time_is_listed() -> None:
    many = [function(f"f{place}", self_ms=2.0 - place / 10) for place in range(6)]
    small = function("small", self_ms=0.1)
    assert len(functions_of([stage("a", profile=profile(*many))], details=False)) == 3
    assert "Functions" not in printed(stage("a", profile=profile(small)))
    assert len(functions_of([stage("a", profile=profile(*many, small))], details=True)) == 7


def test_states_that_no_stage_was_in_have_no_column() -> None:
    states = {"running": 6.0, "gil": 3.0, "lock": None, "file": 0.0, "sleep": 0.1}
    made = stage("a", profile=profile(state_ms=states, on_cpu_ms=6.5))
    said = printed(made)
    head = next(line for line in said.splitlines() if "on CPU" in line)
    assert head.split() == ["stage", "on", "CPU", "running", "GIL", "samples"]
    assert cells(said, "Threads") == [["a", "6.500", "6.000", "3.000", "1000"]]
    assert "sleep" in printed(made, details=True)
    unknown = stage("a", profile=profile(state_ms={"running": None}, on_cpu_ms=None))
    assert cells(printed(unknown), "Threads") == [["a", "-", "1000"]]
    collecting = stage("a", profile=profile(collections=2.5, collection_ms=1.25))
    assert cells(printed(collecting), "Threads")[0][3:5] == ["1.250", "2.5"]
    annotated = stage("a", profile=profile(recorder_ms=2.5))
    assert cells(printed(annotated), "Threads")[0][-2:] == ["2.500", "1000"]


def test_native_functions_without_those_of_the_interpreter() -> None:
    line = function("work", line=7)
    functions = [
        NativeFunction("/usr/lib/libpython3.12.so.1.0", "eval", 5.0, 0.5, 0.02),
        NativeFunction("/x/libblas.so.3", "dgemm", 3.0, 0.3, 0.01, line),
        NativeFunction(None, None, 1.9, 0.19, 0.01),
        NativeFunction("/x/libz.so.1", None, 0.01, 0.01, 0.01),
    ]
    helpers = [NativeFunction("/x/libomp.so", "loop", 4.0, 1.0, 0.02)]
    native = NativeProfile(1000, 10.0, 0.1, None, functions, 2, 400, 4.0, helpers)
    outer = stage("a", profile=profile(native=native))
    said = printed(outer)
    assert cells(said, "Native functions of the stage's") == [
        ["a", "libblas.so.3", "dgemm", "app/pipeline.py:7", "3.000", "30", "%", "1", "%"],
        ["", "compiled", "at", "run", "time", "1.900", "19", "%", "1", "%"],
    ]
    assert cells(said, "Native functions of threads") == [["a", "libomp.so", "loop", "4.000", "100", "%", "2", "%"]]
    assert len(cells(printed(outer, details=True), "Native functions of the stage's")) == 4
    assert "Native" not in printed(stage("a", profile=profile()))


def test_who_held_the_interpreter_lock_is_named() -> None:
    held = profile(gil_holders=[function("encode", line=7, self_ms=3.0), function("rare", self_ms=0.01)])
    assert cells(printed(stage("a", profile=held)), "Interpreter lock") == [
        ["a", "encode", "app/pipeline.py:7", "3.000"]
    ]
    library = replace(function("save", line=8, self_ms=3.0), callee="json.encoder.encode")
    assert cells(printed(stage("a", profile=profile(gil_holders=[library]))), "Interpreter lock") == [
        ["a", "save,", "in", "json.encoder.encode", "app/pipeline.py:8", "3.000"]
    ]


def test_counters_are_shares_of_the_peak_and_rates() -> None:
    made = stage("a", counters=[counters(tensor=0.914, dram=0.23), counters(1, dram=0.5, pcie_bytes_per_s=55e9)])
    said = printed(made)
    assert cells(said, "GPU counters") == [
        ["a", "0", "nsys", "91.4", "23.0", "-", "0.500"],
        ["", "1", "nsys", "-", "50.0", "55.00", "0.500"],
    ]
    assert "fp64" not in said


def test_a_roofline_has_a_row_for_the_stage_and_in_detail_for_its_kernels() -> None:
    point = RooflinePoint(0, "tensor", 0.91, 900e12, 989e12, 1.0e12, 4.0e12, 900.0, 989e12, ["tensor", "fp32"])
    nothing = replace(point, flop_per_s=0.0, pipe="fp32", pipe_share=0.0, flop_per_byte=None, ceiling_flop_per_s=0.0)
    gpu = gpu_work(
        limits=replace(gpu_work().limits, roofline=[point]),
        top_kernels=[replace(KERNEL, name="copy", roofline=nothing)],
    )
    made = stage("a", gpu=gpu)
    whole = ["a", "all", "0", "tensor", "900", "91", "1000", "25", "900", "91"]
    assert cells(printed(made), "Roofline") == [whole]
    assert cells(printed(made, details=True), "Roofline") == [
        whole, ["", "copy", "0", "fp32", "0", "0", "1000", "25", "-", "-"],
    ]  # fmt: skip


def test_it_is_said_how_much_slower_the_second_pass_was_and_what_is_not_trusted() -> None:
    trusted = stage("a", explained=Explained(1.1, trusted=True))
    changed = stage("b", explained=Explained(1.42, trusted=False, reason="it does other work"))
    said = printed(trusted, changed)
    assert "1.10 to 1.42 times" in said
    assert [line for line in said.splitlines() if line.startswith("not trusted")] == [
        "not trusted: b: it does other work"
    ]
    assert "not trusted" not in printed(trusted)


def test_what_could_not_be_recorded_is_said_once_in_detail() -> None:
    missing = profile(missing=["stacks of threads made by C"])
    stages = [stage("a", profile=missing), stage("b", profile=missing)]
    assert printed(*stages, details=True).count("threads made by C") == 1
    assert "threads made by C" not in printed(*stages)


def test_without_a_sample_the_reason_stands_in_place_of_the_tables() -> None:
    nothing = profile(samples=0, on_cpu_ms=None, state_ms={"running": None}, missing=["the file is damaged"])
    said = printed(stage("a", profile=nothing), stage("b", profile=nothing))
    assert said == "not known: the file is damaged\n"
    assert "not known" not in printed(stage("a", counters=[counters(dram=0.5, missing=["fp64: no such counter"])]))


def test_in_markdown_every_row_names_its_stage() -> None:
    two = stage("a", profile=profile(function(), function("read")))
    rows = [line for line in printed(two, markdown=True).splitlines() if "pipeline.py" in line]
    assert all(row.startswith("| a |") for row in rows)
    assert len(rows) == 2


def test_names_of_others_steer_nothing() -> None:
    evil = function("\x1b[2J[red]", "\u202efile")
    said = printed(stage("a", profile=profile(evil, gil_holders=[evil])), details=True)
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert said.count("[red]") == 2


def test_of_several_processes_the_one_that_loses_most_is_the_example() -> None:
    def of(line: int, saves_ms: float) -> Diagnosis:
        return diagnosis(stage("a", cause(saves_ms=saves_ms), profile=profile(function(line=line))))

    console = Console(file=io.StringIO())
    print_example(console, {"proc_0": of(1, 2.0), "proc_1": of(2, 6.0)})
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert said.startswith("proc_1")
    assert "pipeline.py:2" in said
    assert "pipeline.py:1 " not in said
    nothing = Console(file=io.StringIO())
    print_example(nothing, {"proc_0": diagnosis(stage("a", cause()))})
    assert isinstance(nothing.file, io.StringIO)
    assert nothing.file.getvalue() == ""
