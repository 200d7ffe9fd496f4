"""An annotation file: what is read, what is refused, and what is known of its names before anything runs."""

from __future__ import annotations

import argparse
import collections
import enum
import inspect
import json.decoder
import pathlib
import sys
import threading
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfharness.annotate.expressions import Expression
from perfharness.annotate.lookup import look_up
from perfharness.model.annotations import Annotations, FunctionAnnotation
from perfharness_launcher.plan.annotations import AnnotationFacts, default_name, problems_of_form, read_annotations

PACKAGE = """
from .inner import helper
from .star import *
"""
INNER = """
import functools
class Model:
    def __call__(self, images): return images
    def forward(self, images, size=1): return images
class Child(Model):
    pass
def helper(files, *rest, **options): return files
if True:
    def conditional(): pass
assigned = helper
"""
SCRIPT = """
from package.inner import helper
class Pipeline:
    def read(self, files): pass
def main(files): pass
"""
RAISES = "raise SystemExit('a module was executed')\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    for name, source in {
        "script.py": SCRIPT,
        "package/__init__.py": RAISES + PACKAGE,
        "package/inner.py": RAISES + INNER,
        "package/star.py": RAISES,
        "package/dynamic.py": RAISES + "globals()['late'] = 1\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return tmp_path / "script.py"


def read(script: Path, text: str, torch_depth: int | None = None) -> AnnotationFacts:
    path = script.parent / "file.toml"
    path.write_text(text)
    return read_annotations(path, torch_depth, script, sys.executable)


def functions(script: Path, text: str) -> tuple[FunctionAnnotation, ...]:
    facts = read(script, text)
    assert facts.problems == ()
    assert facts.annotations is not None
    return facts.annotations.functions


def problem(script: Path, text: str) -> str:
    told = read(script, text).problems
    assert len(told) == 1
    return told[0].replace(str(script.parent) + "/", "")


def test_all_that_a_file_may_say(script: Path) -> None:
    text = """
    [recorder]
    name = "ocr"
    within = "pipeline"
    [[range]]
    function = "__main__:main"
    name = "pipeline"
    [[batch]]
    function = "package.inner.Model.forward"
    items = "len(images)"
    index = "args[1]"
    [[batch]]
    function = "package.inner:helper"
    items = 4
    loop = true
    """
    facts = read(script, text, torch_depth=2)
    assert facts == AnnotationFacts(
        Annotations(
            (
                FunctionAnnotation("__main__", "main", "pipeline"),
                FunctionAnnotation(
                    "package.inner", "Model.forward", "forward", is_batch=True, items="len(images)", index="args[1]"
                ),
                FunctionAnnotation("package.inner", "helper", "helper", is_batch=True, items=4, loop=True),
            ),
            recorder="ocr",
            within="pipeline",
            torch_depth=2,
        )
    )
    assert facts.annotations is not None
    assert Annotations.from_json(facts.annotations.to_json()) == facts.annotations


@pytest.mark.parametrize(
    ("name", "expected"),
    [("f", "f"), ("Model.forward", "forward"), ("Model.__call__", "Model"), ("__getattr__", "__getattr__")],
)
def test_a_range_is_called_as_its_function(name: str, expected: str) -> None:
    assert default_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "package.inner:Model.__call__",
        "package.inner:conditional",
        "package.inner:assigned",
        "package.inner:Child.forward",
        "package:helper",
        "package:anything_that_the_star_brings",
        "package.dynamic:late",
        "package.inner.Model.forward",
        "math:sqrt",
        "json.decoder.JSONDecoder.decode",
        "os.path:join",
        "ssl:TLSVersion.mro",
        "__main__:Pipeline.read",
        "__main__.main",
    ],
)
def test_names_that_are_there_or_may_come_and_no_module_is_executed_to_know(script: Path, name: str) -> None:
    assert len(functions(script, f'[[range]]\nfunction = "{name}"')) == 1


