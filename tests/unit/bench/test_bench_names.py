"""What cases are called for people, by hand."""

from __future__ import annotations

from perfharness.analysis.suites.bench_names import CaseNames
from tests.unit.bench_results import made_up


def test_a_cell_and_its_batch_sizes() -> None:
    cases = [made_up("torch", 16).case, made_up("m:Own", 1, precision="fp16").case, made_up("torch", 1).case]
    names = CaseNames.of(cases)
    assert names.case(cases[1]) == "Own/plain fp16, batch 1"
    assert names.cells(cases) == ["torch/plain fp32, batch 1, 16", "Own/plain fp16, batch 1"]


def test_only_what_tells_them_apart_is_named() -> None:
    cases = [made_up("torch", model="a").case, made_up("torch", model="b", device="cpu", mode="").case]
    names = CaseNames.of(cases)
    assert [names.cell(case) for case in cases] == ["a torch/plain cuda fp32", "b torch cpu fp32"]
    assert CaseNames.of(cases, with_model=False).cell(cases[0]) == "torch/plain cuda fp32"


def test_two_classes_of_one_name_are_two_cells() -> None:
    cases = [made_up("a:Own", 1).case, made_up("b:Own", 2).case]
    assert CaseNames.of(cases).cells(cases) == ["a:Own/plain fp32, batch 1", "b:Own/plain fp32, batch 2"]
