"""The output folder (-o): any folder, again and again; an earlier run moves to `previous`, foreign files stay."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
REPEAT = {"launch_0", "launch_1", "repeat.json"}
FOREIGN = {"load": "folder", "notes.txt": "mine", "first": "folder", "previous.txt": "mine"}


def launch(out: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = out.parent / "script.py"
    script.write_text(text)
    return run_to_the_end(("--tracer", "embedded", "-w", "0", "-o", out, *options, script), environment())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good run, and a good repeat."""
    folder = tmp_path_factory.mktemp("made")
    assert launch(folder / "run", WELL).returncode == 0
    assert launch(folder / "repeat", WELL, "--repeat", "2").returncode == 0
    return {"run": folder / "run", "repeat": folder / "repeat"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def marks(folder: Path) -> list[str]:
    """Of the runs in a folder, or of its repeat."""
    return [path.read_text() for path in sorted(folder.rglob("manifest.json"))]


def put(out: Path, made: dict[str, Path], *, before: str | None, previous: str | None = None) -> None:
    out.mkdir()
    for name, content in FOREIGN.items():
        if content == "folder":
            (out / name).mkdir()
            (out / name / "mine").write_text("mine")
        else:
            (out / name).write_text(content)
    if before is not None:
        shutil.copytree(made[before], out, dirs_exist_ok=True)
    if previous is not None:
        shutil.copytree(made[previous], out / "previous")
        (out / "previous" / "notes.txt").write_text("mine")


def slow(*values: Any) -> Any:
    """A row for `scripts/test --all`: other series do the same by the same code."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("before", "previous", "options", "here", "kept"),
    [
        (None, None, (), RUN, None),
        ("run", None, (), RUN, RUN),
        ("run", "run", (), RUN, RUN | {"notes.txt"}),
        slow("run", "repeat", (), RUN, RUN | {"notes.txt"}),
        slow("repeat", None, (), RUN, REPEAT),
        slow("run", "run", ("--repeat", "2"), REPEAT, RUN | {"notes.txt"}),
        slow("repeat", None, ("--np-sweep", "1"), {"np_1", "scaling.html", "scaling.json", "scaling.png"}, REPEAT),
        slow("run", None, ("--overhead", "--repeat", "2"), {"traced", "untraced", "overhead.json"}, RUN),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else None,
)
def test_an_earlier_run_moves_and_foreign_files_stay(
    made: dict[str, Path],
    tmp_path: Path,
    before: str | None,
    previous: str | None,
    options: tuple[str, ...],
    here: set[str],
    kept: set[str] | None,
) -> None:
    out = tmp_path / "out"
    put(out, made, before=before, previous=previous)
    moved = [] if before is None else marks(made[before])
    done = launch(out, WELL, *options)
    assert done.returncode in (0, 3), done.stderr  # of an overhead of two launches little is decided
    assert names(out) == here | set(FOREIGN) | (set() if kept is None else {"previous"})
    assert (str(out / "previous") in done.stderr) == (kept is not None)
    if kept is not None:
        assert names(out / "previous") == kept
        assert marks(out / "previous") == moved
    now = {path.read_text() for path in out.rglob("manifest.json") if "previous" not in path.parts}
    assert now
    assert not now & set(moved)
    assert all((out / name / "mine").read_text() == "mine" for name in ("load", "first"))
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("run", ()),
        slow("repeat", ()),
        ("repeat", ("--repeat", "2")),
        *(slow(before, (series, "1")) for before in ("run", "repeat") for series in ("--np-sweep", "--cold-start")),
    ],
)
def test_what_measured_nothing_replaces_nothing(
    made: dict[str, Path], tmp_path: Path, before: str, options: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    put(out, made, before=before)
    shutil.rmtree(out / "first")
    there, was = names(out), marks(out)
    done = launch(out, FAILS, *options)
    assert done.returncode in (1, 3), done.stderr
    (aside,) = out.glob("run-*")
    assert names(out) == there | {aside.name}
    assert str(aside) in done.stderr
    shutil.move(aside, tmp_path / "aside")
    assert marks(out) == was
    assert marks(tmp_path / "aside")


def test_a_run_without_numbers_replaces_one_without(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert launch(out, FAILS).returncode == 1
    before = marks(out)
    assert launch(out, FAILS).returncode == 1
    assert names(out) == RUN | {"previous"}
    assert marks(out / "previous") == before


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, ()) for name in ("manifest.json", "telemetry.parquet", "proc_0_gpu_0")),
        ("manifest.json", ("--repeat", "2")),
        ("launch_1", ("--repeat", "2")),
        ("first", ("--cold-start", "1")),
        ("traced", ("--overhead",)),
    ],
)
def test_a_foreign_file_with_the_name_of_one_of_a_run_is_not_touched(
    tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text('{"name": "a web page"}')
    done = launch(out, WELL, *options)
    assert done.returncode == 2
    assert str(out / name) in done.stderr
    assert names(out) == {name}


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
    "at", [slow("previous/benchmark_mean.json"), "previous/manifest.json", slow("proc_0_gpu_0"), "manifest.json"]
)
def test_a_launcher_that_is_killed_while_it_renames_loses_no_run(
    made: dict[str, Path], tmp_path: Path, at: str
) -> None:
    """Both are there, each in one or two folders; no file is of two runs."""
    out, script = tmp_path / "out", tmp_path / "script.py"
    put(out, made, before="run")
    (was,) = marks(made["run"])
    script.write_text(WELL)
    words = ["launch", "--no-telemetry", "--tracer", "embedded", "-o", str(out), str(script)]
    done = subprocess.run([sys.executable, "-c", KILLED, str(out / at), *words], env=environment(), check=False)
    assert done.returncode == 9
    (hidden,) = out.glob(".perfharness-run-*")
    run_id = manifest(hidden)["run_id"]
    assert (out / "notes.txt").read_text() == "mine"
    assert was in marks(out / "previous") + ([] if (out / "previous" / "manifest.json").exists() else marks(out))
    found = [json.loads(path.read_text())["meta"]["run_id"] for path in out.rglob("benchmark.json")]
    assert sorted(found) == sorted([json.loads(was)["run_id"], run_id])
    assert launch(out, WELL).returncode == 0
    assert manifest(out / "previous")["run_id"] == (json.loads(was)["run_id"] if hidden.exists() else run_id)
