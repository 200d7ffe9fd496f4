"""A launch with planted secrets, shared: none is left, and the numbers are the same."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfharness.cli.main import run as run_verb
from perfharness.runs.share.archive import unpacked
from tests.integration.launches import NSYS, NVTX_SITE, environment, run_to_the_end

TOKEN, CUSTOMER, PHRASE = "tok-9f2Xq/7+aa==", "acme robotics", "grün 'and' \"blue\""
ARGUMENT, FOLDER = "project-zanzibar", "client-zebra"
SECRETS = {"token": TOKEN, "customer": CUSTOMER, "phrase": PHRASE, "argument": ARGUMENT, "folder": FOLDER}

SCRIPT = """
import base64, json, os, sys, time, urllib.parse
from perfharness import PerfRecorder

token, customer, phrase = (os.environ[name] for name in ("HUB_TOKEN", "CUSTOMER", "PHRASE"))
print(token, customer, phrase, sys.argv, os.getcwd(), __file__)
print(json.dumps(dict(os.environ)), repr(phrase), urllib.parse.quote(token), base64.b64encode(token.encode()))
print(dict(os.environ), file=sys.stderr)
perf = PerfRecorder("pipeline", {"customer": customer, "where": __file__})
with perf.range("pipeline"):
    for _ in perf.batches([[0] * 4] * 6, items=len):
        with perf.range("decode"):
            sum(range(20_000))
        with perf.range(f"for {customer} at {os.path.dirname(__file__)}"):
            sum(range(10_000))
perf.finalize()
"""


@dataclass(frozen=True)
class Launched:
    """A run with planted secrets, and what a child of the test saw of it."""

    out: Path
    environ: dict[str, str]
    result: subprocess.CompletedProcess[str]


def launched(folder: Path, *options: object, sites: tuple[str, ...] = ()) -> Launched:
    place = folder / FOLDER
    place.mkdir()
    (place / "script.py").write_text(SCRIPT)
    environ = environment(*sites, HUB_TOKEN=TOKEN, CUSTOMER=CUSTOMER, PHRASE=PHRASE, PLAIN_MODE="on")
    out = folder / "out"
    arguments = (*options, "-w", "1", "--measure-idle", "0", "-o", out, place / "script.py", ARGUMENT)
    result = run_to_the_end(arguments, environ, cwd=place)
    assert result.returncode == 0, result.stderr
    return Launched(out, environ, result)


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launched(tmp_path_factory.mktemp("embedded"), "--tracer", "embedded", "--explain")


def contents(path: Path) -> list[bytes]:
    """All that a file holds: its bytes, and the texts of columns."""
    found = [path.read_bytes()]
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        found += [
            str(table.schema.metadata).encode(),
            *(str(set(map(str, one.to_pylist()))).encode() for one in table.columns),
        ]
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as opened:
            found += [line.encode() for line in opened.iterdump()]
    return found


def holding(folder: Path, secret: str) -> set[str]:
    """Names of the files in which the secret is, in any usual encoding."""
    forms = [secret.encode(code) for code in ("utf-8", "utf-16-le", "utf-16-be")]
    forms.append(json.dumps(secret)[1:-1].encode())
    return {
        path.name
        for path in folder.rglob("*")
        if path.is_file() and any(form in content for content in contents(path) for form in forms)
    }


def numbers(value: Any, of: str = "") -> list[Any]:
    """All numbers of a result, in order; sizes of files excepted."""
    if isinstance(value, dict):
        return [one for key, each in value.items() for one in numbers(each, key)]
    if isinstance(value, list):
        return [one for each in value for one in numbers(each, of)]
    return [] if isinstance(value, str) or of == "trace_bytes" else [value]


def results(run: Path) -> list[Any]:
    code = run_verb(["analyze", str(run), "-q"])
    names = sorted(path.relative_to(run) for path in run.rglob("benchmark*.json"))
    return [code, *((str(name), numbers(json.loads((run / name).read_text()))) for name in names)]


def check_shared(run: Launched, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shared where the environment is the launch's."""
    before = results(run.out)
    archive = folder / "shared.tar.zst"
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HUB_TOKEN": TOKEN, "CUSTOMER": CUSTOMER, "PHRASE": PHRASE}.items():
            patch.setenv(name, value)
        options = ["-o", str(archive), "--redact-arguments", "--with-logs", "--format", "json"]
        assert run_verb(["share", str(run.out), *options]) == 0
    assert {"CUSTOMER", "HUB_TOKEN", "PHRASE"} <= set(json.loads(capsys.readouterr().out)["variables"])
    shared = unpacked(archive)
    for name, secret in SECRETS.items():
        assert holding(run.out, secret), f"{name} was not planted"
        assert not holding(shared, secret), name
    assert not holding(shared, os.uname().nodename) or len(os.uname().nodename) < 3
    assert results(shared) == before
    assert len(before) > 2


