"""Annotation from a file: the ranges that it makes, what it refuses, and that the script is as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.model.annotations import Annotations, FunctionAnnotation
from tests.integration.launches import environment, in_a_launch, manifest, read, run_to_the_end, tracing

Tree = dict[str, Any]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def launch(folder: Path, *arguments: str, tracer: str = "embedded") -> subprocess.CompletedProcess[str]:
    options, sites = tracing(tracer)
    return run_to_the_end(("-w", "0", "-o", "out", *options, *arguments), environment(*sites), folder)


def findings(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in manifest(folder / "out")["findings"]:
        found.setdefault(one["code"], []).append(one["message"])
    found.pop("tracer-restarted", None)  # one in a hundred nsys fails to start on a busy machine
    return found


def shape(tree: Tree) -> Tree:
    """Nesting, counts and items of a tree of ranges; a range that occurs once and has no items is its children."""
    kept: Tree = {key: tree[key] for key in ("count", "total_items") if key in tree}
    kept = {} if kept == {"count": 1} else kept
    return {**kept, **{name: shape(value) for name, value in tree.items() if isinstance(value, dict)}}


# ---- every kind of function, of PyTorch module and of collective, in one launch ----

LIBRARY = """
import asyncio, functools
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
class Numbers:
    def __init__(self, last): self.last, self.at = last, 0
    def __iter__(self): return self
    def __next__(self):
        self.at += 1
        if self.at > self.last: raise StopIteration
        return self.at
@functools.lru_cache
def cached(): return 1
number = 3
def late(): return 1
def load(n): return list(range(n))
def fails(n): return 1 / n
def batch_of(files, size=7): return len(files)
def batches():
    yield [1, 2]
    yield [3]
def steps():
    got = yield 1
    yield got
async def coroutine():
    await asyncio.sleep(0)
    return "done"
async def elements():
    yield 1
    yield 2
def never(): pass
"""

TORCH = """
before, after = [], []
def register_module_forward_pre_hook(hook): before.append(hook)
def register_module_forward_hook(hook, always_call): after.append(hook)
class Module:
    def __init__(self, **children): self.children = children
    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)
    def __call__(self, x):
        for hook in before: hook(self, (x,))
        try:
            if x is None and not self.children: raise ValueError("nothing")
            for child in self.children.values(): child(x)
        finally:
            for hook in after: hook(self, (x,), None)
class Net(Module): pass
"""
"""As much of PyTorch as the annotations see."""

DISTRIBUTED = """
class Work:
    def wait(self): return True
class Group:
    def __init__(self, *ranks): self.ranks = ranks
def get_process_group_ranks(group): return group.ranks
def get_world_size(): return 4
def all_reduce(tensor, op="sum", group=None, async_op=False):
    if not tensor: raise ValueError("nothing to reduce")
    return Work() if async_op else None
def all_gather_object(values): all_reduce(values)
"""

SCRIPT = """
import asyncio, math
import library
from library import Numbers, Thing, batch_of, load, steps
from torch.distributed import distributed_c10d as dist
from torch.nn.modules.module import Module, Net

def expect(error, function, *args):
    try: function(*args)
    except error: return
    raise SystemExit(f"{function} did not raise")

async def tasks():
    assert await library.coroutine() == "done"
    assert [one async for one in library.elements()] == [1, 2]

def outside():
    load(1)

def kinds():
    thing = Thing()
    assert [thing.plain(), thing.static(), Thing.of_class(), thing.value, thing.inherited()] == [
        "plain", "static", "Thing", "value", "inherited"]
    assert math.sqrt(4) == 2
    generator = steps()
    assert (next(generator), generator.send("sent"), next(generator, "end")) == (1, "sent", "end")
    asyncio.run(tasks())
    expect(ZeroDivisionError, library.fails, 0)
    assert library.cached() == 1

def numbers():
    for one in library.batches(): load(one[0])
    assert list(Numbers(2)) == [1, 2]
    for files in (["a", "b"], [], 3): expect(TypeError, batch_of, 3) if files == 3 else batch_of(files)

def model():
    net = Net(stem=Module(), blocks=Module(a=Module(deep=Module()), b=Module()))
    net(1)
    expect(ValueError, net, None)

