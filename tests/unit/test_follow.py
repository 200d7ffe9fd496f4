"""The finder that follows a Python process, and functions that annotations name in a script."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

import perfharness
from perfharness.annotate.script_functions import definitions

FOLLOW = Path(perfharness.__file__).parent / "boot" / "follow" / "sitecustomize.py"


def test_it_finds_what_the_others_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and only for the modules that it waits for; the launch is told why it could not start."""
    spec = importlib.util.spec_from_file_location("follow", FOLLOW)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("PERFHARNESS_TRACER", raising=False)
    found = ModuleSpec("made_up", None)
    asked: list[str] = []

    def find(name: str, *_: object) -> ModuleSpec | None:
        asked.append(name)
        return found if name == "made_up" else None

    other = SimpleNamespace(find_spec=find)
    follow = module.Follow(("made_up", "missing"), str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [follow, other])
    assert (follow.find_spec("json"), asked, sys.meta_path) == (None, [], [follow, other])
    assert follow.find_spec("made_up") is found
    assert (asked, sys.meta_path) == (["made_up"], [other])
    assert [path.name for path in tmp_path.iterdir()] == [f".unfollowed_{os.getpid()}"]
    assert follow.find_spec("made_up") is None
    sys.meta_path.insert(0, follow)
    assert follow.find_spec("missing") is None


SCRIPT = """
def run(): pass
class Model:
    def run(self): pass
    class Head:
        async def run(self): pass
class Other:
    def run(self): pass
if True:
    def run(): pass
else:
    class Model:
        def run(self): pass
def outer():
    def inner(): pass
"""


@pytest.mark.parametrize(
    ("name", "lines"),
    [("run", [2, 10]), ("Model.run", [4, 13]), ("Model.Head.run", [6]), ("Other.run", [8]), ("outer", [14])]
    + [(name, []) for name in ("Model", "Head.run", "inner", "outer.inner", "Model.run.x")],
)
def test_functions_of_a_script(name: str, lines: list[int]) -> None:
    """In any branch, not in functions."""
    assert [one.lineno for one in definitions(ast.parse(SCRIPT).body, name.split("."))] == lines
