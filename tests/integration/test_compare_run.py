"""`perfharness compare --run`: both versions are measured in turns, with real processes, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.cli.main import run
from perfharness.runs.comparison.result import Comparison

TOY = Path(__file__).parents[2] / "samples" / "toy_pipeline.py"
LAUNCH = f"--tracer embedded --no-telemetry -w 1 {TOY} --batches 4 --stage-ms"


def test_two_versions_are_measured_in_turns_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--run", f"{LAUNCH} 10", "--run", f"{LAUNCH} 100", "--repeat", "2", "-o", str(tmp_path / "out")]
    code = run(["compare", *arguments, "--stage", "stage_1", "--fail-if", "stage_1.p95 > 50ms", "--format", "json"])
    comparison = Comparison.model_validate_json(capsys.readouterr().out)
    (version,) = comparison.versions
    (row,) = version.rows
    assert code == 3
    assert (version.order, len(row.base.launches), len(row.new.launches)) == ("in-turns", 2, 2)
    assert row.ratio is not None
    assert row.ratio > 2
    assert [(one.name, one.decides) for one in version.differences] == [("arguments", False)]
    assert (tmp_path / "out" / "series.json").is_file()
    again = run(["compare", str(tmp_path / "out" / "base"), str(tmp_path / "out" / "new"), "--stage", "stage_1"])
    assert again == 0


@pytest.mark.parametrize(
    ("runs", "named"),
    [
        (["toy.py"], "once"),
        (["toy.py", "--nope toy.py"], "--nope"),
        (["toy.py", '"toy.py'], "quotation"),
        (["toy.py", "-o out toy.py"], "-o"),
        (["toy.py", "--np-sweep 1,2 toy.py"], "--np-sweep"),
        (["toy.py", "--explain toy.py"], "--explain"),
        (["toy.py", ""], "--run ''"),
        (["none.py", "toy.py"], "none.py"),
    ],
)
def test_wrong_command_lines_start_nothing(
    runs: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.py").write_text("")
    code = run(["compare", "--repeat", "1", *(word for text in runs for word in ("--run", text))])
    assert code == 2
    assert named in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["toy.py"]


def test_options_of_measuring_without_anything_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "a", "b", "--repeat", "3"]) == 2
    assert run(["compare", "a", "--run", "x.py", "--run", "y.py"]) == 2
    assert "--run" in capsys.readouterr().err
