"""Outputs that are no regular files, links, modes; and what is read only where it is a regular file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perfharness.cli.main import run
from perfharness.errors import ResultError
from perfharness.files import locked, replacing, write_text

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
TRACE = str(GOLDEN / "pipeline.sqlite")
COMMAND = (sys.executable, "-m", "perfharness")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def put(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(Path("there") / "target")
    put(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    target.unlink()
    put(link, "made")
    assert target.read_text() == "made"
    assert names(tmp_path / "there") == ["target"]


def test_what_is_not_a_regular_file_is_refused_and_stays(tmp_path: Path) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "null"
    os.mkfifo(fifo)
    link.symlink_to("/dev/null")
    for path in (fifo, link, Path("/dev/null")):
        with pytest.raises(ResultError):
            put(path, "x")
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_the_umask_holds_and_a_mode_that_is_there_stays(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        path = tmp_path / "new"
        put(path, "x")
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
        path.chmod(0o640)
        put(path, "y")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_text(path, lambda file: file.write("new") and 1 / 0)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["folder", "missing/file", "loop"])
def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ResultError) as caught:
        put(tmp_path / name, "x")
    assert len(str(caught.value).splitlines()) == 1


def test_one_at_a_time_in_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(BlockingIOError), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", TRACE, "--format", "json", "--table", "ranges", "-o"),
        ("export", TRACE, "-o"),
        ("export", TRACE, "--format", "csv", "--table", "stages", "-o"),
        ("export", TRACE, "--format", "parquet", "--table", "stages", "-o"),
        ("export", TRACE, "--format", "arrow", "--table", "stages", "-o"),
    ],
)
def test_every_verb_writes_through(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    plain, link = tmp_path / "plain", tmp_path / "link"
    assert run([*arguments, str(plain)]) == 0
    link.symlink_to(tmp_path / "target")
    assert run([*arguments, str(link)]) == 0
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == plain.read_bytes()


def test_the_standard_output_gets_the_file_and_nothing_else(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    assert run(["export", TRACE, "-o", str(plain)]) == 0
    done = subprocess.run(
        [*COMMAND, "export", TRACE, "-o", "-"], capture_output=True, cwd=tmp_path, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, plain.read_bytes())
    assert names(tmp_path) == ["plain"]
