"""`perfharness demo`: its advice names the planted line; the fixed pipeline has no such advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import perfharness

PIPELINE = "demo_pipeline.py"


def run_demo(folder: Path, *options: str) -> str:
    done = perfharness("demo", "-o", folder, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The faulty pipeline, measured."""
    folder = tmp_path_factory.mktemp("demo")
    run_demo(folder)
    return folder


def planted_line(folder: Path) -> int:
    lines = (folder / PIPELINE).read_text("utf-8").splitlines()
    (planted,) = (number for number, line in enumerate(lines, 1) if "# the bottleneck" in line)
    return planted


def causes(run: Path) -> list[dict[str, Any]]:
    """All causes of the stage with the fault."""
    (found,) = (
        stage
        for stage in json.loads((run / "proc_0_gpu_0" / "benchmark.json").read_bytes())["diagnosis"]["stages"]
        if stage["path"][-1] == "preprocess"
    )
    return list(found["causes"])


def named(run: Path) -> set[tuple[str, int]]:
    return {(Path(cause["place"]["file"]).name, cause["place"]["line"]) for cause in causes(run) if cause["place"]}


def test_the_first_cause_is_the_planted_line(folder: Path) -> None:
    place = causes(folder / "faulty")[0]["place"]
    assert (Path(place["file"]).name, place["line"]) == (PIPELINE, planted_line(folder))


@pytest.mark.slow
def test_the_fixed_pipeline_has_no_such_advice_and_both_are_compared(folder: Path) -> None:
    assert "times as fast" in run_demo(folder, "--fixed").splitlines()[-1]
    assert (PIPELINE, planted_line(folder)) in named(folder / "faulty")
    assert (PIPELINE, planted_line(folder)) not in named(folder / "fixed")


def test_a_changed_pipeline_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / PIPELINE).write_text("print()\n")
    assert perfharness("demo", "-o", tmp_path).returncode == 2
    assert (tmp_path / PIPELINE).read_text() == "print()\n"
