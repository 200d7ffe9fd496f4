"""Which tracer is taken, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import ToolNotFoundError, UsageError
from perfharness.model.findings import Severity
from perfharness_launcher.nsys.command_line import NsysInstall
from perfharness_launcher.nsys.probe import Pair, pair
from perfharness_launcher.plan.machine import InterpreterFacts, MachineFacts
from perfharness_launcher.plan.options import LaunchOptions
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
    facts = MachineFacts(nsys=installs, interpreter=interpreter, cuda_driver=cuda)
    return choose_tracer(LaunchOptions(**{"script": "pipeline.py", **options}), facts)


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


def test_auto_takes_nsys_that_hears_the_nvtx_and_says_where_from() -> None:
    decision = decide(OLD)
    assert (decision.record.kind, decision.record.path) == ("nsys", "/old/nsys")
    assert "from PATH" in (decision.record.reason or "")
    assert decision.findings == ()


def test_auto_passes_over_a_deaf_nsys_with_the_reason() -> None:
    decision = decide(OLD, interpreter=NEW_NVTX)
    assert decision.record.kind == "embedded"
    assert decision.record.reason == "nsys 2023.4.4 records no range of nvtx 0.2.17 (newer than 0.2.11)"


def test_auto_passes_over_an_nsys_too_old_for_the_driver() -> None:
    decision = decide(OLD, cuda=(13, 0))
    assert decision.record.kind == "embedded"
    assert "knows CUDA up to 12.4 but the driver runs CUDA 13.0" in (decision.record.reason or "")
    assert decide(NEW, OLD, cuda=(13, 0)).nsys == NEW


def test_auto_takes_the_second_where_the_first_cannot() -> None:
    assert decide(BROKEN, OLD).nsys == OLD


def test_auto_without_nsys_says_so() -> None:
    assert decide().record.reason == "no nsys was found"
    assert decide(BROKEN).record.reason == "/broken/nsys has no importer"


def test_auto_runs_a_program_untraced_but_not_in_silence() -> None:
    decision = decide(script="ffmpeg")
    assert decision.record.kind == "none"
    assert [(finding.code, finding.severity) for finding in decision.findings] == [("untraced", Severity.ERROR)]


def test_a_program_does_not_care_about_the_nvtx_of_python() -> None:
    assert decide(OLD, interpreter=NEW_NVTX, script="ffmpeg").record.kind == "nsys"


def test_asked_for_by_name_a_deaf_nsys_runs_with_a_warning_and_a_hint() -> None:
    decision = decide(OLD, interpreter=NEW_NVTX, cuda=(13, 0), tracer="nsys")
    assert decision.record.kind == "nsys"
    assert [finding.code for finding in decision.findings] == ["nvtx-too-new-for-nsys", "nsys-too-old-for-driver"]
    assert "pip install nvtx==0.2.11" in decision.findings[0].hint


def test_asked_for_by_name_without_one_is_a_missing_tool() -> None:
    problem = decide(tracer="nsys").problem
    assert isinstance(problem, ToolNotFoundError)
    assert "doctor --install-nsys" in str(problem)
    assert "has no importer" in str(decide(BROKEN, tracer="nsys").problem)


def test_a_wrong_nsys_path_is_a_wrong_argument() -> None:
    for tracer in ("auto", "nsys"):
        problem = decide(BROKEN, tracer=tracer, nsys=BROKEN.path).problem
        assert isinstance(problem, UsageError)
        assert "--nsys /broken/nsys cannot be used: /broken/nsys has no importer" in str(problem)


def test_embedded_needs_a_python_script_and_perfharness_in_its_interpreter() -> None:
    assert isinstance(decide(script="ffmpeg", tracer="embedded").problem, UsageError)
    alone = replace(OLD_NVTX, has_perfharness=False)
    assert "cannot import perfharness" in str(decide(interpreter=alone).problem)


def test_none_is_plain() -> None:
    decision = decide(NEW, tracer="none")
    assert (decision.record.kind, decision.nsys, decision.findings) == ("none", None, ())


def test_a_command_line_that_is_no_utf_8_is_nothing_for_nsys() -> None:
    name = "caf\udce9.py"  # a byte 0xE9, as Python has it in a name
    assert decide(OLD, script=name).record.kind == "embedded"
    assert decide(OLD, script_arguments=(name,)).record.kind == "embedded"
    assert isinstance(decide(OLD, script=name, tracer="nsys").problem, UsageError)
