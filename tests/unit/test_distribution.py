"""Every install command that a message or a page names installs this package, with an extra that there is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from perfharness.model.distribution import DISTRIBUTION, install_command

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
    assert install_command("plots") == f"pip install '{DISTRIBUTION}[plots]'"