def collectives():
    dist.all_reduce([1]), dist.all_reduce([1], group=dist.Group(0, 1, 2, 3))
    dist.all_reduce([1], "x", dist.Group(3, 1))
    dist.all_reduce([1], async_op=True).wait()
    dist.all_gather_object([1])
    expect(ValueError, dist.all_reduce, [])

def main(): kinds(), numbers(), model(), collectives()

outside()
main()
outside()
"""

NAMES = ("plain", "static", "of_class", "value", "inherited")
ANNOTATIONS = "\n".join(
    [
        "[recorder]\nname = 'kinds'\nwithin = 'main'",
        *(f"[[range]]\nfunction = 'library:Thing.{name}'" for name in NAMES),
        *(f"[[range]]\nfunction = '__main__:{name}'" for name in ("main", "kinds", "numbers", "model", "collectives")),
        *(f"[[range]]\nfunction = 'library:{name}'" for name in ("steps", "coroutine", "elements", "fails", "cached")),
        *(f"[[range]]\nfunction = 'library.{name}'" for name in ("load", "never")),
        "[[range]]\nfunction = 'math:sqrt'",
        "[[batch]]\nfunction = 'library:batches'\nname = 'element'\nloop = true\nitems = 'len(result)'",
        "[[batch]]\nfunction = 'library:Numbers.__next__'\nname = 'next'\nitems = 'result'\nindex = 'self.at'",
        "[[batch]]\nfunction = 'library:batch_of'\nitems = 'len(files)'\nindex = 'size * 10 + len(args[0])'",
    ]
)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    write(
        folder,
        {
            "library.py": LIBRARY,
            "script.py": SCRIPT,
            "file.toml": ANNOTATIONS,
            "torch/__init__.py": "",
            "torch/nn/__init__.py": "",
            "torch/nn/modules/__init__.py": "",
            "torch/nn/modules/module.py": TORCH,
            "torch/distributed/__init__.py": "",
            "torch/distributed/distributed_c10d.py": DISTRIBUTED,
        },
    )
    options = ("--annotate", "file.toml", "--annotate-torch", "2", "--annotate-collectives")
    done = launch(folder, *options, "script.py")
    assert (folder / "out/proc_0_gpu_0/stderr.log").read_text() == ""
    assert done.returncode == 3, done.stderr  # a function could not be annotated
    return folder


STAGES: dict[str, Tree] = {
    "kinds": {
        **{name: {} for name in NAMES},
        "sqrt": {},
        "steps": {"count": 3},
        "fails": {},
    },
    "numbers": {
        "count": 1,
        "total_items": 8,
        "element_0": {"count": 1, "total_items": 2, "load": {}},
        "element_1": {"count": 1, "total_items": 1, "load": {}},
        "next_0": {"count": 1, "total_items": 1},
        "next_1": {"count": 1, "total_items": 2},
        "batch_of_72": {"count": 1, "total_items": 2},
        "batch_of_70": {"count": 1, "total_items": 0},
    },
    "model": {"Net": {"count": 2, "stem": {"count": 2}, "blocks": {"blocks.a": {}, "blocks.b": {}}}},
    "collectives": {
        "all_reduce": {"count": 3},
        "all_reduce (ranks 1,3)": {},
        "all_reduce (async)": {},
        "wait (async)": {},
        "all_gather_object": {},
    },
}


@pytest.mark.parametrize("stage", STAGES)
def test_calls_are_ranges_and_batches(kinds: Path, stage: str) -> None:
    """Only within `main`; a call that fails is a range; a batch that fails, or only finds the end, is none."""
    data = read(kinds / "out", "proc_0_gpu_0/benchmark.json")["data"]["kinds"]
    assert shape(data["main"][stage]) == STAGES[stage]
    assert set(data) == {"main", "coroutine", "elements"}  # those of tasks are not inside
    assert shape(data["elements"]) == {"count": 3}


def test_what_only_the_run_can_miss_is_a_finding(kinds: Path) -> None:
    found = findings(kinds)
    expected = {
        "annotation-not-found": ["library:cached"],
        "annotation-never-called": ["library:never"],
        "annotation-items-failed": ["library:batch_of"],
    }
    for code, names in expected.items():
        assert sorted(message.split()[0] for message in found.pop(code)) == names
    assert not {code for code in found if code.startswith("annotation")}
    (recorder,) = read(kinds / "out", "proc_0_gpu_0/recorder.json")["recorders"]
    assert (recorder["name"], recorder["finalized"], recorder["open_ranges"]) == ("kinds", True, [])


# ---- in other processes, and under nsys ----

PIPELINE = """
import library, multiprocessing as mp, os, subprocess, sys
def step(n):
    return library.load(n)
