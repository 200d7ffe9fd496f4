"""A comparison as JUnit XML: a test suite a version, a test case a row and a limit."""

from __future__ import annotations

from collections.abc import Collection
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from perfharness.model.text import safe
from perfharness.render.comparison.texts import change, figure_text, interval, limit_text, side_amount, verdict_text
from perfharness.runs.comparison.result import ComparedRow, Comparison


def comparison_junit(comparison: Comparison, fail_on: Collection[str]) -> str:
    """The document. Rows with a verdict of `fail_on` fail; other rows without an answer are skipped."""
    root = Element("testsuites", name="perfharness compare")
    for version in comparison.versions:
        suite = SubElement(root, "testsuite", name=safe(version.side.name), timestamp=comparison.created)
        for row in version.rows:
            _case(suite, row, fail_on)
        for result in comparison.limits:
            if result.version != version.side.name:
                continue
            case = SubElement(suite, "testcase", classname="limits", name=safe(result.limit))
            if result.failed:
                SubElement(case, "failure", message=safe(limit_text(result)), type="limit")
        cases = list(suite)
        suite.set("tests", str(len(cases)))
        for kind, name in (("failure", "failures"), ("skipped", "skipped")):
            suite.set(name, str(sum(case.find(kind) is not None for case in cases)))
        suite.set("errors", "0")
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: Element, row: ComparedRow, fail_on: Collection[str]) -> None:
    case = SubElement(suite, "testcase", classname=safe(row.stage or "run"), name=row.metric)
    text = f"{verdict_text(row)}: {figure_text(row)}: {side_amount(row, is_new=False)} -> "
    text += f"{side_amount(row, is_new=True)}, {change(row.ratio)} ({interval(row.judged_by)})"
    if row.reason:
        text += f"; {row.reason}"
    if row.verdict in fail_on:
        SubElement(case, "failure", message=safe(text), type=row.verdict)
    elif row.verdict in ("undecided", "not-comparable"):
        SubElement(case, "skipped", message=safe(text))
    else:
        SubElement(case, "system-out").text = safe(text)