@pytest.mark.parametrize("module", [argparse, collections, enum, json.decoder, pathlib, threading])
def test_nothing_that_is_there_is_refused(script: Path, module: ModuleType) -> None:
    """Every function and method of a module, found by importing it, is found or left to the run."""
    names = [name for name, value in vars(module).items() if inspect.isroutine(value)]
    for owner in filter(inspect.isclass, vars(module).values()):
        if owner.__module__ == module.__name__:
            kinds = (FunctionType, staticmethod, classmethod, property)
            methods = [name for name in dir(owner) if isinstance(inspect.getattr_static(owner, name), kinds)]
            names += [f"{owner.__qualname__}.{name}" for name in methods]
    assert len(names) > 1
    found = [look_up(f"{module.__name__}:{name}", script) for name in names]
    assert [answer for answer in found if answer.problem] == []


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("package.inner:helpr", "helper"),
        ("package.inner:Model.call", "Model.call"),
        ("package.gone:f", "package.gone"),
        ("gone.inner.f", "gone"),
        ("package.gone.f", "gone.f"),
        ("script:main", "__main__:main"),
        ("package.inner:Model", "class"),
        ("__main__:mian", "main"),
        ("__main__:helper", "helper"),
        ("__main__:Pipeline", "class"),
    ],
)
def test_names_that_are_not_there(script: Path, name: str, named: str) -> None:
    if name == "package.gone.f":
        (script.parent / "package/__init__.py").write_text("")
    assert named in problem(script, f'[[range]]\nfunction = "{name}"')


def test_a_script_that_changes_the_path_may_import_what_is_not_there_yet(script: Path) -> None:
    script.write_text("import sys\nsys.path.append('elsewhere')\n")
    assert len(functions(script, '[[range]]\nfunction = "elsewhere:f"')) == 1
    assert "module:function" in problem(script, '[[range]]\nfunction = "elsewhere.f"')


KEYS = st.sampled_from(
    ["recorder", "range", "batch", "function", "name", "within", "items", "index", "loop", "x"]
) | st.text(max_size=3)
MAIN = 'function = "__main__:main"'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[range]\n", "TOML"),
        ("", "[[range]]"),
        ("[ranges]\nx = 1", "[ranges]"),
        (f"[range]\n{MAIN}", "[range]"),
        (f"[recorder]\nnames = 'a'\n[[range]]\n{MAIN}", "`names`"),
        (f"[recorder]\nname = 3\n[[range]]\n{MAIN}", "`name`"),
        (f"[recorder]\nwithin = 'x'\n[[range]]\n{MAIN}", "'x'"),
        ("[[range]]\nname = 'x'", "`function`"),
        ("[[range]]\nfunction = 'main'", "`function`"),
        ("[[range]]\nfunction = 'a:b c'", "`function`"),
        (f"[[range]]\n{MAIN}\nitems = 3", "`items`"),
        (f"[[range]]\n{MAIN}\ncolour = 'red'", "`colour`"),
        *((f"[[batch]]\n{MAIN}\nitems = {items}", "`items`") for items in ("'len(args['", "-1", "true", "'len(file)'")),
        *((f"[[batch]]\n{MAIN}\nindex = {index}", "`index`") for index in ("'result'", "3")),
        (f"[[batch]]\n{MAIN}\nloop = 1", "`loop`"),
        (f"[[batch]]\n{MAIN}\n[[batch]]\n{MAIN}", "__main__:main"),
        (f"[[range]]\n{MAIN}\nname = 'x'\n[[batch]]\nfunction = '__main__:Pipeline.read'\nname = 'x'", "'x'"),
    ],
)
def test_files_that_are_refused(script: Path, text: str, named: str) -> None:
    assert named in problem(script, text)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["a:b", "args[0]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
@example({"a\nb": 1, "batch": [{"function": "a:b", "c\nd": 1}]})
@example({"range": 3, "recorder": [], "batch": [3]})
@example({"range": [{"function": "a\nb", "name": "\n"}], "batch": [{"function": "a:b", "items": "\n(\n"}]})
def test_whatever_stands_in_a_file_is_told_in_sentences(content: dict[str, Any]) -> None:
    for told in problems_of_form(content):
        assert "\n" not in told


def test_two_ranges_may_share_a_name_that_both_are_given(script: Path) -> None:
    text = f"[[range]]\n{MAIN}\nname = 'x'\n[[range]]\nfunction = '__main__:Pipeline.read'\nname = 'x'"
    assert [function.name for function in functions(script, text)] == ["x", "x"]


def test_without_a_file_only_pytorch_is_annotated(tmp_path: Path) -> None:
    assert read_annotations(None, None, tmp_path, "python") == AnnotationFacts()
    assert read_annotations(None, 0, tmp_path, "python") == AnnotationFacts(Annotations(torch_depth=0))


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("len(args[0])", set()),
        ("len(files) + size", {"files", "size"}),
        ("sum(len(part) for part in files)", {"files"}),
        ("max([1], key=lambda one: one)", set()),
        ("(n := 3) + n", set()),
    ],
)
def test_names_of_an_expression_that_have_to_be_parameters(text: str, parameters: set[str]) -> None:
    assert Expression(text).parameters == parameters
