"""A recommendation on the terminal: what to take, what is as fast, and why not the others, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfharness.analysis.bench_names import CaseNames, in_groups
from perfharness.analysis.recommendation import NOT_MEASURED, told_apart
from perfharness.model.bench import BenchCase, CaseResult
from perfharness.model.bench_suite import MissedConstraint, Recommendation
from perfharness.report.bench_words import first_line, listed

Missed = tuple[BenchCase, MissedConstraint]


def recommendation_lines(found: Recommendation, cases: Sequence[CaseResult]) -> Iterator[str]:
    """What to take, and why; what was excluded, and by which constraint.

    Args:
        cases: of the suite. Those that were not measured are counted only, for the table's lines say why.
    """
    names = CaseNames.of((result.case for result in cases), with_model=False)
    known = {result.case.case_id: result for result in cases}
    taken = found.best or found.nearest
    named = "" if taken is None else f"{names.case(known[taken].case)} ({taken})"
    if found.best is not None:
        yield f"{found.model}: take {named}"
    elif found.nearest is not None:
        yield f"{found.model}: none meets the constraints; nearest is {named}"
    else:
        yield f"{found.model}: nothing to recommend"
    for why in found.why:
        yield f"  {why}"
    if found.ties:
        yield from _named("not separable from it in speed", [known[one].case for one in found.ties], names)
    if len(found.front) > 1:
        yield from _named("on the Pareto front", [known[one].case for one in found.front], names)
    yield from _excluded(found, known, names)


def _excluded(found: Recommendation, known: dict[str, CaseResult], names: CaseNames) -> Iterator[str]:
    measured = [(known[one.case_id].case, one) for one in found.excluded if known[one.case_id].status == "ok"]
    missed = [(case, constraint) for case, one in measured for constraint in one.missed]
    for (what, limit, unit), those in in_groups(
        ((one.what, one.limit, one.unit), (case, one)) for case, one in missed if one.value is not None
    ):
        yield f"  {what} over {limit:.10g}{_unit(unit)}, {_cases(len(those))}:"
        yield from _with_figures(those, names)
    for (what, reason), unmeasured in in_groups(
        ((one.what, one.reason), case) for case, one in missed if one.value is None
    ):
        why = f" ({first_line(reason)})" if reason else ""
        yield from _named(f"{what} {NOT_MEASURED}{why}, {_cases(len(unmeasured))}", unmeasured, names)
    for reason, unfit in in_groups((one.reason, case) for case, one in measured if not one.missed):
        yield from _named(f"{first_line(reason)}, {_cases(len(unfit))}", unfit, names)
    count = len(found.excluded) - len(measured)
    if count:
        yield f"  {_cases(count)} {'was' if count == 1 else 'were'} not measured, see above"


def _with_figures(those: Sequence[Missed], names: CaseNames) -> Iterator[str]:
    """`torch/eager fp32: 6.4 ms at batch 64, 20.2 ms at 256`."""
    for cell, missed in in_groups((names.cell(case), (case, one)) for case, one in those):
        shown = [f"{_figure(one)} at {case.batch_size}" for case, one in sorted(missed, key=_batch_size)]
        shown[0] = shown[0].replace(" at ", " at batch ")
        yield f"    {cell}: {', '.join(shown)}"


def _batch_size(missed: Missed) -> int:
    return missed[0].batch_size


def _figure(missed: MissedConstraint) -> str:
    assert missed.value is not None, "of a figure that was measured"
    return f"{told_apart(missed.value, missed.limit)[0]}{_unit(missed.unit)}"


def _named(what: str, cases: Sequence[BenchCase], names: CaseNames) -> Iterator[str]:
    """In one line where it is one cell, else with the cells below."""
    cells = names.cells(cases)
    if len(cells) == 1:
        yield f"  {what}: {cells[0]}"
        return
    yield f"  {what}:"
    yield from listed(cells, indent="    ")


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"
