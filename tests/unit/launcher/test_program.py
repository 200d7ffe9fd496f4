"""What SCRIPT is: found by its name, its first line and the words of a `python …`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import UsageError
from perfharness.python_command import read_python_command
from perfharness_launcher.plan.launch_plan import make_plan
from perfharness_launcher.plan.machine import ask_interpreter, gather
from perfharness_launcher.plan.options import LaunchOptions, command_of, launch_options
from perfharness_launcher.plan.program import Program, find_program


@pytest.mark.parametrize(
    ("words", "options", "target", "is_module", "arguments"),
    [
        ("python a.py", "", "a.py", False, ""),
        ("python3.12 -u a.py -u b", "-u", "a.py", False, "-u b"),
        ("/opt/bin/pypy3 -X dev -Wd -OO run x", "-X dev -Wd -OO", "run", False, "x"),
        ("python -m pkg.mod -m x", "", "pkg.mod", True, "-m x"),
        ("python -mpkg -c", "", "pkg", True, "-c"),
        ("python -uX dev -Bm pkg a", "-uX dev -B", "pkg", True, "a"),
        ("python --check-hash-based-pycs never a.py", "--check-hash-based-pycs never", "a.py", False, ""),
    ],
)  # fmt: skip
def test_words_of_python(words: str, options: str, target: str, is_module: bool, arguments: str) -> None:
    found = read_python_command(words.split())
    assert found is not None
    assert (found.python, found.options) == (words.split()[0], tuple(options.split()))
    assert (found.target, found.is_module, found.arguments) == (target, is_module, tuple(arguments.split()))


@pytest.mark.parametrize(
    "words",
    ["", "python", "python -u", "python -c 1 a.py", "python - a.py", "python --version", "python -V", "python -m",
     "python -x a.py", "python -- a.py", "pythonic a.py", "python-config a.py", "torchrun a.py", "bash python a.py"],
)  # fmt: skip
def test_words_that_run_no_file_and_no_module(words: str) -> None:
    assert read_python_command(words.split()) is None


@pytest.mark.parametrize(
    ("words", "given", "again"),
    [
        ("python -X dev a.py -m", {}, "python -X dev a.py -m"),
        ("python -m pkg a", {"warmup_batches": 2}, "--warmup-batches 2 python -m pkg a"),
        ("pkg a", {"module": True, "python": "python3"}, "--module pkg a"),
        ("python a", {"module": True}, "--module python a"),  # a module that is called so
    ],
)
def test_a_launch_by_words_of_python_can_be_written_again(words: str, given: dict[str, Any], again: str) -> None:
    script, *arguments = words.split()
    options = launch_options(script, arguments, given)
    assert command_of(options) == ["perfharness", "launch", *again.split()]


def test_two_interpreters_are_one_too_many() -> None:
    with pytest.raises(UsageError, match=r"python = python3\.12 .*\(python\)"):
        launch_options("python", ["a.py"], {"python": "python3.12"})


UV = """#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python3' "$0" "$@"
"""
"""What `uv venv --relocatable` writes."""


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("head", "interpreter", "options"),
    [
        ("#!/venv/bin/python3.11\n", "/venv/bin/python3.11", ()),
        ("#!/usr/bin/python3 -sE\n", "/usr/bin/python3", ("-sE",)),
        ("#!/usr/bin/env python3\n", "python3", ()),
        ("#!/usr/bin/env -S python3 -u -X dev\n", "python3", ("-u", "-X", "dev")),
        ("#!/bin/sh\n'''exec' \"/a folder/bin/python\" \"$0\" \"$@\"\n' '''\n", "/a folder/bin/python", ()),
        ("#!/bin/sh\n'''exec' '/x/bin/python3' \"$0\" \"$@\"\n' '''\n", "/x/bin/python3", ()),
        (UV, "HERE/python3", ()),
        ("#!/bin/sh\nexec python3 -m x\n", None, ()),
        ("#!/bin/bash\necho\n", None, ()),
        ("#!/usr/bin/env\n", None, ()),
        ("#!'\n", None, ()),
        ("\x7fELF", None, ()),
    ],
)  # fmt: skip
def test_console_scripts_by_their_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, interpreter: str | None, options: tuple[str, ...]
) -> None:
    path = executable(tmp_path / "tool", head)
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = None if interpreter is None else interpreter.replace("HERE", str(tmp_path))
    expected = Program("tool", wanted, options, path)
    assert find_program(LaunchOptions(script="tool", script_arguments=("a",))) == expected
    assert expected.is_python is (interpreter is not None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"script": "gone.py"}, "gone.py"),
        ({"script": "folder.py"}, "folder.py"),
        ({"script": "folder"}, "folder"),
        ({"script": "text"}, "text"),
        ({"script": "gone"}, "gone"),
        ({"script": "gone", "python_command": ("python",)}, "gone"),
        ({"script": "text", "python_command": ("python",)}, None),
        ({"script": "app", "python_command": ("python",)}, None),  # a folder with a __main__.py
        ({"script": "gone", "module": True}, None),  # the interpreter knows its modules
    ],
)
def test_what_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], problem: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "folder.py", "app"):
        (tmp_path / name).mkdir()
    (tmp_path / "app" / "__main__.py").write_text("")
    (tmp_path / "text").write_text("print(1)\n")
    found = find_program(LaunchOptions(**options)).problem
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize(
    ("name", "path", "problem"),
    [
        ("package", "package/__main__.py", None),
        ("package.part", "package/part.py", None),
        ("package.inner", None, "__main__"),
        ("package.gone", None, "package.gone"),
        ("package.part.more", None, "package.part"),
        ("gone.more", None, "gone"),
    ],
)
def test_where_a_module_is_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, path: str | None, problem: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for file in ("__init__.py", "__main__.py", "part.py", "inner/__init__.py"):
        (tmp_path / "package" / file).write_text("raise SystemExit('imported')\n")
    facts = ask_interpreter(sys.executable, ("-u",), name)
    assert facts.module_path == (None if path is None else str(tmp_path / path))
    assert facts.module_problem is None if problem is None else problem in (facts.module_problem or "")


def test_an_isolated_interpreter_finds_no_module_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("")
    assert ask_interpreter(sys.executable, (), "here").module_path == str(tmp_path / "here.py")
    assert ask_interpreter(sys.executable, ("-I",), "here").module_path is None


TRAIN = Program("train.py", "python", path="train.py")


@pytest.mark.parametrize(
    ("command", "inner"),
    [
        ("torchrun --nproc-per-node 2 train.py other.py", Program("train.py", "/venv/python", path="train.py")),
        ("torchrun --nproc-per-node 2 gone.py", None),
        ("tool train.py", None),  # of a program that starts no ranks, a file is an argument as any other
        ("mpirun -n 2 python3 -u train.py a.py", Program("train.py", "python3", ("-u",), "train.py")),
        ("mpirun -n 2 env A=1 python -m pkg.mod", Program("pkg.mod", "python", (), None, "pkg.mod")),
        ("mpirun ./a.out", None),
        ("torchrun --nproc-per-node 2 -m pkg.mod a.py", Program("pkg.mod", "/venv/python", module="pkg.mod")),
        ("torchrun -m --nproc-per-node 2 pkg.mod", Program("pkg.mod", "/venv/python", module="pkg.mod")),
        ("torchrun --no-python python3 -u train.py", Program("train.py", "python3", ("-u",), "train.py")),
        ("torchrun --no-python bash -c 'A=1 python train.py'", TRAIN),
        ("torchrun --no-python ./a.out train.py", None),
        ("python -m torch.distributed.run train.py", TRAIN),
        ("python3 -m accelerate.commands.launch --cpu train.py", Program("train.py", "python3", path="train.py")),
        ("python -m other train.py", None),
        ("mpirun python -m torch.distributed.run train.py", TRAIN),
        ("mpirun -n 2 torchrun --nproc-per-node 2 train.py", TRAIN),
        ("mpirun sh -c 'echo; exec python -u train.py a | tee b'", Program("train.py", "python", ("-u",), "train.py")),
        ("mpirun bash -lc 'cd x && python train.py'", None),
        ("mpirun bash -c", None),
        ("mpirun bash -c 'echo \"'", None),
        ("mpirun bash train.py", None),
        ("mpirun uv run --with x train.py", TRAIN),
        ("mpirun uv run -m pkg.mod", Program("pkg.mod", "python", module="pkg.mod")),
        ("mpirun uv pip train.py", None),
        ("deepspeed --num_gpus 2 train.py --lr 1", Program("train.py", "/venv/python", path="train.py")),
        ("deepspeed --module --include a:0 pkg.mod a.py", Program("pkg.mod", "/venv/python", module="pkg.mod")),
        ("conda run -n two python -u train.py a", Program("train.py", "python", ("-u",), "train.py")),
        ("conda run -n two --no-capture-output torchrun --nproc-per-node 2 train.py", TRAIN),
        ("conda run -n two ./a.out train.py", None),
    ],
)  # fmt: skip
def test_which_script_a_program_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, inner: Program | None
) -> None:
    heads = dict.fromkeys(("torchrun", "deepspeed", "tool", "conda"), "#!/venv/python")
    for name, head in {**heads, "mpirun": "\x7fELF"}.items():
        executable(tmp_path / name, head + "\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "other.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    script, *arguments = shlex.split(command) if "'" in command else command.split()
    options = launch_options(script, arguments, {})
    found = find_program(options)
    assert found.inner == inner
    assert found.script is (found if inner is None else found.inner)


def test_the_python_of_conda_is_not_that_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`conda run` starts as any program, and what it starts is followed; other commands of it are its own."""
    executable(tmp_path / "conda", "#!/conda/bin/python\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    for arguments, interpreter in ((("run", "-n", "two", "python", "a.py"), None), (("info",), "/conda/bin/python")):
        found = find_program(LaunchOptions(script="conda", script_arguments=arguments))
        assert (found.interpreter, found.path) == (interpreter, str(tmp_path / "conda"))


def test_the_interpreter_of_what_another_program_starts_need_not_be_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    executable(tmp_path / "docker", "\x7fELF")
    monkeypatch.setenv("PATH", str(tmp_path))
    options = LaunchOptions(script="docker", script_arguments=("run", "python3", "x.py"), tracer="none")
    facts = gather(options, {})
    assert (facts.interpreter.problem, facts.interpreter.executable) == (None, options.python)
    assert make_plan(options, facts).processes[0].command == (str(tmp_path / "docker"), "run", "python3", "x.py")
