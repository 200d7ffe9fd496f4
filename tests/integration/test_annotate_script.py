"""A script that is annotated from outside is the script under Python, and its ranges are those of the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.model.annotations import Annotations, FunctionAnnotation
from tests.integration.launches import NSYS, NVTX_SITE, run_to_the_end

CHECKOUT = Path(__file__).resolve().parents[2]
EMBEDDED = ("--tracer", "embedded")

LIBRARY = """
def load(n): return list(range(n))
class Model:
    def __init__(self, scale): self.scale = scale
    def __call__(self, items): return [item * self.scale for item in items]
def fails(items): raise ValueError("no such item")
def never(): pass
"""

PIPELINE = """
import sys
import library
from library import Model

def pipeline(model):
    for n in (4, 2, 3):
        step(model, n)

def step(model, n):
    items = library.load(n)
    return model(items)

model = Model(3)
model([1])
pipeline(model)
if "fail" in sys.argv:
    library.fails([])
"""

ANNOTATIONS = """
[recorder]
name = "pipe"
within = "pipeline"
[[range]]
function = "__main__:pipeline"
[[batch]]
function = "__main__:step"
items = "len(result)"
[[range]]
function = "library.load"
[[range]]
function = "library:Model.__call__"
name = "model"
"""


@dataclass(frozen=True)
class Workshop:
    """A folder with a script, a package and a file of annotations."""

    folder: Path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PERFHARNESS_")}
        path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "launcher"), os.environ.get("PYTHONPATH", "")])
        own = {"PERFHARNESS_HISTORY": "off", "PYTHONPATH": path.rstrip(os.pathsep), "COLUMNS": "200"}
        return {**kept, **own, **more}

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def launch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_to_the_end(("-w", "0", "-o", "out", *arguments), self.environment(), self.folder)

    def read(self, name: str) -> Any:
        return json.loads((self.folder / "out" / name).read_text())

    def findings(self) -> dict[str, str]:
        """Without that one in a hundred nsys fails to start on a busy machine, and is started again."""
        found = {finding["code"]: finding["message"] for finding in self.read("manifest.json")["findings"]}
        found.pop("tracer-restarted", None)
        return found


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    made = Workshop(tmp_path)
    made.write("library.py", LIBRARY)
    made.write("script.py", PIPELINE)
    made.write("file.toml", ANNOTATIONS)
    return made


def shape(tree: dict[str, Any]) -> dict[str, Any]:
    """Names, nesting, counts and items of a tree of ranges."""
    kept: dict[str, Any] = {key: tree[key] for key in ("count", "total_items") if key in tree}
    return {**kept, **{name: shape(value) for name, value in tree.items() if isinstance(value, dict)}}


def check_pipeline(workshop: Workshop) -> None:
    stages: dict[str, Any] = {"load": {"count": 1}, "model": {"count": 1}}
    batches = {f"step_{index}": {"count": 1, "total_items": n, **stages} for index, n in enumerate((4, 2, 3))}
    expected = {"pipe": {"pipeline": {"count": 1, "total_items": 9, **batches}}}
    assert shape(workshop.read("proc_0_gpu_0/benchmark.json")["data"]) == expected
    assert workshop.findings() == {}


def test_stages_batches_and_items_under_the_embedded_tracer(workshop: Workshop) -> None:
    before = {path.name: path.read_bytes() for path in workshop.folder.iterdir()}
    done = workshop.launch(*EMBEDDED, "--annotate", "file.toml", "script.py")
    assert done.returncode == 0, done.stderr
    check_pipeline(workshop)
    assert {name: (workshop.folder / name).read_bytes() for name in before} == before
    journal = workshop.read("proc_0_gpu_0/recorder.json")
    assert journal["ended"] == "finalized"
    (recorder,) = journal["recorders"]
    counts = {"name": "pipe", "ranges": 10, "batches": 3, "items": 9, "finalized": True}
    assert {key: recorder[key] for key in counts} == counts


@pytest.mark.slow
@pytest.mark.nsys
def test_the_same_under_nsys(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", NVTX_SITE)
    done = workshop.launch("--tracer", "nsys", "--nsys", NSYS, "--annotate", "file.toml", "script.py")
    assert done.returncode == 0, done.stdout + done.stderr
    check_pipeline(workshop)


# ---- what goes wrong ----


def annotate(workshop: Workshop, *functions: str, batch: str = "") -> None:
    ranges = "".join(f'[[range]]\nfunction = "{function}"\n' for function in functions)
    workshop.write("file.toml", ranges + batch)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--annotate", "file.toml", "script.py"), ("library:lode", "load?", "librari")),
        (("--annotate", "file.toml", "ls"), ("ls",)),
        (("--annotate-torch", "-1", "script.py"), ("--annotate-torch -1",)),
    ],
)
def test_what_cannot_be_annotated_is_named_before_anything_starts(
    workshop: Workshop,
    options: tuple[str, ...],
    named: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    annotate(workshop, "library:lode", "librari:load")
    monkeypatch.chdir(workshop.folder)
    assert run(["launch", *EMBEDDED, "-o", "out", *options]) == 2
    said = capsys.readouterr().err
    assert [name for name in named if name not in said] == []
    assert not (workshop.folder / "out").exists()


def test_what_only_the_run_can_miss_is_a_finding(workshop: Workshop) -> None:
    """A name that may have been made by code, functions that are never called, and items that cannot be counted."""
    workshop.write("library.py", LIBRARY + "globals()['late'] = load\n")
    workshop.write("script.py", f"{PIPELINE}\nif model is None:\n    def elsewhere(): pass\n")
    never = ("library:never", "json.tool:main", "__main__:elsewhere")
    annotate(workshop, "library:lode", *never, batch='[[batch]]\nfunction = "library:load"\nitems = "len(n)"')
    done = workshop.launch(*EMBEDDED, "--annotate", "file.toml", "script.py")
    assert done.returncode == 3
    found = workshop.findings()
    assert "library:lode" in found["annotation-not-found"]
    assert "len(n)" in found["annotation-items-failed"]
    messages = [finding["message"] for finding in workshop.read("manifest.json")["findings"]]
    assert [one for one in never if not any(message.startswith(one) for message in messages)] == []


def test_a_script_that_fails_fails_as_before(workshop: Workshop) -> None:
    annotate(workshop, "library:load", "library:fails")
    done = workshop.launch(*EMBEDDED, "--annotate", "file.toml", "script.py", "fail")
    assert done.returncode == 1
    assert "no such item" in workshop.findings()["process-failed"]
    assert "annotation-not-found" not in workshop.findings()


FORKS = """
import library, multiprocessing
child = multiprocessing.get_context('fork').Process(target=library.load, args=(3,))
child.start()
child.join()
"""


@pytest.mark.parametrize(
    ("source", "codes"),
    [("import os, library\nlibrary.load(3)\nos._exit(0)", {"annotations-not-told"}), (FORKS, set())],
)
def test_calls_of_processes_that_leave_without_a_word_or_are_forked(
    workshop: Workshop, source: str, codes: set[str]
) -> None:
    workshop.write("script.py", source)
    annotate(workshop, "library:load")
    workshop.launch("--tracer", "none", "--annotate", "file.toml", "script.py")
    assert set(workshop.findings()) >= codes
    assert codes or not workshop.findings()


# ---- the script is as it was ----


@pytest.mark.parametrize(
    "source",
    [
        "import sys; print(sys.argv, sys.path[:1], __name__, __file__, __spec__, __package__, __doc__)",
        "'''Doc.'''\nprint(__doc__, sorted(name for name in globals() if name != '__annotations__'))",
        "from __future__ import annotations\nx: no = 3\nprint(__annotations__)",
        "def g():\n    raise ValueError('wrong')\ng()",
        "def f():\n    raise ValueError('wrong')\nf()",
        "f(1",
        "import atexit\natexit.register(print, 'bye')\nf()\n1 / 0",
        "class A: ...\nfrom pickle import dumps, loads; print(type(loads(dumps(A()))) is A, loads(dumps(f)) is f)",
        "import inspect; print(inspect.getsource(f), inspect.signature(f), f.__qualname__)",
        "import library, json.decoder as d; print(type(library.__loader__), type(d.__spec__.loader))",
        "import importlib, library as m\nprint(importlib.reload(m).load(2), m.__spec__.loader is m.__loader__)",
        "import pkgutil; print(len(pkgutil.get_data('library', 'library.py')))",
    ],
)  # fmt: skip
def test_same_output_and_exit_code(workshop: Workshop, source: str) -> None:
    """But for our frame in a traceback, where a call went through it."""
    define = "def f(): return 42\n" if not source.startswith(("'''", "from __future__", "def f")) else ""
    workshop.write("script.py", define + source)
    targets = [("__main__", "f"), ("library", "load"), ("json.decoder", "JSONDecoder.decode")]
    annotations = Annotations(tuple(FunctionAnnotation(module, name, name) for module, name in targets))
    plain = workshop.run("script.py", "one", "--two")
    ours = workshop.run(
        "-m", "perfharness.annotate", "script.py", "one", "--two",
        PERFHARNESS_ANNOTATIONS=annotations.to_json(), PERFHARNESS_OUTPUT_DIR=str(workshop.folder),
    )  # fmt: skip
    if source.startswith("def f"):
        frames = [line.split('"')[1] for line in ours.stderr.splitlines() if line.startswith("  File")]
        assert [Path(frame).name for frame in frames] == ["script.py", "wrappers.py", "script.py"]
    else:
        assert ours.stderr == plain.stderr
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)
    assert (workshop.folder / "annotations.json").exists()
