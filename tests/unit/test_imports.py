"""The import graph: no circles, and no import of the tests. Imports for types, or late, count too."""

from __future__ import annotations

import ast
import shutil
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


RARE = {"altair", "asyncio", "jinja2", "pyarrow.compute", "pyarrow.dataset", "scipy", "sqlalchemy"}
OTHER_RESULTS = {"perfharness.bench", "perfharness.load", "perfharness.model.bench", "perfharness.model.load"} | {
    f"perfharness.analysis.{name}" for name in ("comparison", "load", "slowest", "suites")
}
COMMANDS = {
    "--version": RARE | OTHER_RESULTS | {"numpy", "perfharness.runs", "perfharness_launcher", "pyarrow"},
    "launch --dry-run script.py": RARE
    | OTHER_RESULTS
    | {"perfharness.analysis", "perfharness.runs.history", "perfharness.trace", "pyarrow"},
    "analyze RUN": RARE | OTHER_RESULTS | {"perfharness.analysis.ranks", "perfharness.runs.series"},
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_import_nothing_that_they_do_not_use(command: str, tmp_path: Path) -> None:
    """Imports are most of the CPU time of a short command."""
    shutil.copytree(ROOT / "tests/golden/runs/two_processes", tmp_path / "RUN")
    (tmp_path / "script.py").touch()
    program = (
        "import sys\nfrom perfharness.cli.main import run\nrun(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command.split()], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert {"perfharness.cli.main"} <= loaded
    assert not {name for name in loaded if any(f"{name}.".startswith(f"{one}.") for one in COMMANDS[command])}
