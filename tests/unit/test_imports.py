"""The import graph: no circles, and no import of the tests. Imports for types, or late, count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Module -> what it imports."""
    modules = {}
    for package in (ROOT / "perfharness", ROOT / "launcher" / "perfharness_launcher"):
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            modules[".".join(part for part in parts if part != "__init__")] = path
    return {name: _imports(path, set(modules)) - {name} for name, path in modules.items()}


def _imports(path: Path, modules: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {node.module}
    return found


def test_there_are_no_circles(graph: dict[str, set[str]]) -> None:
    ours = {name: imported & set(graph) for name, imported in graph.items()}
    TopologicalSorter(ours).prepare()  # raises CycleError, which names the modules


def test_the_wheel_imports_no_test(graph: dict[str, set[str]]) -> None:
    for name, imported in graph.items():
        assert "tests" not in {other.split(".")[0] for other in imported}, name


def test_verbs_start_without_what_only_few_of_them_need() -> None:
    """Half a second of SciPy, imported for a rare figure, made every verb twice as slow to start."""
    program = (
        "import sys\n"
        "from perfharness.cli import analyze, export, launch\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"scipy", "sqlalchemy", "altair", "jinja2"} & set(done.stdout.split())
