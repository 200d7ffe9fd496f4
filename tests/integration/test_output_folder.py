"""The output folder (-o): any folder, again and again; an earlier run moves to `previous`, foreign files stay."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from perfharness.cli.main import run as run_cli
from tests.integration.launches import environment, manifest, run_to_the_end

WELL = """
from perfharness import PerfRecorder
perf = PerfRecorder("toy")
for index in range(3):
    with perf.batch(index, total_items=2):
        pass
perf.finalize()
"""
FAILS = "import sys; sys.exit(7)"
RUN = {"benchmark_mean.json", "manifest.json", "proc_0_gpu_0"}
REPEAT = {"launch_0", "launch_1", "series.json"}
FOREIGN = ("load/mine", "notes.txt", "first/mine", "previous.txt")

Make = Callable[[str], Path]


def launch(out: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = out.parent / "script.py"
    script.write_text(text)
    return run_to_the_end(("--tracer", "embedded", "-w", "0", "-o", out, *options, script), environment())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A good run, or a good repeat; each is made once."""
    folder = tmp_path_factory.mktemp("made")

    @cache
    def once(kind: str) -> Path:
        assert launch(folder / kind, WELL, *(("--repeat", "2") if kind == "repeat" else ())).returncode == 0
        return folder / kind

    return once


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with files of others."""
    for name in FOREIGN:
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("mine")
    return tmp_path / "out"


def names(folder: Path) -> set[str]:
    """Of what is there, less the files of others."""
    return {path.name for path in folder.iterdir()} - {Path(name).parts[0] for name in FOREIGN}


def marks(folder: Path) -> list[str]:
    """Manifests of the runs in a folder, or of its repeat."""
    return [path.read_text() for path in sorted(folder.rglob("manifest.json"))]


def test_one_folder_for_all_launches(out: Path) -> None:
    """Each moves the one before to `previous`; one without numbers goes next to the last that has some."""
    before: list[str] = []
    for text in (FAILS, FAILS, WELL):
        done = launch(out, text)
        assert done.returncode == (1 if text == FAILS else 0), done.stderr
        assert names(out) == (RUN | {"previous"} if before else RUN)
        assert (str(out / "previous") in done.stderr) == bool(before)
        if before:
            assert marks(out / "previous") == before
            (out / "previous" / "notes.txt").write_text("mine")
        before = [(out / "manifest.json").read_text()]
    there, was = names(out), marks(out)
    failed = launch(out, FAILS)
    assert failed.returncode == 1
    (aside,) = out.glob("run-*")
    assert str(aside) in failed.stderr
    assert names(out) - there == {aside.name}
    shutil.move(aside, out.parent / "aside")
    assert marks(out) == was
    assert all((out / name).read_text() == "mine" for name in (*FOREIGN, "previous/notes.txt"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "options", "here"),
    [
        ("repeat", (), RUN),
        ("run", ("--repeat", "2"), REPEAT),
        ("repeat", ("--np-sweep", "1"), {"np_1", "scaling.html", "series.json", "scaling.png"}),
        ("run", ("--overhead", "--repeat", "2"), {"traced", "untraced", "series.json"}),
    ],
)
def test_series_move_and_are_moved(
    made: Make, out: Path, before: str, options: tuple[str, ...], here: set[str]
) -> None:
    shutil.copytree(made(before), out, dirs_exist_ok=True)
    done = launch(out, WELL, *options)
    assert done.returncode in (0, 3), done.stderr  # of an overhead of two launches little is decided
    assert names(out) == here | {"previous"}
    assert marks(out / "previous") == marks(made(before))


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("run", ("--repeat", "2")),
        pytest.param("repeat", (), marks=pytest.mark.slow),
        pytest.param("repeat", ("--np-sweep", "1"), marks=pytest.mark.slow),
        pytest.param("run", ("--cold", "--repeat", "1"), marks=pytest.mark.slow),
    ],
)
def test_a_series_that_measured_nothing_replaces_nothing(
    made: Make, tmp_path: Path, before: str, options: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(made(before), out)
    there = names(out)
    done = launch(out, FAILS, *options)
    assert done.returncode in (1, 3), done.stderr
    (aside,) = out.glob("run-*")
    assert str(aside) in done.stderr
    assert names(out) == there | {aside.name}
    assert marks(aside)
    shutil.move(aside, tmp_path / "aside")
    assert marks(out) == marks(made(before))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, ()) for name in ("manifest.json", "telemetry.parquet", "proc_0_gpu_0")),
        ("manifest.json", ("--repeat", "2")),
        ("launch_1", ("--repeat", "2")),
        ("first", ("--cold",)),
        ("traced", ("--overhead",)),
    ],
)
def test_a_foreign_file_with_the_name_of_one_of_a_run_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, options: tuple[str, ...]
) -> None:
    out, script = tmp_path / "out", tmp_path / "script.py"
    out.mkdir()
    (out / name).write_text('{"name": "a web page"}')
    script.write_text(WELL)
    assert run_cli(["launch", "--tracer", "embedded", "-o", str(out), *options, str(script)]) == 2
    assert str(out / name) in capsys.readouterr().err.replace("\n", "")
    assert [path.name for path in out.iterdir()] == [name]


KILLED = """
import os, sys
from pathlib import Path
from perfharness.cli.main import run
rename = Path.rename
def killed(self, target):
    if Path(target) == Path(sys.argv[1]):
        os._exit(9)
    return rename(self, target)
Path.rename = killed
run(sys.argv[2:])
"""


@pytest.mark.parametrize(
    "at",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("previous/benchmark_mean.json", "proc_0_gpu_0")),
        pytest.param("previous/manifest.json", marks=pytest.mark.slow),
        "manifest.json",
    ],
)
def test_a_launcher_that_is_killed_while_it_renames_loses_no_run(made: Make, out: Path, at: str) -> None:
    """Both are there, each in one or two folders; no file is of two runs. The next launch puts it right."""
    script = out.parent / "script.py"
    shutil.copytree(made("run"), out, dirs_exist_ok=True)
    (was,) = marks(made("run"))
    script.write_text(WELL)
    words = ["launch", "--no-telemetry", "--tracer", "embedded", "-o", str(out), str(script)]
    done = subprocess.run([sys.executable, "-c", KILLED, str(out / at), *words], env=environment(), check=False)
    assert done.returncode == 9
    (hidden,) = out.glob(".perfharness-run-*")
    run_id = manifest(hidden)["run_id"]
    assert was in marks(out / "previous") + ([] if (out / "previous" / "manifest.json").exists() else marks(out))
    found = [json.loads(path.read_text())["meta"]["run_id"] for path in out.rglob("benchmark.json")]
    assert sorted(found) == sorted([json.loads(was)["run_id"], run_id])
    assert launch(out, WELL).returncode == 0
    assert manifest(out / "previous")["run_id"] == (json.loads(was)["run_id"] if hidden.exists() else run_id)
    assert (out / "notes.txt").read_text() == "mine"
