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
CAUSE = re.compile(r"([\w-]+):?(\w*)(?:\*([\d.]+))?(?:@(\d+))?")


def diagnosis(text: str) -> dict[str, Any]:
    """`STAGE MS CAUSE:DETAIL*SHARE@LINE …`, separated by `;`."""
    stages: list[dict[str, Any]] = []
    for name, ms, *said in map(str.split, text.split(";")):
        causes = []
        for code, detail, share, line in CAUSE.findall(" ".join(said) or "cpu-bound"):
            place = {"file": "/x/program.py", "line": int(line)} if line else None
            causes.append({"code": code, "share": float(share or 1), "place": place, "detail": detail or None})
        stages.append({"path": ["p", "batch", name], "wall_ms": float(ms), "causes": causes})
    batch = {"path": ["p", "batch"], "wall_ms": sum(one["wall_ms"] for one in stages)}
    return {
        "stages": [{**batch, "causes": [{"code": "cpu-bound", "share": 1, "place": None, "detail": None}]}, *stages]
    }


@pytest.fixture
def fault(tmp_path: Path) -> Fault:
    file = tmp_path / "program.py"
    file.write_text(SOURCE)
    return Fault(file, "wait", ("waiting:sleep", "data-loader"), "owner/repository#1")


SLEEPS = "wait 30 waiting:sleep*0.9@10"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"{SLEEPS}; infer 20 cpu-bound@2", (True, True, True)),
        ("wait 30 data-loader", (True, True, False)),
        ("wait 30 waiting:lock@10", (True, True, True)),  # any wait
        ("wait 30 cpu-bound waiting:sleep*0.9@10", (False, False, False)),
        ("wait 30 waiting:sleep*0.3@10; infer 20 cpu-bound*0.5", (True, False, True)),  # another is accused of more
        ("wait 3 waiting:sleep*0.9@10; results 20 waiting:stage", (True, True, True)),
        ("wait 30 waiting:sleep*0.9", (True, True, False)),
        ("wait 30 waiting:sleep@6", (True, True, False)),
    ],
)
def test_verdict_stage_and_line_by_hand(fault: Fault, said: str, expected: tuple[bool, bool, bool]) -> None:
    score = judge(fault, diagnosis(said), None)
    assert (score.verdict, score.stage, score.line) == expected


@pytest.mark.parametrize(
    ("code", "is_right"), [("gpu-bound", True), ("gpu-bound:memory", True), ("gpu-bound:compute", False)]
)
def test_the_limit_of_the_gpu_matters(fault: Fault, code: str, is_right: bool) -> None:
    said = diagnosis("wait 30 gpu-bound:memory")
    assert judge(replace(fault, codes=(code,)), said, None).verdict is is_right


@pytest.mark.parametrize(
    ("twin", "facts", "is_silent"),
    [
        ("wait 1; infer 20 garbage-collection*0.5", {}, False),
        ("wait 20 cpu-bound@5", {}, True),  # it computes there, and waits no longer
        ("wait 20 cpu-bound@5", {"codes": ("cpu-bound",)}, False),
        ("wait 30 waiting:file", {}, False),
        ("wait 30 waiting:file", {"twin_codes": ("waiting:lock",)}, False),
        ("wait 30 waiting:file", {"twin_codes": ("waiting:file",)}, True),
    ],
)
def test_whether_a_twin_is_accused(fault: Fault, twin: str, facts: dict[str, Any], is_silent: bool) -> None:
    assert judge(replace(fault, **facts), diagnosis(SLEEPS), diagnosis(twin)).twin_is_silent is is_silent


def test_every_program_has_a_row_with_a_report_lines_and_files() -> None:
    for corpus in CORPORA:
        rows = [fault.program for fault in FAULTS if fault.corpus == corpus]
        assert sorted(rows) == sorted(file.stem for file in (FOLDER / corpus).glob("*.py"))
    for fault in FAULTS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", fault.report)
        assert fault.lines or fault.codes[0] in ("cpu-contention", "waiting:process", "waiting:rank")
        assert all((fault.path.parent / name).is_file() for name in fault.options if name.endswith(".toml"))
