"""Settings of a launch: typed once, given by option, by file and in Python, with one order among them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.errors import UsageError
from perfharness.model.settings import options_of
from perfharness_launcher.gpus import GpuFacts
from perfharness_launcher.options import (
    LaunchOptions,
    command_of,
    launch_options,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("perfharness_launcher.machine.find_gpus", lambda: GpuFacts(problem="no driver"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pipeline.py").write_text("")
    return tmp_path / "project"


SCRIPT = "project/pipeline.py"


def options(given: dict[str, Any] | None = None, config: Path | None = None) -> LaunchOptions:
    return launch_options(SCRIPT, (), given or {}, config)


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["launch", "--dry-run", "--tracer", "none", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_what_is_given_counts_before_the_file_and_that_before_the_default(folder: Path) -> None:
    (folder / "perfharness.toml").write_text('[launch]\nnum-processes = 4\nwarmup_batches = 2\ngpus = ["0", "1"]\n')
    made = options({"num_processes": 8})
    assert (made.num_processes, made.warmup_batches, made.gpus, made.timeout_s) == (8, 2, ("0", "1"), None)
    assert made.settings is not None
    assert (made.settings.file, made.settings.names) == ("project/perfharness.toml", ["warmup-batches", "gpus"])


PROJECT = "[tool.perfharness.launch]\nbarrier = false\ntimeout = 30\n"
OWN = "[launch]\ntimeout = 40.5\n"


@pytest.mark.parametrize(
    ("files", "config", "expected"),
    [
        ({}, None, (True, None, 1)),
        ({"pyproject.toml": "[project]\nname = 'x'\n"}, None, (True, None, 1)),
        ({"pyproject.toml": PROJECT}, None, (False, 30.0, 1)),
        ({"pyproject.toml": PROJECT, "perfharness.toml": OWN}, None, (True, 40.5, 1)),
        ({"perfharness.toml": OWN, "quick.toml": "[launch]\nwarmup-batches = 0\n"}, "quick.toml", (True, None, 0)),
    ],
    ids=["none", "another tool's", "the project's", "the nearer one", "the one that is named"],
)
def test_which_file_counts(
    folder: Path, files: dict[str, str], config: str | None, expected: tuple[bool, float | None, int]
) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    made = options(config=None if config is None else folder / config)
    assert (made.barrier, made.timeout_s, made.warmup_batches) == expected
    assert (made.settings is None) is (expected == (True, None, 1))


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("torchrun", "--nproc-per-node", "2", SCRIPT, "other.py"), 3),
        (("python", "-m", "torch.distributed.run", SCRIPT), 3),
        (("tool", "other.py"), 1),
        (("project/tool", "other.py"), 3),  # next to SCRIPT itself, where that is a file
        (("other.py", SCRIPT), 1),
    ],
)
def test_the_file_next_to_what_a_launcher_of_ranks_starts(folder: Path, words: tuple[str, ...], count: int) -> None:
    (folder / "perfharness.toml").write_text("[launch]\nnum-processes = 3\n")
    (folder / "tool").write_text("")
    (folder.parent / "other.py").write_text("")
    made = launch_options(words[0], words[1:], {})
    assert made.num_processes == count


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    (folder / "perfharness.toml").write_text(
        '[launch]\noutput-dir = "runs/a"\nannotate = "/abs/a.toml"\npython = ".venv/bin/python"\n'
    )
    made = launch_options(SCRIPT, (), {})
    assert made.output_dir == Path("project/runs/a")
    assert made.annotate == Path("/abs/a.toml")
    assert made.python == "project/.venv/bin/python"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[launch]\nnum-proceses = 4", r"project/perfharness.toml .*num-proceses.*num-processes"),
        ("[launch]\nnp-sweep = [1, 2]", "np-sweep"),
        ('[launch]\nnum-processes = "4"', "num-processes = '4'"),
        ("[launch]\nnum-processes = 4.5", "num-processes"),
        ("[launch]\nnum-processes = true", "num-processes"),
        ('[launch]\ntracer = "magic"', "tracer = 'magic'"),
        ("[launch]\nbarrier = 1", "barrier"),
        ("[launch]\ngpus = [0]", "gpus"),
        ("[launch]\nplots = true", "plots"),
        ("launch = 3", "table"),
        ("num-processes = 4", "num-processes"),
        ("[launch", "TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (folder / "perfharness.toml").write_text(text)
    code, out, told = dry_run(capsys, SCRIPT)
    assert (code, out) == (2, "")
    assert len(told.splitlines()) == 1
    assert re.search(words, told)


def test_a_file_that_is_named_must_have_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "other.toml").write_text("[bench]\n")
    for name in ("gone.toml", "project/other.toml"):
        code, _, told = dry_run(capsys, "--config", name, SCRIPT)
        assert code == 2
        assert name in told


def test_settings_of_a_file_that_contradict_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "perfharness.toml").write_text('[launch]\ngpus = "0"\n')
    code, _, told = dry_run(capsys, "-ng", "2", SCRIPT)
    assert code == 2
    assert "gpus: from project/perfharness.toml" in told


VALUES: dict[str, Any] = {
    "num_processes": 2, "num_gpus": 3, "gpu_offset": 1, "gpus_per_process": 2,
    "gpus": ("0", "GPU-a"), "cpu_bind": "numa", "timeout_s": 1.5,
    "require_exclusive": True, "module": True, "python": "/usr/bin/python3", "log_level": "debug", "warmup_batches": 0,
    "annotate": Path("a.toml"), "annotate_torch": 2, "annotate_collectives": True, "parallel": "model", "domain": "d",
    "batch_pattern": "b.*",
    "tracer": "embedded", "nsys": Path("/opt/nsys"), "trace_os": True, "barrier": False, "barrier_timeout_s": 2.0,
    "nodes": True, "ray": "auto", "num_nodes": 2,
    "telemetry": False, "metrics": "127.0.0.1:9400", "measure_idle_s": 0.0, "cool_down_c": 40.0,
    "capture_batches": "1:5", "on_demand": True,
    "cool_down_limit_s": 5.0, "maximize_clocks": True, "explain": True, "sampling": False,
    "output_dir": Path("elsewhere"),
    "history": False,
}  # fmt: skip


def test_the_command_of_a_launch_from_python_launches_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(VALUES) == set(options_of(LaunchOptions)), "each has a value other than its default here"
    made: list[LaunchOptions] = []

    def refuse(launches: list[LaunchOptions]) -> None:
        made.extend(launches)
        raise UsageError("that is all")

    monkeypatch.setattr("perfharness.runs.launch.plan_launches", refuse)
    monkeypatch.setattr("perfharness.runs.launch.launch_on_ray", lambda options, *_: refuse([options]))
    of_flags = {name: VALUES[name] for name, option in options_of(LaunchOptions).items() if option.has_flag}
    asked = LaunchOptions(script="x.py", script_arguments=("-np", "9"), **of_flags)
    assert run(command_of(asked)[1:]) == 2
    assert run(command_of(LaunchOptions(script="x.py"))[1:]) == 2
    assert made == [asked, LaunchOptions(script="x.py")]