if __name__ == "__main__":
    for n in (4, 2, 3) if len(sys.argv) == 1 else (5,): step(n)
    if "proc_1" in os.environ["PERFHARNESS_OUTPUT_DIR"]:
        os._exit(0)
    if len(sys.argv) == 1:
        subprocess.run([sys.executable, __file__, "child"], check=True)
        for way in ("fork", "spawn"):
            worker = mp.get_context(way).Process(target=step, args=(1,))
            worker.start(), worker.join()
"""
STEPS = "[[batch]]\nfunction = '__main__:step'\nitems = 'len(result)'\n[[range]]\nfunction = 'library.load'\n"


@pytest.mark.parametrize("tracer", ["embedded", pytest.param("nsys", marks=[pytest.mark.slow, pytest.mark.nsys])])
def test_functions_of_the_script_in_all_its_processes(tmp_path: Path, tracer: str) -> None:
    """The second process leaves without its exit functions, so that its notes are missing."""
    files = {"library.py": LIBRARY, "script.py": PIPELINE, "file.toml": STEPS}
    write(tmp_path, files)
    done = launch(tmp_path, "-np", "2", "--annotate", "file.toml", "script.py", tracer=tracer)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: (tmp_path / name).read_text() for name in files} == files
    assert set(findings(tmp_path)) == {"annotations-not-reported"}
    counts = []
    for process in manifest(tmp_path / "out")["processes"]:
        for one in process["measured"]:
            (recorder,) = read(tmp_path / "out", f"{one['folder']}/recorder.json")["recorders"]
            counts.append((recorder["ranges"], recorder["batches"], recorder["items"]))
    assert counts == [(6, 3, 9), (2, 1, 5), (2, 1, 1), (2, 1, 1), (6, 3, 9)]


# ---- what is refused before anything starts ----

MAIN = "function = '__main__:step'"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"library.py": LIBRARY, "script.py": PIPELINE, "file.toml": STEPS, "package/__init__.py": ""}
    write(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[range]\n", "TOML"),
        ("", "[[range]]"),
        ("[ranges]\nx = 1", "ranges"),
        (f"[range]\n{MAIN}", "[[range]]"),
        (f"[recorder]\nnames = 'a'\n[[range]]\n{MAIN}", "`names`"),
        (f"[recorder]\nname = 3\n[[range]]\n{MAIN}", "`name`"),
        (f"[recorder]\nwithin = 'x'\n[[range]]\n{MAIN}", "'x'"),
        ("[[range]]\nname = 'x'", "`function`"),
        ("[[range]]\nfunction = 'main'", "`function`"),
        ("[[range]]\nfunction = 'a:b c'", "`function`"),
        (f"[[range]]\n{MAIN}\nitems = 3", "`items`"),
        (f"[[range]]\n{MAIN}\n\"a\\nb\" = 1", "a"),
        *((f"[[batch]]\n{MAIN}\nitems = {items}", "`items`") for items in ("'len(args['", "-1", "true")),
        *((f"[[batch]]\n{MAIN}\nindex = {index}", "`index`") for index in ("'result'", "3")),
        (f"[[batch]]\n{MAIN}\nloop = 1", "`loop`"),
        (f"[[batch]]\n{MAIN}\n[[batch]]\n{MAIN}", "twice"),
        (f"[[range]]\n{MAIN}\nname = 'x'\n[[batch]]\nfunction = 'library:load'\nname = 'x'", "'x'"),
        *((f"[[range]]\nfunction = '{module}:dumps'", module) for module in ("json", "os", "time", "gc")),
        ("[[range]]\nfunction = 'library:lode'", "load?"),
        ("[[range]]\nfunction = 'library:Thing'", "class"),
        ("[[range]]\nfunction = 'library:Base.gone'", "Base.gone"),
        ("[[range]]\nfunction = 'librari:load'", "librari"),
        ("[[range]]\nfunction = 'package.gone.f'", "gone.f"),
        ("[[range]]\nfunction = 'package.gone:f'", "package.gone"),
        ("[[range]]\nfunction = 'script:step'", "__main__:step"),
        ("[[range]]\nfunction = '__main__:stepp'", "step?"),
        ("[[range]]\nfunction = '__main__:mp'", "mp"),
    ],
)  # fmt: skip
def test_a_file_that_is_refused(project: Path, text: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, {"file.toml": text})
    assert run(["launch", "--tracer", "embedded", "-o", "out", "--annotate", "file.toml", "script.py"]) == 2
    printed = capsys.readouterr().err
    assert named in printed
    assert "Traceback" not in printed
    assert not (project / "out").exists()


def test_names_that_may_come_are_left_to_the_run(project: Path) -> None:
    """No module is executed to know."""
    names = (
        "package:helper", "package:from_the_star", "package.inner:Child.forward", "package.inner.assigned",
        "package.inner:conditional", "package.dynamic:late", "math:sqrt", "ssl:TLSVersion.mro", "elsewhere:f",
    )  # fmt: skip
    inner = "class Child(Model): pass\nassigned = helper\nif True:\n    def conditional(): pass\n"
    write(
        project,
        {
            "package/__init__.py": "raise SystemExit\nfrom .inner import helper\nfrom .star import *\n",
            "package/inner.py": "raise SystemExit\nfrom .base import Model, helper\n" + inner,
            "package/dynamic.py": "globals()['late'] = 1\n",
            "script.py": "import sys\nsys.path.append('elsewhere')\n",
            "file.toml": "".join(f"[[range]]\nfunction = '{name}'\n" for name in names),
        },
    )
    assert run(["launch", "--tracer", "embedded", "--dry-run", "--annotate", "file.toml", "script.py"]) == 0


# ---- the script is as it was ----

SAME = """'Doc.'
from __future__ import annotations
import atexit, importlib, inspect, json.decoder, pickle, pkgutil, sys
import library
from math import sqrt

