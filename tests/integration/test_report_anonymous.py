"""A launch with planted names and secrets: which of them results and reports hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from perfharness.cli.main import run as run_verb
from tests.integration.launches import environment, run_to_the_end

TOKEN, PHRASE = "tok-9f2Xq/7+aa==", "grün 'and' \"blue\""
USER, HOST, CLIENT, PROJECT = "anna.b", "lab7.acme.example", "client-zebra", "my project"

SCRIPT = """
import os, sys
from perfharness import PerfRecorder

print(os.environ["HUB_TOKEN"], os.environ["PHRASE"], file=sys.stderr)
perf = PerfRecorder("pipeline", {"where": __file__})
with perf.range("pipeline"):
    for _ in perf.batches([[0] * 4] * 6, items=len):
        with perf.range("decode"):
            sum(range(200_000))
perf.finalize()
"""


@dataclass(frozen=True)
class Launched:
    """A run, its folder, and the home folder that it was launched from."""

    out: Path
    home: Path


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    home = tmp_path_factory.mktemp("homes") / "home" / USER
    place = home / CLIENT / PROJECT
    place.mkdir(parents=True)
    (place / "script.py").write_text(SCRIPT)
    options = ("--tracer", "embedded", "--explain", "-w", "1")
    environ = environment(HUB_TOKEN=TOKEN, PHRASE=PHRASE)
    arguments = (*options, "-o", home / "out", place / "script.py", f"--data={place}/images")
    done = run_to_the_end(arguments, environ, cwd=place)
    assert done.returncode == 0, done.stderr
    path = home / "out" / "manifest.json"
    content = json.loads(path.read_text())
    content["environment"]["hostname"] = HOST
    path.write_text(json.dumps(content))
    return Launched(home / "out", home)


def holding(folder: Path, text: str) -> set[str]:
    """Names of the files in which the text is."""
    forms = [text.encode(), json.dumps(text)[1:-1].encode()]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name for path in files if any(form in path.read_bytes() for form in forms)}


def test_results_carry_no_values_of_the_environment(
    launched: Launched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the script itself prints or puts into a name is there; what it did not use is not."""
    for secret in (TOKEN, PHRASE):
        assert holding(launched.out, secret) == {"stderr.log"}
    assert run_verb(["analyze", str(launched.out), "--format", "json"]) == 0
    assert run_verb(["report", str(launched.out), "-o", str(tmp_path / "report.html")]) == 0
    printed = capsys.readouterr().out
    for secret in (TOKEN, PHRASE):
        assert not holding(tmp_path, secret)
        assert secret not in printed


@pytest.mark.parametrize("ending", ["html", "md"])
def test_an_anonymous_report_names_no_host_no_user_and_no_folder(
    ending: str, launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOME": str(launched.home), "LOGNAME": USER, "USER": USER}.items():
        monkeypatch.setenv(name, value)
    plain, made = tmp_path / f"plain.{ending}", tmp_path / f"made.{ending}"
    assert run_verb(["report", str(launched.out), "-o", str(plain)]) == 0
    assert run_verb(["report", str(launched.out), "--anonymous", "-o", str(made)]) == 0
    named, left = plain.read_text(), made.read_text()
    for text in (HOST, USER, str(launched.home), CLIENT, PROJECT, str(launched.out)):
        assert text in named, f"{text} was not planted"
        assert text not in left, text
    for text in ("decode", "script.py", "--data=images"):
        assert text in left, text
