"""The command as a whole: help, what is imported, interrupts, an ASCII locale."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfharness.cli.main import REMOVED, run
from perfharness.cli.support.help import VERBS
from tests.support.trace_builder import TraceBuilder

CHECKOUT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "launcher")])}


def command(*arguments: str, code: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, or code."""
    start = ["-c", code] if code else ["-m", "perfharness"]
    return subprocess.run(
        [sys.executable, *start, *arguments], capture_output=True, text=True, check=False, timeout=120,
        env={**ENVIRONMENT, **environ},
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_help_is_a_screen_and_names_every_verb(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) < 80
    for verb in VERBS:
        assert len([line for line in lines if re.search(rf"^.{{9}}{verb} ", line)]) == 1
    assert len([line for line in lines if line.startswith("  perfharness ")]) == 3


@pytest.mark.parametrize("verb", sorted(REMOVED))
def test_a_verb_that_went_says_what_to_use(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*verb.split(), "out", "--format", "json"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"perfharness: use: {REMOVED[verb]}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    assert f"Usage: perfharness {verb}" in capsys.readouterr().out


def test_the_version_needs_no_library_that_takes_time() -> None:
    code = (
        "import sys; from perfharness.cli.main import run; code = run(['--version']); "
        "print(code, *sorted({'numpy', 'pyarrow', 'pydantic', 'rich.console', 'pynvml', 'psutil'} & set(sys.modules)))"
    )
    assert command(code=code).stdout.splitlines()[-1] == "0"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["launch", "--timeout", "5m", "x.py"], ["--timeout", "'5m'", "perfharness launch --help"]),
        (["launch", "--np-sweep"], ["--np-sweep", "perfharness launch --help"]),
        (["bench", "--modl"], ["--modl", "perfharness bench --help"]),
        (["compare", "--run", "--timeout 5m x.py", "--run", "x.py"], ["--timeout", "'5m'"]),
        (["clocks"], ["perfharness clocks --help"]),
    ],
)
def test_a_wrong_command_line_names_option_value_and_the_help_of_the_verb(
    arguments: Sequence[str], expected: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [text for text in expected if text not in captured.err] == []


def test_an_interrupt_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perfharness_launcher.doctor.check_up", interrupt)
    assert run(["doctor"]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("environ", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
                                     pytest.param({"PYTHONIOENCODING": "ascii"}, marks=pytest.mark.slow)])  # fmt: skip
def test_an_ascii_locale_is_no_reason_to_fail(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "größe.py").write_text("")
    done = command(
        "launch", "--dry-run", "--tracer", "none", "--cool-down", "40", str(tmp_path / "größe.py"), **environ
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    assert re.search(r"to 40 \\xb0C", done.stdout)
    trace = TraceBuilder()
    for index in range(12):
        trace.range(f"batch_{index}", 1000 * index, 1000 * index + 900)
        trace.range("größe\u202e", 1000 * index, 1000 * index + 800)
    done = command("analyze", str(trace.write(tmp_path / "t.sqlite")), **environ)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)
    assert "gr\\xf6\\xdfe\\u202e" in done.stdout
