"""The corpus of faults is well-formed, and its judge gives the scores that were worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.corpus import CORPORA, FOLDER, Fault, judge, read_faults

FAULTS = read_faults(*CORPORA)
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
def fault(tmp_path: Path) -> Fault:
    file = tmp_path / "program.py"
    file.write_text(SOURCE)
    return Fault(file, "wait", ("waiting:sleep", "data-loader"), "owner/repository#1")


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
def test_verdict_stage_and_line_by_hand(fault: Fault, said: dict[str, Any], expected: tuple[bool, bool, bool]) -> None:
    score = judge(fault, said, None)
    assert (score.verdict, score.stage, score.line) == expected


def test_the_limit_of_the_gpu_matters(fault: Fault) -> None:
    said = diagnosis(stage("wait", 30, cause("gpu-bound", detail="memory")))
    verdicts = [
        judge(replace(fault, codes=codes), said, None).verdict
        for codes in (("gpu-bound",), ("gpu-bound:memory",), ("gpu-bound:compute",))
    ]
    assert verdicts == [True, True, False]


def test_a_twin_is_accused_by_a_code_or_by_the_line(fault: Fault) -> None:
    said = diagnosis(stage("wait", 30, SLEEPS))
    by_code = diagnosis(stage("wait", 1), stage("infer", 20, cause("garbage-collection", 0.5)))
    by_line = diagnosis(stage("wait", 20, cause("cpu-bound", 1.0, 5)))
    assert judge(fault, said, by_code).twin_is_silent is False
    assert judge(fault, said, by_line).twin_is_silent is True  # it computes there, and waits no longer
    assert judge(replace(fault, codes=("cpu-bound",)), said, by_line).twin_is_silent is False


@pytest.mark.parametrize(("allowed", "is_silent"), [((), False), (("waiting:lock",), False), (("waiting:file",), True)])
def test_a_twin_may_wait_for_what_is_expected(fault: Fault, allowed: tuple[str, ...], is_silent: bool) -> None:
    twin = diagnosis(stage("wait", 30, cause("waiting", detail="file")))
    score = judge(replace(fault, twin_codes=allowed), diagnosis(stage("wait", 30, SLEEPS)), twin)
    assert score.twin_is_silent is is_silent


@pytest.mark.parametrize("corpus", CORPORA)
def test_every_program_has_a_row(corpus: str) -> None:
    rows = [fault.program for fault in FAULTS if fault.corpus == corpus]
    assert sorted(rows) == sorted(file.stem for file in (FOLDER / corpus).glob("*.py"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.program)
def test_a_row_has_a_report_lines_and_files(fault: Fault) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", fault.report)
    assert fault.lines or fault.codes[0] in ("cpu-contention", "waiting:process", "waiting:rank")
    assert all((fault.path.parent / name).is_file() for name in fault.options if name.endswith(".toml"))
