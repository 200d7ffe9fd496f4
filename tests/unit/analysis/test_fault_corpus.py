"""The corpus of faults is well-formed, and its judge gives the scores that were worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fault_corpus import CORPORA, Fault, fault_lines, faults_of, judge

ROOT = Path(__file__).resolve().parents[3]
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


def stage(name: str, ms: float, *causes: dict[str, Any]) -> dict[str, Any]:
    return {"path": ["p", "batch", name], "wall_ms": ms, "causes": [*causes] or [cause("cpu-bound")]}


def cause(code: str, share: float = 1.0, line: int | None = None, detail: str | None = None) -> dict[str, Any]:
    place = None if line is None else {"file": "/x/program.py", "line": line}
    return {"code": code, "share": share, "place": place, "detail": detail}


def diagnosis(*stages: dict[str, Any]) -> dict[str, Any]:
    total = sum(one["wall_ms"] for one in stages)
    return {"stages": [{"path": ["p", "batch"], "wall_ms": total, "causes": [cause("cpu-bound")]}, *stages]}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(SOURCE)
    return file


FAULT = Fault("program", ("waiting:sleep", "data-loader"), "wait", "owner/repository#1")


SLEEPS = cause("waiting", 0.9, 10, "sleep")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (diagnosis(stage("wait", 30, SLEEPS), stage("infer", 20, cause("cpu-bound", 1.0, 2))), (True, True, True)),
        (diagnosis(stage("wait", 30, cause("data-loader"))), (True, True, False)),
        (diagnosis(stage("wait", 30, cause("waiting", 1.0, 10, "lock"))), (True, True, True)),  # any wait
        (diagnosis(stage("wait", 30, cause("cpu-bound"), SLEEPS)), (False, False, False)),
        (
            diagnosis(stage("wait", 30, {**SLEEPS, "share": 0.3}), stage("infer", 20, cause("cpu-bound", 0.5))),
            (True, False, True),
        ),  # another stage is accused of more
        (
            diagnosis(stage("wait", 3, SLEEPS), stage("results", 20, cause("waiting", detail="stage"))),
            (True, True, True),
        ),
        (diagnosis(stage("wait", 30, {**SLEEPS, "place": None})), (True, True, False)),
        (diagnosis(stage("wait", 30, cause("waiting", 1.0, 6, "sleep"))), (True, True, False)),
    ],
)
def test_verdict_stage_and_line_by_hand(program: Path, said: dict[str, Any], expected: tuple[bool, bool, bool]) -> None:
    score = judge(FAULT, program, said, None)
    assert (score.verdict, score.stage, score.line) == expected


def test_the_limit_of_the_gpu_matters(program: Path) -> None:
    said = diagnosis(stage("wait", 30, cause("gpu-bound", detail="memory")))
    verdicts = [
        judge(replace(FAULT, codes=codes), program, said, None).verdict
        for codes in (("gpu-bound",), ("gpu-bound:memory",), ("gpu-bound:compute",))
    ]
    assert verdicts == [True, True, False]


def test_a_twin_is_accused_by_a_code_or_by_the_line(program: Path) -> None:
    said = diagnosis(stage("wait", 30, SLEEPS))
    by_code = diagnosis(stage("wait", 1), stage("infer", 20, cause("garbage-collection", 0.5)))
    by_line = diagnosis(stage("wait", 20, cause("cpu-bound", 1.0, 5)))
    assert judge(FAULT, program, said, by_code).twin_is_silent is False
    assert judge(FAULT, program, said, by_line).twin_is_silent is True  # it computes there, and waits no longer
    assert judge(replace(FAULT, codes=("cpu-bound",)), program, said, by_line).twin_is_silent is False


@pytest.mark.parametrize(("allowed", "is_silent"), [((), False), (("waiting:lock",), False), (("waiting:file",), True)])
def test_a_twin_may_wait_for_what_is_expected(program: Path, allowed: tuple[str, ...], is_silent: bool) -> None:
    twin = diagnosis(stage("wait", 30, cause("waiting", detail="file")))
    score = judge(replace(FAULT, mended_codes=allowed), program, diagnosis(stage("wait", 30, SLEEPS)), twin)
    assert score.twin_is_silent is is_silent


@pytest.mark.parametrize("corpus", CORPORA)
def test_expectations_and_programs_are_the_same_ones(corpus: str) -> None:
    programs = {file.stem for file in (ROOT / CORPORA[corpus]).glob("*.py")} - {
        "expected",
        "two_ranks",
        "fault_options",
    }
    assert sorted(fault.program for fault in faults_of(corpus)) == sorted(programs)


@pytest.mark.parametrize(
    ("corpus", "fault"),
    [(corpus, fault) for corpus in CORPORA for fault in faults_of(corpus)],
    ids=lambda value: value if isinstance(value, str) else value.program,
)
def test_a_program_cites_its_report_and_marks_its_lines(corpus: str, fault: Fault) -> None:
    source = (ROOT / CORPORA[corpus] / f"{fault.program}.py").read_text()
    assert fault.report in source
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", fault.report)
    assert bool(fault_lines(source)) == fault.has_line
    named = [option for option in fault.options if option.endswith(".toml")]
    assert all((ROOT / CORPORA[corpus] / name).is_file() for name in named)
