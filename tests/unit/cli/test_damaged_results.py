"""Runs whose files are damaged, foreign or oddly named: one sentence, and the right exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run as run_cli
from tests.support.trace_builder import TraceBuilder
from tests.unit.compared_runs import write_side

DAMAGES: dict[str, Any] = {
    "empty": b"",
    "no UTF-8": b"\xff\xfe{",
    "a list": [1, 2],
    "no result": {"answer": 42},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_results_are_one_sentence(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, run = write_side(tmp_path / "base", [10.0]), write_side(tmp_path / "new", [10.0])
    path, damage = Path(run) / "benchmark_mean.json", DAMAGES[name]
    path.write_bytes(damage if isinstance(damage, bytes) else json.dumps(damage).encode())
    monkeypatch.setenv("PERFHARNESS_HISTORY", str(tmp_path / "history.db"))
    for command in (["compare", base, run], ["compare", run, base], ["history", "add", run]):
        assert run_cli(command) == 1
        assert str(path) in capsys.readouterr().err


def test_results_may_hold_text_that_is_no_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write_side(tmp_path / "base", [10.0])
    path = Path(base) / "benchmark_mean.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps({**tree, "meta": {**tree["meta"], "note": "caf\udce9"}}))
    assert run_cli(["compare", base, base, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["versions"]


def test_folders_may_have_names_that_are_no_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "caf\udce9"
    base, new = write_side(folder / "base", [10.0, 10.1]), write_side(folder / "new", [10.0, 10.1], turn=1)
    assert run_cli(["compare", base, new, "--format", "json"]) == 0
    side = json.loads(capsys.readouterr().out)["base"]
    assert side["launches"][0]["folder"] == base.split(",")[0].replace("\udce9", "\\udce9")
    built = TraceBuilder()
    for begin in (0, 20):
        built.range("stage", begin, begin + 10)
    trace = built.write(folder / "trace.sqlite")
    for command in (
        ["report", str(trace), "-o", str(tmp_path / "report.md")],
        ["export", str(trace), "--table", "ranges", "-o", str(folder / "ranges.arrow")],
        ["export", str(trace), "-o", str(folder / "ranges.parquet")],
    ):
        assert run_cli(command) == 0, command
    assert (folder / "ranges.parquet").stat().st_size > 100
