"""`perfharness compare --run` and `--rev`: both versions are measured in turns, with real processes, and compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from perfharness.cli.main import run
from tests.integration.launches import PATIENCE_S, environment

TOY = Path(__file__).parents[2] / "samples" / "toy_pipeline.py"
FAST = "--tracer ranges --no-telemetry -w 1"
LAUNCH = f"{FAST} {TOY} --batches 4 --stage-ms"

SCRIPT = """
import os, sys, time
from pathlib import Path
from perfharness import PerfRecorder
import helper
perf = PerfRecorder("app")
for index in range(5):
    with perf.batch(index, total_items=2):
        with perf.range("work"):
            time.sleep(helper.SECONDS)
perf.finalize()
Path(sys.argv[1]).open("a").write(f"{helper.SECONDS} {Path.cwd()} {Path('here').exists()}\\n")
time.sleep(float(os.environ.get("PAUSE_S", 0)))
"""


def git(*arguments: str, cwd: Path) -> str:
    named = ("-c", "user.name=n", "-c", "user.email=e@x")
    return subprocess.run(["git", *named, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits of a script in a folder, whose helper is elsewhere; `slow`, the first, takes three times as long."""
    root = tmp_path_factory.mktemp("repository")
    git("init", "-q", cwd=root)
    (root / "tools").mkdir()
    (root / "library").mkdir()
    (root / "tools" / "app.py").write_text(SCRIPT)
    for tag, seconds in (("slow", 0.03), ("fast", 0.01)):
        (root / "library" / "helper.py").write_text(f"SECONDS = {seconds}")
        git("add", "-A", cwd=root)
        git("commit", "-q", "-m", tag, cwd=root)
        git("tag", tag, cwd=root)
    (root / "tools" / "here").touch()  # the tree may have changes, and files that are in no commit
    return root


def test_two_versions_are_measured_in_turns_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--run", f"{LAUNCH} 10", "--run", f"{LAUNCH} 100", "--repeat", "2", "-o", str(tmp_path / "out")]
    code = run(["compare", *arguments, "--stage", "stage_1", "--fail-if", "stage_1.p95 > 50ms", "--format", "json"])
    (version,) = json.loads(capsys.readouterr().out)["versions"]
    (row,) = version["rows"]
    assert code == 3
    assert (version["order"], len(row["base"]["launches"]), len(row["new"]["launches"])) == ("in-turns", 2, 2)
    assert row["ratio"] > 2
    assert [(one["name"], one["decides"]) for one in version["differences"]] == [("arguments", False)]
    again = run(["compare", str(tmp_path / "out" / "base"), str(tmp_path / "out" / "new"), "--stage", "stage_1"])
    assert again == 0


def test_a_commit_is_measured_in_turns_with_the_working_tree(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository / "tools")
    monkeypatch.setenv("PYTHONPATH", str(repository / "library"))
    out, seen = tmp_path / "out", tmp_path / "seen"
    options = ["--repeat", "2", "-o", str(out), "--stage", "work", "--format", "json"]
    assert run(["compare", *options, "--rev", "slow", *FAST.split(), "app.py", str(seen)]) == 0
    (version,) = json.loads(capsys.readouterr().out)["versions"]
    (row,) = version["rows"]
    assert (version["order"], row["unit"], row["ratio"] < 0.7) == ("in-turns", "ms", True)
    commits = {one["name"]: (one["base"], one["new"]) for one in version["differences"]}["git commit"]
    assert commits == tuple([git("rev-parse", tag, cwd=repository).strip()] for tag in ("slow", "fast"))
    lines = [line.split() for line in seen.read_text().splitlines()]
    assert sorted(line[0] for line in lines) == ["0.01", "0.01", "0.03", "0.03"]
    assert {(line[0], line[1] == str(repository / "tools"), line[2]) for line in lines} == {
        ("0.01", True, "True"),
        ("0.03", False, "False"),
    }
    assert {Path(line[1]).name for line in lines} == {"tools"}
    assert len(git("worktree", "list", cwd=repository).splitlines()) == 1
    assert not list(Path(tempfile.gettempdir()).glob("perfharness-rev-*/slow"))


def test_an_interrupt_removes_the_worktree(tmp_path: Path, repository: Path) -> None:
    ignoring = ["env", "--default-signal=INT"]  # the tests may run where it is ignored
    words = ["compare", "-o", str(tmp_path / "out"), "--rev", "slow", *FAST.split(), "app.py", str(tmp_path / "seen")]
    python_path = os.pathsep.join(filter(None, (str(repository / "library"), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [*ignoring, sys.executable, "-m", "perfharness", *words], cwd=repository / "tools", text=True,
        env=environment(PYTHONPATH=python_path, PAUSE_S="60"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "running" in line:
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "interrupted" in errors) == (1, True)
    assert len(git("worktree", "list", cwd=repository).splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--run", "toy.py"], "at least twice"),
        (["--run", "toy.py", "--run", "--nope toy.py"], "--nope"),
        (["--run", "toy.py", "--run", '"toy.py'], "quotation"),
        (["--run", "toy.py", "--run", "-o out toy.py"], "-o"),
        (["--run", "toy.py", "--run", "--explain toy.py"], "--explain"),
        (["--run", "toy.py", "--run", ""], "--run ''"),
        (["--run", "none.py", "--run", "toy.py"], "none.py"),
        (["--rev", "main", "toy.py"], "not in a git repository"),
        (["--rev", "main"], "SCRIPT"),
        (["--rev"], "--rev"),
    ],
)
def test_wrong_command_lines_start_nothing(
    words: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.py").write_text("")
    assert run(["compare", "--repeat", "1", *words]) == 2
    assert named in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["toy.py"]


def test_what_a_commit_does_not_have(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "new").mkdir(exist_ok=True)
    (repository / "new" / "app.py").write_text(SCRIPT)
    monkeypatch.chdir(repository)
    for revision, script, named in (
        ("nope", "tools/app.py", "no such commit"),
        ("slow", "new/app.py", "slow has no new/app.py"),
        ("--upload-pack=x", "tools/app.py", "no such commit"),
    ):
        assert run(["compare", "--repeat", "1", f"--rev={revision}", script]) == 2
        assert named in capsys.readouterr().err
    monkeypatch.chdir(repository / "new")
    assert run(["compare", "--repeat", "1", "--rev", "slow", "../tools/app.py"]) == 2
    assert "slow has no folder new" in capsys.readouterr().err
