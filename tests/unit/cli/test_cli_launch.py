"""The command line: spelling, refusals, dry runs, and what is seen when something goes wrong. Nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfharness.cli import main
from perfharness.cli.main import run
from perfharness.files import locked
from perfharness_launcher.gpus import GpuFacts


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfharness_launcher.machine.find_gpus", lambda: GpuFacts(problem="no driver"))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script in the current folder, which is empty but for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text("")
    return "pipeline.py"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["launch", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--nsys", "/bin/echo", "pipeline.py"], "/bin/echo"),
        (["-np", "two", "pipeline.py"], "--num-processes"),
        (["--tracer", "magic", "pipeline.py"], "--tracer"),
        (["--nope", "pipeline.py"], "--nope"),
        ([], "SCRIPT"),
        (["--parallel", "perhaps", "pipeline.py"], "'perhaps'"),
        (["--np-sweep", "1,2", "-np", "4", "pipeline.py"], "-np"),
        (["--np-sweep", "1,2", "--cold", "pipeline.py"], "--np-sweep"),
    ],
)
@pytest.mark.usefixtures("script")
def test_a_wrong_command_line_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    assert named in refused(capsys, *arguments)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("perfharness ")
    assert run([]) == 0
    assert "launch" in capsys.readouterr().out


def test_a_fault_of_ours_says_so_and_where_to_look(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("perfharness.runs.launch.make_plan", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(["launch", script]) == 1
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    (file,) = tmp_path.glob("perfharness-*.traceback")
    assert str(file) in told
    assert "in fail" in file.read_text()

    monkeypatch.setenv(main.DEBUG_VARIABLE, "1")
    assert run(["launch", script]) == 1
    assert "in fail" in capsys.readouterr().err


def test_doctor_says_what_can_measure(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfharness_launcher.doctor.find_nsys", lambda *_: ())
    monkeypatch.setattr("perfharness_launcher.doctor.find_gpus", lambda: GpuFacts(problem="no driver"))
    assert run(["doctor", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["can_measure"] is True
    texts = {check["topic"]: check for check in report["checks"]}
    assert texts["nsys"]["health"] == "absent"
    assert "--install-nsys" in texts["nsys"]["hint"]
    assert "no driver" in texts["gpu"]["text"]
    assert run(["doctor", "--python", "/no/python"]) == 3
    assert "/no/python" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [["--repeat", "2"], ["--np-sweep", "1"], ["--cold"], ["--overhead"]],
    ids=lambda options: options[0],
)
def test_a_series_waits_for_nobody_and_goes_into_no_folder_that_is_written_to(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text("pass")
    out.mkdir()
    with locked(out):
        assert run(["launch", *options, "-o", str(out), str(script)]) == 1
    assert str(out) in capsys.readouterr().err
    assert not list(out.rglob("manifest.json"))
