"""The command as a whole: help, refusals, faults, interrupts, what is imported, an ASCII locale."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfharness.cli.main import REMOVED, run
from perfharness.cli.support.help import VERBS
from perfharness_launcher.gpus import GpuFacts
from tests.support.trace_builder import TraceBuilder
from tests.unit.file_faults import locked

CHECKOUT = Path(__file__).parents[3]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty but for a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("pass")
    return tmp_path


def command(*arguments: str, code: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, or code."""
    start = ["-c", code] if code else ["-m", "perfharness"]
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "launcher")])
    return subprocess.run(
        [sys.executable, *start, *arguments], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": path, **environ},
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_help_is_a_screen_and_names_every_verb(arguments: list[str], capsys: Captured) -> None:
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) < 80
    for verb in VERBS:
        assert len([line for line in lines if re.search(rf"^.{{9}}{verb} ", line)]) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: Captured) -> None:
    assert run([verb, "--help"]) == 0
    assert f"Usage: perfharness {verb}" in capsys.readouterr().out


def test_a_verb_that_went_says_what_to_use(capsys: Captured) -> None:
    for verb, instead in REMOVED.items():
        assert run([*verb.split(), "out", "--format", "json"]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", f"perfharness: '{verb}' was removed; use: {instead}\n")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("launch --timeout 5m x.py", ["--timeout 5m", "perfharness launch --help"]),
        ("launch --np-sweep", ["--np-sweep", "perfharness launch --help"]),
        ("launch -np two x.py", ["-np two"]),
        ("launch --tracer magic x.py", ["--tracer"]),
        ("launch --nsys /bin/echo x.py", ["/bin/echo"]),
        ("launch --parallel perhaps x.py", ["'perhaps'"]),
        ("launch --nope x.py", ["--nope"]),
        ("launch", ["SCRIPT"]),
        ("bench --modl", ["--modl", "perfharness bench --help"]),
        ("clocks", ["perfharness clocks --help"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_command_line_names_option_value_and_the_help_of_the_verb(
    line: str, named: list[str], capsys: Captured
) -> None:
    assert run(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [text for text in [*named, "perfharness: "] if text not in captured.err] == []


def test_the_version_needs_no_library_that_takes_time() -> None:
    code = (
        "import sys; from perfharness.cli.main import run; code = run(['--version']); "
        "print(code, *sorted({'numpy', 'pyarrow', 'pydantic', 'rich.console', 'pynvml', 'psutil'} & set(sys.modules)))"
    )
    version, loaded = command(code=code).stdout.splitlines()
    assert (version.split()[0], loaded) == ("perfharness", "0")


@pytest.mark.parametrize("option", ["--repeat=2", "--np-sweep=1", "--cold", "--overhead"])
def test_a_series_waits_for_nobody_and_goes_into_no_folder_that_is_written_to(
    option: str, folder: Path, capsys: Captured
) -> None:
    (folder / "out").mkdir()
    with locked(folder / "out"):
        assert run(["launch", option, "-o", "out", "x.py"]) == 1
    assert "out" in capsys.readouterr().err
    assert not list(folder.rglob("manifest.json"))


def test_a_fault_of_ours_says_so_and_where_to_look(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **options: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("perfharness_launcher.doctor.check_up", fail)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert run(["doctor"]) == 1
    told = capsys.readouterr().err
    (file,) = folder.glob("perfharness-*.traceback")
    assert ("ZeroDivisionError" in told, str(file) in told, "in fail" in file.read_text()) == (True, True, True)
    monkeypatch.setenv("PERFHARNESS_DEBUG", "1")
    assert run(["doctor"]) == 1
    assert "in fail" in capsys.readouterr().err


def test_an_interrupt_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def interrupt(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perfharness_launcher.doctor.check_up", interrupt)
    assert run(["doctor"]) == 1
    assert capsys.readouterr().err == "perfharness: interrupted\n"


def test_doctor_says_what_can_measure(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfharness_launcher.doctor.find_nsys", lambda *_: ())
    monkeypatch.setattr("perfharness_launcher.doctor.find_gpus", lambda: GpuFacts(problem="no driver"))
    assert run(["doctor", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    checks = {check["topic"]: check for check in report["checks"]}
    assert (report["can_measure"], checks["nsys"]["health"]) == (True, "absent")
    assert ("--install-nsys" in checks["nsys"]["hint"], "no driver" in checks["gpu"]["text"]) == (True, True)
    assert run(["doctor", "--python", "/no/python"]) == 3
    assert "/no/python" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "environ", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_an_ascii_locale_is_no_reason_to_fail(environ: dict[str, str], tmp_path: Path) -> None:
    trace = TraceBuilder()
    for index in range(12):
        trace.range(f"batch_{index}", 1000 * index, 1000 * index + 900)
        trace.range("größe\u202e", 1000 * index, 1000 * index + 800)
    done = command("analyze", str(trace.write(tmp_path / "größe.sqlite")), **environ)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    assert "gr\\xf6\\xdfe\\u202e" in done.stdout
