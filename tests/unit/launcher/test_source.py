"""What a manifest says of what was measured: commit, changes, digests."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from perfharness_launcher.plan import source
from perfharness_launcher.plan.machine import ask_interpreter
from perfharness_launcher.plan.source import file_of_target, find_source


def git(folder: Path, *arguments: str) -> str:
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, env={**os.environ, **names}
    )
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    path = tmp_path / "pipeline.py"
    path.write_text("print()\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return path


def test_the_commit_and_whether_it_was_changed(script: Path) -> None:
    clean = find_source(str(script), [])
    assert clean.git_commit == git(script.parent, "rev-parse", "HEAD")
    assert (clean.git_dirty, clean.git_reason) == (False, None)
    assert clean.script_sha256 == hashlib.sha256(b"print()\n").hexdigest()
    (script.parent / "untracked.txt").write_text("")
    assert find_source(str(script), []).git_dirty is False
    script.write_text("print(1)\n")
    assert find_source(str(script), []).git_dirty is True


def test_without_a_repository_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pipeline.py"
    path.write_text("")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = find_source(str(path), [])
    assert (found.git_commit, found.git_dirty) == (None, None)
    assert found.git_reason
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_source(str(path), []).git_reason
    assert find_source(None, []).script_sha256 is None


def test_files_that_arguments_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    arguments = ["--verbose", str(model), f"--model={model}", str(tmp_path), str(tmp_path / "pipe"), "none", "a\0b"]
    files = find_source(None, arguments).input_files
    digest = hashlib.sha256(b"abc").hexdigest()
    assert [(one.argument, one.name, one.bytes, one.sha256) for one in files] == [
        (1, "model.onnx", 3, digest), (2, "model.onnx", 3, digest)
    ]  # fmt: skip
    monkeypatch.setattr(source, "LARGEST_DIGEST_BYTES", 2)
    assert [one.sha256 for one in find_source(None, [str(model)]).input_files] == [None]


def test_packages_are_those_of_the_measured_interpreter() -> None:
    assert ask_interpreter(sys.executable).packages["numpy"] == numpy.__version__


def test_the_file_of_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for name in ("app.py", "net.onnx", "package/__init__.py", "package/part.py"):
        (tmp_path / name).write_text("")
    assert file_of_target("app.py:answer") == "app.py"
    assert file_of_target("app:answer") == "app.py"
    assert file_of_target("package.part:answer") == "package/part.py"
    assert file_of_target("package:answer") == "package/__init__.py"
    assert file_of_target("net.onnx") == "net.onnx"
    assert file_of_target("http://localhost:1/") is None
    assert file_of_target("somewhere:answer") is None
