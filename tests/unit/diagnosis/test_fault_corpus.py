"""The corpus of faults is well-formed, and its judge gives the scores that were worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fault_corpus import Fault, fault_lines, is_fault_line, judge
from tests.faults_blind.expected import EXPECTED as BLIND
from tests.faults_blind2.expected import EXPECTED as BLIND_2
from tests.faults_blind3.expected import EXPECTED as BLIND_3
from tests.faults_blind4.expected import EXPECTED as BLIND_4
from tests.faults_blind5.expected import EXPECTED as BLIND_5
from tests.faults_cpu.expected import EXPECTED

TESTS = Path(__file__).resolve().parents[2]
CORPORA = {
    "faults_cpu": EXPECTED,
    "faults_blind": BLIND,
    "faults_blind2": BLIND_2,
    "faults_blind3": BLIND_3,
    "faults_blind4": BLIND_4,
    "faults_blind5": BLIND_5,
}
SOURCE = """\
import time
def slow(values):
    total = 0
    for value in values:  # fault
        total += value
    return total
def work():
    slow([1])
    time.sleep(  # fault
        1
    )
"""


def stage(name: str, ms: float, *causes: dict[str, Any], verdict: str = "cpu-bound") -> dict[str, Any]:
    return {"path": ["p", "batch", name], "cpu_ms": ms, "verdict": {"verdict": verdict}, "causes": list(causes)}


def cause(code: str, share: float = 1.0, line: int | None = None, file: str = "/x/program.py") -> dict[str, Any]:
    return {"code": code, "share": share, "where": None if line is None else {"file": file, "line": line}}


def diagnosis(*stages: dict[str, Any]) -> dict[str, Any]:
    total = sum(one["cpu_ms"] for one in stages)
    whole = {"path": ["p", "batch"], "cpu_ms": total, "verdict": {"verdict": "cpu-bound"}, "causes": []}
    return {"stages": [whole, *stages]}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(SOURCE)
    return file


FAULT = Fault("program", ("sleep", "waiting-on-system"), "wait", "owner/repository#1")


def test_a_marked_statement_counts_with_its_body() -> None:
    assert fault_lines(SOURCE) == [(4, 5), (9, 11)]


def test_only_lines_of_the_program_are_its_faults(program: Path) -> None:
    assert is_fault_line(program, "/elsewhere/program.py", 5)
    assert not is_fault_line(program, "/elsewhere/program.py", 6)
    assert not is_fault_line(program, "/elsewhere/other.py", 5)


def test_right_in_everything(program: Path) -> None:
    said = diagnosis(stage("wait", 30, cause("sleep", 0.9, 10)), stage("infer", 20, cause("cpu-bound", 1.0, 2)))
    twin = diagnosis(stage("wait", 1), stage("infer", 20, cause("cpu-bound", 1.0, 2)))
    score = judge(FAULT, program, said, twin)
    assert (score.verdict, score.stage, score.line, score.twin_is_silent) == (True, True, True, True)


def test_a_verdict_alone_counts_but_has_no_line(program: Path) -> None:
    score = judge(FAULT, program, diagnosis(stage("wait", 30, verdict="waiting-on-system")), None)
    assert (score.verdict, score.line, score.twin_is_silent) == (True, False, None)


def test_only_the_first_cause_of_the_stage_counts(program: Path) -> None:
    said = diagnosis(stage("wait", 30, cause("cpu-bound"), cause("sleep", 0.5, 10)))
    assert not judge(FAULT, program, said, None).verdict


def test_another_stage_accused_of_more_is_the_wrong_stage(program: Path) -> None:
    said = diagnosis(stage("wait", 30, cause("sleep", 0.3, 10)), stage("infer", 20, cause("cpu-bound", 0.5)))
    score = judge(FAULT, program, said, None)
    assert (score.verdict, score.stage) == (True, False)


def test_a_stage_that_waits_for_the_faulty_one_takes_no_blame_away(program: Path) -> None:
    said = diagnosis(stage("wait", 3, cause("sleep", 1.0, 10)), stage("results", 20, verdict="waiting-on-stage"))
    assert judge(FAULT, program, said, None).stage


def test_the_limit_of_a_gpu_bound_stage_is_part_of_what_is_said(program: Path) -> None:
    said = diagnosis(stage("wait", 30, verdict="gpu-bound"))
    said["stages"][1]["verdict"]["limit"] = "memory"
    right = replace(FAULT, codes=("gpu-bound:memory",))
    assert judge(right, program, said, None).verdict
    assert not judge(replace(FAULT, codes=("gpu-bound:compute",)), program, said, None).verdict
    pointing = diagnosis(stage("wait", 30, cause("gpu-bound", 1.0, 10)))
    assert judge(right, program, said, pointing).twin_is_silent


def test_a_wrong_line_is_counted(program: Path) -> None:
    assert judge(FAULT, program, diagnosis(stage("wait", 30, cause("sleep", 1.0, 6))), None).line is False


def test_a_twin_is_accused_by_a_code_or_by_the_line(program: Path) -> None:
    said = diagnosis(stage("wait", 30, cause("sleep", 0.9, 10)))
    by_code = diagnosis(stage("wait", 1), stage("infer", 20, cause("garbage-collection", 0.5)))
    by_line = diagnosis(stage("wait", 20, cause("cpu-bound", 1.0, 5)))
    too_little = diagnosis(stage("wait", 1), stage("infer", 20, cause("garbage-collection", 0.05)))
    assert judge(FAULT, program, said, by_code).twin_is_silent is False
    assert judge(FAULT, program, said, by_line).twin_is_silent is True  # it computes there, and waits no longer
    computing = replace(FAULT, codes=("cpu-bound",))
    assert judge(computing, program, said, by_line).twin_is_silent is False
    assert judge(FAULT, program, said, too_little).twin_is_silent is True


@pytest.mark.parametrize("corpus", CORPORA)
def test_expectations_and_programs_are_the_same_ones(corpus: str) -> None:
    programs = {file.stem for file in (TESTS / corpus).glob("*.py")} - {"expected", "two_ranks"}
    assert {fault.program for fault in CORPORA[corpus]} == programs
    assert len(CORPORA[corpus]) == len(programs)


def test_no_program_is_in_two_corpora() -> None:
    assert not {fault.program for fault in EXPECTED} & {fault.program for fault in BLIND}
    assert not {fault.report for fault in EXPECTED} & {fault.report for fault in BLIND}


@pytest.mark.parametrize(
    ("corpus", "fault"),
    [(corpus, fault) for corpus, faults in CORPORA.items() for fault in faults],
    ids=lambda value: value if isinstance(value, str) else value.program,
)
def test_a_program_cites_its_report_and_marks_its_lines(corpus: str, fault: Fault) -> None:
    source = (TESTS / corpus / f"{fault.program}.py").read_text()
    assert fault.report in source
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", fault.report)
    assert bool(fault_lines(source)) == fault.has_line
    named = [option for option in fault.options if option.endswith(".toml")]
    assert all((TESTS / corpus / name).is_file() for name in named)