def f(): return 42
class A: ...
x: no = 3

print(sys.argv, sys.path[:1], __name__, __file__, __package__, __doc__, __annotations__)
print(sorted(name for name in globals() if name != "__annotations__"))
print(f(), inspect.getsource(f), inspect.signature(f), f.__qualname__)
print([pickle.loads(pickle.dumps(one)) is one for one in (A, f, sqrt)], sqrt(4))
print(type(library.__loader__), type(json.decoder.__spec__.loader), len(pkgutil.get_data("library", "library.py")))
print(importlib.reload(library).load(2), library.__spec__.loader is library.__loader__)
atexit.register(print, "bye")
sys.exit("told")
"""


def plain_and_annotated(folder: Path, *words: str) -> list[subprocess.CompletedProcess[str]]:
    targets = [("__main__", "f"), ("library", "load"), ("math", "sqrt")]
    asked = Annotations(tuple(FunctionAnnotation(module, name, name) for module, name in targets)).to_json()
    environs = environment(), in_a_launch(folder, "none", PERFHARNESS_ANNOTATIONS=asked)
    command = [sys.executable, *words, "one", "--two"]
    return [
        subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
        for environ in environs
    ]


@pytest.mark.parametrize("words", [("script.py",), ("-m", "script")], ids=["file", "module"])
def test_same_output_and_exit_code(tmp_path: Path, words: tuple[str, ...]) -> None:
    write(tmp_path, {"library.py": LIBRARY, "script.py": SAME})
    plain, annotated = plain_and_annotated(tmp_path, *words)
    assert (plain.stderr, plain.returncode) == ("told\n", 1)
    assert (annotated.stdout, annotated.stderr, annotated.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    assert list(tmp_path.glob("annotations_*.json"))


@pytest.mark.parametrize("source", ["def f(): ...\n1 / 0", "f(1", "def f(): ...\nraise KeyboardInterrupt"])
def test_a_traceback_ends_in_the_script(tmp_path: Path, source: str) -> None:
    """Frames of `runpy` are above it, where functions of the script are named."""
    write(tmp_path, {"script.py": source})
    plain, annotated = plain_and_annotated(tmp_path, "script.py")
    assert annotated.returncode == plain.returncode
    assert annotated.stderr.endswith(plain.stderr.removeprefix("Traceback (most recent call last):\n"))
