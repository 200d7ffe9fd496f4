"""Which tracer is taken, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import ToolNotFoundError, UsageError
from perfharness_launcher.nsys import NsysInstall, Pair, pair
from perfharness_launcher.plan.machine import InterpreterFacts, MachineFacts
from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.plan.program import find_program
from perfharness_launcher.plan.tracers import TracerDecision, choose_tracer

OLD_NVTX = InterpreterFacts("python3", "3.11", "0.2.11", has_perfharness=True)
NEW_NVTX = replace(OLD_NVTX, nvtx="0.2.17")
OLD = NsysInstall(Path("/old/nsys"), version=(2023, 4, 4), version_text="2023.4.4", cupti=(12, 4), source="PATH")
MIDDLE = replace(OLD, path=Path("/middle/nsys"), version=(2024, 5, 1), version_text="2024.5.1")
NEW = replace(OLD, path=Path("/new/nsys"), version=(2025, 3, 1), version_text="2025.3.1", cupti=(13, 0))
BROKEN = NsysInstall(Path("/broken/nsys"), source="PATH", problems=("/broken/nsys has no importer",))


def decide(
    *installs: NsysInstall,
    interpreter: InterpreterFacts = OLD_NVTX,
    cuda: tuple[int, int] | None = None,
    **options: Any,
) -> TracerDecision:
    asked = LaunchOptions(**{"script": "pipeline.py", **options})
    facts = MachineFacts(find_program(asked), nsys=installs, interpreter=interpreter, cuda_driver=cuda)
    return choose_tracer(asked, facts)


@pytest.mark.parametrize(
    ("nsys", "nvtx", "expected"),
    [
        (OLD, "0.2.11", Pair.GOOD),
        (OLD, "0.2.12", Pair.BAD),
        (OLD, "0.2.9", Pair.GOOD),
        (OLD, None, Pair.GOOD),
        (MIDDLE, "0.2.17", Pair.UNKNOWN),
        (replace(MIDDLE, records_nvtx=True), "0.2.17", Pair.GOOD),
        (replace(MIDDLE, records_nvtx=False), "0.2.17", Pair.BAD),
        (NEW, "0.2.17", Pair.GOOD),
        (NEW, "1.0", Pair.GOOD),
    ],
)
def test_pairs(nsys: NsysInstall, nvtx: str | None, expected: Pair) -> None:
    assert pair(nsys, nvtx) is expected


ALONE = replace(OLD_NVTX, has_perfharness=False)
NAME = "caf\udce9.py"  # a byte 0xE9, as Python has it in a name


@pytest.mark.parametrize(
    ("installs", "given", "kind", "reason", "codes"),
    [
        ([OLD], {}, "nsys", "from PATH", []),
        ([BROKEN, OLD], {}, "nsys", "", []),
        ([NEW, OLD], {"cuda": (13, 0)}, "nsys", "", []),
        # a program does not care about the nvtx of Python
        ([OLD], {"interpreter": NEW_NVTX, "script": "ffmpeg"}, "nsys", "", []),
        ([OLD], {"interpreter": NEW_NVTX}, "embedded", "0.2.17", []),
        ([OLD], {"cuda": (13, 0)}, "embedded", "13.0", []),
        ([], {}, "embedded", "nsys", []),
        ([BROKEN], {}, "embedded", "/broken/nsys", []),
        ([OLD], {"script": NAME}, "embedded", "UTF-8", []),
        ([OLD], {"script_arguments": (NAME,)}, "embedded", "UTF-8", []),
        ([], {"script": "ffmpeg"}, "embedded", "nsys", []),  # of which each Python is followed
        ([NEW], {"tracer": "none"}, "none", "asked for", []),
        (
            [OLD],
            {"interpreter": NEW_NVTX, "cuda": (13, 0), "tracer": "nsys"},
            "nsys",
            "asked for",
            ["nvtx-too-new-for-nsys", "nsys-too-old-for-driver"],
        ),
    ],
)
def test_which_tracer_and_why(
    installs: list[NsysInstall], given: dict[str, Any], kind: str, reason: str, codes: list[str]
) -> None:
    decision = decide(*installs, **given)
    assert decision.problem is None
    assert decision.record.kind == kind
    assert reason in (decision.record.reason or "")
    assert [finding.code for finding in decision.findings] == codes
    if kind == "nsys":
        assert decision.nsys == next(install for install in installs if install.usable)


@pytest.mark.parametrize(
    ("installs", "given", "kind", "words"),
    [
        ([], {"tracer": "nsys"}, ToolNotFoundError, "--install-nsys"),
        ([BROKEN], {"tracer": "nsys"}, ToolNotFoundError, "importer"),
        ([OLD], {"tracer": "nsys", "script": NAME}, UsageError, "UTF-8"),
        ([], {"interpreter": ALONE}, UsageError, "import perfharness"),
        *(
            ([BROKEN], {"tracer": tracer, "nsys": BROKEN.path}, UsageError, "--nsys /broken/nsys")
            for tracer in ("auto", "nsys")
        ),
    ],
)
def test_what_is_refused(installs: list[NsysInstall], given: dict[str, Any], kind: type[Exception], words: str) -> None:
    problem = decide(*installs, **given).problem
    assert isinstance(problem, kind)
    assert words in str(problem)