def test_of_a_run_with_stacks_no_secret_is_left_and_the_numbers_stay(
    explained: Launched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_shared(explained, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.nsys
def test_of_a_run_of_nsys_no_secret_is_left_and_the_numbers_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = launched(tmp_path, "--nsys", NSYS, sites=(NVTX_SITE,))
    process = run.out / "proc_0_gpu_0"
    assert {"trace.sqlite", "trace.nsys-rep"} <= holding(run.out, TOKEN)
    assert run_verb(["share", str(run.out), "-o", str(tmp_path / "elsewhere.tar.zst")]) == 0
    assert process.joinpath("trace.nsys-rep").exists()
    assert "trace.sqlite" in holding(run.out, "PLAIN_MODE")
    for secret in (TOKEN, CUSTOMER, PHRASE, FOLDER, "PLAIN_MODE"):  # known from the trace alone
        assert not holding(unpacked(tmp_path / "elsewhere.tar.zst"), secret)
    check_shared(run, tmp_path, capsys)


def test_verbs_take_the_archive(explained: Launched, tmp_path: Path) -> None:
    assert run_verb(["share", str(explained.out), "-o", str(tmp_path / "a.tar.zst")]) == 0
    for verb in ("diagnose", "analyze", "ranges"):
        assert run_verb([verb, str(tmp_path / "a.tar.zst")]) == 0
    assert not holding(tmp_path / "a", "HUB_TOKEN") or (tmp_path / "a" / "shared.json").exists()
    assert run_verb(["share", str(tmp_path / "a.tar.zst"), "-o", str(tmp_path / "b.tar.zst")]) == 0


def test_usage(explained: Launched, tmp_path: Path) -> None:
    assert run_verb(["share", str(explained.out), "-o", str(tmp_path / "a.zip")]) == 2
    assert run_verb(["share", str(explained.out / "proc_0_gpu_0")]) == 2
    assert run_verb(["share", str(tmp_path / "nothing")]) == 1


def test_results_carry_no_values_of_the_environment(
    explained: Launched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that the script itself gave a stage is in them; what it did not use is not."""
    for name in ("HUB_TOKEN", "PHRASE"):
        told = holding(explained.out, explained.environ[name])
        assert told <= {"stdout.log", "stderr.log"}
    for verb in ("analyze", "diagnose"):
        assert run_verb([verb, str(explained.out), "--format", "json"]) == 0
        printed = capsys.readouterr().out
        assert TOKEN not in printed
        assert json.dumps(PHRASE)[1:-1] not in printed
    for ending in ("html", "json"):
        assert run_verb(["report", str(explained.out), "-o", str(tmp_path / f"report.{ending}")]) == 0
    assert "rec" in (tmp_path / "report.html").read_text()
    for name in ("HUB_TOKEN", "PHRASE"):
        assert not holding(tmp_path, explained.environ[name])
