"""What is installed: commands in messages and pages name extras that exist; the recorder needs nvtx alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nvtx
import pytest

from perfharness.distribution import DISTRIBUTION, install_command
from perfharness_launcher.options import LaunchOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]


def named_extras() -> set[str]:
    found: set[str] = set()
    for folder, pattern in (("perfharness", "*.py"), ("launcher", "*.py"), ("docs", "*.md")):
        for path in (CHECKOUT / folder).rglob(pattern):
            text = path.read_text("utf-8")
            assert not re.search(r"perfharness\[\w", text), f"{path} names the package of another project"
            calls = re.findall(r"install_command\([\"']([\w,-]+)", text)
            calls += re.findall(re.escape(DISTRIBUTION) + r"\[([\w,-]+)\]", text)
            found.update(extra for call in calls for extra in call.split(","))
    return found


def test_messages_name_the_package_by_its_name_on_the_index_and_extras_that_it_has() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    named = named_extras()
    assert len(named) >= 10
    assert named <= set(PROJECT["optional-dependencies"])
    assert install_command("load") == f"pip install '{DISTRIBUTION}[load]'"


def test_a_recorder_needs_no_package_but_nvtx(tmp_path: Path) -> None:
    """As after `pip install --no-deps perfharness-nvtx nvtx`."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "sys.path += sys.argv[1:]\n"
        "from perfharness import PerfRecorder\n"
        "perf = PerfRecorder('alone')\n"
        "with perf.range('pipeline'):\n"
        "    for _ in perf.batches(range(2), items=1):\n"
        "        with perf.range('stage'):\n"
        "            pass\n"
        "perf.finalize()\n"
    )
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "nvtx").symlink_to(Path(nvtx.__file__).parent)
    subprocess.run([sys.executable, "-I", "-S", script, packages, CHECKOUT], check=True, timeout=60)


@pytest.mark.parametrize("receipt", ["uv-receipt.toml", "pipx_metadata.json"])
def test_a_tool_of_uv_or_pipx_runs_scripts_with_the_first_python_on_path(
    receipt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert LaunchOptions(script="app.py").python == sys.executable
    (tmp_path / receipt).touch()
    assert LaunchOptions(script="app.py").python == str(python)
    python.unlink()
    assert LaunchOptions(script="app.py").python == sys.executable
