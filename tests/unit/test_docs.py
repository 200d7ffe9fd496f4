"""The documentation names what there is: links, commands, options and fields exist, and code names pages that exist."""

from __future__ import annotations

import ast
import re
import shlex
import unicodedata
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from perfharness.analysis.diagnosis.causes import THRESHOLDS
from perfharness.cli.main import run
from perfharness.model import environment
from perfharness.model.telemetry import CLOCK_EVENT_REASONS
from perfharness.render.schemas import json_schema

CHECKOUT = Path(__file__).parents[2]
PAGES = [
    *sorted(CHECKOUT.glob("*.md")),
    *sorted((CHECKOUT / "docs").rglob("*.md")),
    CHECKOUT / "perfharness" / "programs.md",
    CHECKOUT / "samples" / "README.md",
]
EXAMPLES = CHECKOUT / "docs" / "examples"
MANIFESTS = sorted(EXAMPLES.rglob("*.yaml"))
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]+)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {"#" + slug(heading) for heading in headings}


def slug(heading: str) -> str:
    kept = (c for c in heading.lower().strip() if c in " -_" or unicodedata.category(c)[0] in "LN")
    return "".join(kept).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{target} does not exist"
        assert linked.is_relative_to(CHECKOUT), target
        if anchor:
            assert anchor in anchors(linked), f"{target}{anchor}: no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    found: set[Path] = set()
    waiting = [CHECKOUT / "README.md"]
    while waiting:
        page = waiting.pop()
        found.add(page)
        linked = {(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text("utf-8")) if target}
        waiting += [path for path in linked if path.suffix == ".md" and path not in found]
    assert set(PAGES) <= found


def test_pages_that_the_code_names_exist() -> None:
    named: set[str] = set()
    for folder in ("perfharness", "launcher", "scripts", "samples", "tests"):
        for path in (CHECKOUT / folder).rglob("*"):
            if path.is_file() and path.suffix in ("", ".py", ".md", ".sh", ".toml"):
                named |= set(re.findall(r"docs/[\w/-]+\.(?:md|json)", path.read_text("utf-8")))
    assert len(named) > 10
    assert not [name for name in named if not (CHECKOUT / name).is_file()]


def test_files_that_pages_name_exist() -> None:
    """A path in backticks that starts in the checkout; `*` stands for any name, `NAME` for one to choose."""
    named: set[str] = set()
    for page in PAGES:
        named |= set(
            re.findall(r"`((?:perfharness|launcher|scripts|tests|samples)/[\w./*-]+)", page.read_text("utf-8"))
        )
    assert len(named) > 50
    assert not [name for name in named if "NAME" not in name and not any(CHECKOUT.glob(name.rstrip("/.")))]


def test_modules_that_pages_and_code_run_exist() -> None:
    named: set[str] = set()
    for path in (*PAGES, *(CHECKOUT / "perfharness").rglob("*.py"), *(CHECKOUT / "launcher").rglob("*.py")):
        named |= set(re.findall(r"python3? -m ((?:perfharness|samples)[\w.]*\w)", path.read_text("utf-8")))
    assert len(named) >= 4
    for name in named:
        assert find_spec(name) is not None, name


def commands() -> set[str]:
    """What follows `perfharness` in the code of all pages, blocks and inline, and in the images of examples."""
    found: set[str] = set()
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        prose = FENCE.sub("", text)
        blocks = FENCE.findall(text) + INDENTED.findall(prose)
        spans = re.findall(r"`([^`]+)`", INDENTED.sub("", prose).replace("\\|", "|"))
        lines = "\n".join([*blocks, *(" ".join(span.split()) for span in spans)])
        found |= set(re.findall(r"^(?:.*?[ (])?perfharness (?!import )([a-z].*)$", lines, re.MULTILINE))
    for image in EXAMPLES.rglob("Containerfile"):
        found |= set(re.findall(r"^RUN perfharness (.*)$", image.read_text("utf-8"), re.MULTILINE))
    return found


def test_commands_of_pages_have_verbs_and_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is parsed, but asked for its help, so nothing runs."""
    assert run(["report", "--help", "out", "--opened"]) == 2
    failed = {}
    for command in commands():
        verb, *arguments = shlex.split(re.split(r" +# | >> ", command)[0])
        if run([verb, "--help", *arguments]):
            failed[command] = capsys.readouterr().err
    assert not failed
    assert len(commands()) > 100


def test_scripts_of_pages_have_the_options_that_pages_name() -> None:
    calls: set[tuple[str, str]] = set()
    for page in PAGES:
        for name, arguments in re.findall(r"scripts/(\w+)((?: [^\s`#]+)*)", page.read_text("utf-8")):
            calls |= {(name, option) for option in re.findall(r"(?<=\s)--[a-z-]+", arguments)}
    assert len(calls) > 10
    assert not [call for call in calls if call[1] not in (CHECKOUT / "scripts" / call[0]).read_text("utf-8")]


@pytest.mark.parametrize("example", MANIFESTS, ids=lambda example: example.name)
def test_pods_of_examples_run_commands_that_exist(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    (job,) = (one for one in yaml.safe_load_all(example.read_text("utf-8")) if one["kind"] == "Job")
    program, verb, *arguments = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert program == "perfharness"
    assert run([verb, "--help", *arguments]) == 0, capsys.readouterr().err


def test_python_of_pages_compiles_and_uses_names_that_exist() -> None:
    used: set[tuple[str, str]] = set()
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block, str(page))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("perfharness"):
                    used |= {(node.module or "", alias.name) for alias in node.names}
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == "perfharness"
                ):
                    used.add(("perfharness", node.attr))
    assert not [name for name in used if not hasattr(import_module(name[0]), name[1])]
    assert len(used) > 10


def names_in_rows(page: str, heading: str = "") -> set[str]:
    """The names in backticks in the first column of the tables below a heading of the second level."""
    text = (CHECKOUT / "docs" / "reference" / page).read_text("utf-8").partition(f"{heading}\n")[2]
    rows = re.findall(r"^\| (`[^|]*) \|", text.partition("\n## ")[0] if heading else text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_reference_has_every_reason_and_every_environment_variable() -> None:
    reasons = {reason.name for reason in CLOCK_EVENT_REASONS}
    assert reasons <= set(re.findall(r"`(\w+)`", (CHECKOUT / "docs/reference/results.md").read_text("utf-8")))
    variables = {value for value in vars(environment).values() if str(value).startswith("PERFHARNESS_")}
    assert variables <= names_in_rows("environment.md")


def test_fields_that_the_reference_names_are_in_the_schemas() -> None:
    known: set[str] = set()
    for kind in ("benchmark", "benchmark_mean"):
        schema = json_schema(kind)
        for model in (schema, *schema["$defs"].values()):
            known |= set(model.get("properties", {}))
    assert names_in_rows("results.md", "## Fields") <= known
    assert len(names_in_rows("results.md", "## Fields")) > 50


def test_the_page_of_causes_has_every_threshold() -> None:
    text = (CHECKOUT / "docs" / "guides" / "causes.md").read_text("utf-8")
    cells = dict(re.findall(r"^\| `([\w-]+)` ([^|]*)\|", text, re.MULTILINE))
    for name, threshold in THRESHOLDS.items():
        assert f"{threshold.least:.0%}".replace("%", " %") in cells[name.partition(",")[0]], name
