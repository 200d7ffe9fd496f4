"""Functions annotated from outside: the ranges that their calls make, and that they behave as before."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import os
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.annotate.main_module import script_compiler
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.watch import apply_to_module
from perfharness.annotate.wrappers import annotate_callable
from perfharness.model.annotations import Annotations, FunctionAnnotation
from perfharness.recorder import journal
from perfharness.tracer.range_log import RangeLog
from tests.unit.recorder_events import read, shown

MODULE = "annotated_module"


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inside a launch, whose journal installs no hooks; the folder."""
    monkeypatch.setenv("PERFHARNESS_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setattr(journal, "_journal", None)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    for module, name in ((os, "_exit"), (os, "execv"), (os, "execve"), (sys, "excepthook")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back behind the test
    return tmp_path


def runtime_of(*functions: FunctionAnnotation, tmp_path: Path | None = None, **options: Any) -> Runtime:
    return Runtime(Annotations(functions, **options), str(tmp_path or "/nowhere"))


def stage(qualname: str = "f", **options: Any) -> FunctionAnnotation:
    return FunctionAnnotation(**{"module": MODULE, "qualname": qualname, "name": qualname, **options})


def batch(qualname: str = "f", **options: Any) -> FunctionAnnotation:
    return stage(qualname, name="batch", is_batch=True, **options)


def annotated(function: Callable[..., Any], annotation: FunctionAnnotation, **options: Any) -> tuple[Any, Runtime]:
    runtime = runtime_of(annotation, **options)
    return annotate_callable(function, runtime.targets[0], runtime), runtime


# ---- kinds of functions ----


def test_a_call_is_a_range_and_the_function_looks_as_before(log: RangeLog) -> None:
    def f(a: int, *, b: int = 2) -> int:
        """Doc."""
        return a + b

    called, runtime = annotated(f, stage())
    assert called(1, b=3) == 4
    assert shown(log) == "f()"
    assert (called.__name__, called.__doc__, inspect.signature(called)) == ("f", "Doc.", inspect.signature(f))
    assert runtime.targets[0].note.recorded


def test_a_call_that_only_finds_the_end_is_no_range_and_one_that_fails_is(log: RangeLog) -> None:
    iterator = iter([1, 2])
    runtime = runtime_of(stage(), batch("g", items=1), stage("h"))
    f, g, h = (
        annotate_callable(function, target, runtime)
        for function, target in zip((lambda: next(iterator), *[lambda: 1 / 0] * 2), runtime.targets, strict=True)
    )
    assert [f(), f()] == [1, 2]
    with pytest.raises(StopIteration):
        f()
    for failing in (g, h):
        with pytest.raises(ZeroDivisionError):
            failing()
    assert shown(log) == "f() f() f() batch=0(!items=1 !delete) h()"


def test_each_step_of_a_generator_is_a_range(log: RangeLog) -> None:
    def f() -> Iterator[Any]:
        got = yield 1
        yield got

    called, _ = annotated(f, stage())
    assert inspect.isgeneratorfunction(called)
    generator = called()
    assert (next(generator), generator.send("sent"), next(generator, "end")) == (1, "sent", "end")
    assert shown(log) == "f() f() f()"


def test_coroutines_and_asynchronous_generators(log: RangeLog) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def steps() -> AsyncIterator[int]:
        yield 1
        yield 2

    runtime = runtime_of(stage("work"), stage("steps"))
    called, stepped = (
        annotate_callable(function, target, runtime)
        for function, target in zip((work, steps), runtime.targets, strict=True)
    )

    async def main() -> tuple[str, list[int]]:
        return await called(), [element async for element in stepped()]

    assert inspect.iscoroutinefunction(called)
    assert asyncio.run(main()) == ("done", [1, 2])
    told = shown(log)
    assert told.count("<work#1") == 1
    assert told.count("<steps#1") == 3


def test_what_can_be_called_but_is_no_function_keeps_all_else(log: RangeLog) -> None:
    @functools.lru_cache
    def f(a: int) -> int:
        return a

    called, _ = annotated(f, stage())
    assert (called(1), called(1), called.cache_info().hits) == (1, 1, 1)
    assert isinstance(called, type(f))
    assert shown(log) == "f() f()"


# ---- batches ----


@pytest.mark.parametrize(
    ("annotation", "drawing", "problem"),
    [
        ({"items": "len(args[0])"}, "batch=0(!items=3)", None),
        ({"items": "len(files)"}, "batch=0(!items=3)", None),
        ({"items": "result"}, "batch=0(!items=3)", None),
        ({"items": "sum(1 for file in files if file != 'b')"}, "batch=0(!items=2)", None),
        ({"items": "self.count('a')"}, "batch=0(!items=1)", None),
        ({"items": "size"}, "batch=0(!items=7)", None),
        ({"items": 8}, "batch=0(!items=8)", None),
        ({"index": "size * 10"}, "batch=70()", None),
        ({"items": "args[5]"}, "batch=0()", "items = 'args[5]': IndexError"),
        ({"items": "1.5"}, "batch=0()", "items = '1.5'"),
        ({"items": "-1"}, "batch=0()", "items = '-1'"),
        ({"index": "nothing"}, "batch=0()", "index = 'nothing': NameError"),
    ],
)
def test_items_and_index_of_a_batch(
    log: RangeLog, annotation: dict[str, Any], drawing: str, problem: str | None
) -> None:
    """What cannot be counted is noted and disturbs nothing."""

    def f(files: list[str], size: int = 7) -> int:
        return len(files)

    called, runtime = annotated(f, batch(**annotation))
    assert called(["a", "b", "c"]) == 3
    assert shown(log) == drawing
    noted = runtime.targets[0].note.items_problem
    assert noted == problem or (noted or "").startswith(problem or "-")


def test_the_body_of_a_loop_is_the_batch(log: RangeLog) -> None:
    closed: list[bool] = []

    def load() -> Iterator[list[int]]:
        inner()
        try:
            yield [1, 2]
            inner()
            yield [3]
        finally:
            closed.append(True)

    runtime = runtime_of(batch("load", loop=True, items="len(result)"), stage("work"), stage("inner"))
    functions: tuple[Callable[..., Any], ...] = (load, lambda _: None, lambda: None)
    batches, work, inner = (
        annotate_callable(function, target, runtime)
        for function, target in zip(functions, runtime.targets, strict=True)
    )
    for element in batches():
        work(element)
    assert shown(log) == "inner() batch=0(work() !items=2) inner() batch=1(work() !items=1)"
    for _ in batches():
        break
    assert closed == [True, True]
    assert shown(log).endswith("batch=2(!items=2)")


# ---- when it is recorded ----


def test_only_within_a_range(log: RangeLog) -> None:
    runtime = runtime_of(stage("pipeline"), stage("work"), within="pipeline")
    work = annotate_callable(lambda: None, runtime.targets[1], runtime)
    pipeline = annotate_callable(lambda: work(), runtime.targets[0], runtime)
    work()
    note = runtime.targets[1].note
    assert (note.called, note.recorded) == (True, False)
    pipeline()
    work()
    assert shown(log) == "pipeline(work())"
    assert note.recorded


def test_the_scripts_own_recorder_is_taken_where_none_is_named(log: RangeLog, launched: Path) -> None:
    perf = PerfRecorder("own")
    called, _ = annotated(lambda: None, stage())
    with perf.range("pipeline"):
        called()
    assert shown(log) == "pipeline(f())"
    assert {attributes.category for attributes in read(log).attributes} <= {"own", None}


# ---- what a range itself calls ----


def test_the_items_are_counted_without_ranges(log: RangeLog) -> None:
    class Batch:
        def __len__(self) -> int:
            return int(count())

    runtime = runtime_of(stage("count"), batch("g", items="len(result)"), batch("h", items="len(one)"))
    count = annotate_callable(lambda: 3, runtime.targets[0], runtime)
    g = annotate_callable(lambda: Batch(), runtime.targets[1], runtime)
    h = annotate_callable(lambda one: len(one), runtime.targets[2], runtime)
    g()
    h(Batch())
    assert shown(log) == "batch=0(!items=3) batch=0(count() !items=3)"


# ---- where it is found ----

SOURCE = """
import functools

class Base:
    def inherited(self): return "inherited"

class Thing(Base):
    def plain(self): return "plain"
    @staticmethod
    def static(): return "static"
    @classmethod
    def of_class(cls): return cls.__name__
    @property
    def value(self): return "value"
    @functools.lru_cache
    def cached(self): return self

if True:
    async def branch(): pass
def f(): return 1
f = [f][0]
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(MODULE)
    exec(compile(SOURCE, "annotated_module.py", "exec"), made.__dict__)
    return made


def test_methods_of_every_kind(log: RangeLog, module: ModuleType) -> None:
    names = ["plain", "static", "of_class", "value", "cached", "inherited"]
    runtime = runtime_of(*(stage(f"Thing.{name}", name=name) for name in names))
    for target in runtime.targets * 2:  # twice, as a reload might
        apply_to_module(module, target, runtime)
    assert [target.note.problem for target in runtime.targets] == [None] * 6
    thing = module.Thing()
    assert [thing.plain(), thing.static(), module.Thing.of_class(), thing.value, thing.cached(), thing.inherited()] == [
        "plain", "static", "Thing", "value", thing, "inherited",
    ]  # fmt: skip
    assert shown(log) == "plain() static() of_class() value() cached() inherited()"
    module.Base().inherited()
    assert shown(log).endswith("inherited()")
    assert shown(log).count("inherited()") == 1


@pytest.mark.parametrize(
    ("qualname", "problem"),
    [
        ("gone", "gone"),
        ("Thing.gone", "gone"),
        ("Gone.method", "Gone"),
        ("Thing", "class"),
        ("number", "int"),
    ],
)
def test_what_cannot_be_annotated_is_noted(module: ModuleType, qualname: str, problem: str) -> None:
    runtime = runtime_of(stage(qualname))
    apply_to_module(module, runtime.targets[0], runtime)
    note = runtime.targets[0].note
    assert (note.imported, note.found) == (True, False)
    assert problem in (note.problem or "")


def test_functions_of_c_modules_are_what_they_were(log: RangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    import math

    monkeypatch.setattr(math, "sqrt", math.sqrt)  # put back at the end
    runtime = runtime_of(stage("sqrt", module="math"))
    apply_to_module(math, runtime.targets[0], runtime)
    assert math.sqrt(4) == 2
    assert inspect.isbuiltin(math.sqrt)
    assert pickle.loads(pickle.dumps(math.sqrt)) is math.sqrt
    assert shown(log) == "sqrt()"


def test_a_function_is_annotated_once_whatever_it_is_called(module: ModuleType) -> None:
    runtime = runtime_of(stage("Base.inherited"), stage("Thing.inherited"))
    for target in runtime.targets:
        apply_to_module(module, target, runtime)
    assert "annotated_module:Base.inherited" in (runtime.targets[1].note.problem or "")


def test_functions_of_the_script_itself(log: RangeLog, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"{SOURCE}\nprint(Thing.static(), Thing().value, f.__code__.co_firstlineno)\nraise ValueError('here')"
    names = ["Thing.static", "Thing.value", "f", "branch", "gone"]
    runtime = runtime_of(*(stage(name, module="__main__") for name in names))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with pytest.raises(ValueError, match="here") as caught:
        exec(script_compiler(runtime)(source.encode(), "script.py"), namespace)
    assert caught.traceback[-1].lineno == source.count("\n")
    assert capsys.readouterr().out.startswith("static value")
    assert shown(log) == "Thing.static() Thing.value()"
    assert not [name for name in namespace if "perfharness" in name]
    assert [target.note.found for target in runtime.targets] == [True, True, True, True, False]
    assert inspect.unwrap(namespace["f"]).__code__.co_firstlineno == SOURCE[: SOURCE.index("def f()")].count("\n") + 1
