"""What `import perfharness` offers, and that type checkers know all of it."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

import perfharness
from perfharness.distribution import VERSION
from perfharness.load.mlperf import MlperfSettings
from perfharness.model.settings import options_of
from perfharness_launcher.options import LaunchOptions

STUB = ast.parse(Path(perfharness.__file__).with_suffix(".pyi").read_text())
MISSPELT = """
import perfharness

perfharness.launch("app.py", num_proceses=2)
perfharness.stress("app.py:answer", duration_s="long")
perfharness.run_mlperf("net.onnx", scenario="Online")
perfharness.compare("old", "new", min_efect=0.1)
"""


def fields_of(name: str) -> set[str]:
    """The keys of a TypedDict of the stub."""
    (found,) = (one for one in STUB.body if isinstance(one, ast.ClassDef) and one.name == name)
    return {one.target.id for one in found.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("LaunchSettings", options_of(LaunchOptions)),
        ("MlperfOptions", options_of(MlperfSettings)),
    ],
)
def test_the_types_have_every_setting(name: str, settings: Collection[str]) -> None:
    assert fields_of(name) == set(settings)


def test_every_name_is_there_and_typed() -> None:
    (names,) = (
        ast.literal_eval(one.value)
        for one in STUB.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
    )
    assert sorted(perfharness.__all__) == names
    assert all(callable(getattr(perfharness, name)) for name in names)
    assert perfharness.__version__ == VERSION


@pytest.mark.slow
def test_a_type_checker_finds_wrong_settings(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    (tmp_path / "app.py").write_text(MISSPELT)
    out, _, status = mypy.run([str(tmp_path / "app.py"), "--follow-imports=silent", f"--cache-dir={tmp_path}"])
    assert status == 1
    assert [int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line] == [4, 5, 6, 7]
