"""What is worth doing first: each cause once, by what it saves, with its place in the code."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.diagnosis.advice import advise
from perfharness.model.diagnosis import Cause, Explained, GpuLimit, StageCost, StageVerdict, Verdict
from perfharness.render.terminal.advice import limited_by, print_advice, stage_names
from perfharness.render.terminal.console import Console
from perfharness.render.terminal.diagnosis import is_named
from tests.unit.diagnosis_results import BATCH, cause, diagnosis, function, stage


def advised(*stages: object) -> list[tuple[str, str]]:
    found = advise({"proc": diagnosis(*stages)})  # type: ignore[arg-type]
    return [(", ".join("/".join(path[len(BATCH) :]) for path in one.paths), one.cause.code) for one in found]


def printed(*stages: object, most: int | None = 3, processes: int = 1, **options: object) -> str:
    console = Console(file=io.StringIO(), **options)  # type: ignore[arg-type]
    made = diagnosis(*stages)  # type: ignore[arg-type]
    print_advice(console, {f"proc_{index}": made for index in range(processes)}, most)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_largest_saving_comes_first() -> None:
    known = stage("a", cause("small", saves_ms=1.0), cause("large", saves_ms=5.0), cpu_ms=8.0)
    assert advised(stage("", cpu_ms=20.0), known, stage("b", cause("middle", saves_ms=3.0))) == [
        ("a", "large"), ("b", "middle"), ("a", "small"),
    ]  # fmt: skip


def test_where_nothing_bounds_the_saving_its_part_of_the_stage_ranks() -> None:
    """40 % of 10 ms is more than 3 ms saved; 20 % is less."""
    known = stage("a", cause("known", saves_ms=3.0))
    assert advised(known, stage("b", cause("unknown", share=0.4)))[0] == ("b", "unknown")
    assert advised(known, stage("b", cause("unknown", share=0.2)))[0] == ("a", "known")


def test_what_hides_behind_the_gpu_is_worth_what_the_batch_would_save() -> None:
    hidden = stage("a", cause("hidden"), cpu_ms=10.0, cost=StageCost(20.0, 19.5, 0.025))
    found = advise({"proc": diagnosis(stage("", cpu_ms=20.0), hidden)})
    assert [one.worth_ms for one in found] == [pytest.approx(0.5)]
    assert found[0].worth_share == pytest.approx(0.025)
    assert found[0].saves_share is None


def test_nested_stages_with_one_cause_have_it_once_where_most_of_it_is() -> None:
    batch, outer = stage("", cause(), cpu_ms=20.0), stage("decode", cause(), cpu_ms=18.0)
    assert advised(batch, outer, stage("decode/resize", cause(), cpu_ms=15.0)) == [("decode/resize", "cpu-bound")]
    two = [stage("decode/read", cause(), cpu_ms=8.0), stage("decode/resize", cause(), cpu_ms=7.0)]
    assert advised(batch, outer, *two) == [("decode/read, decode/resize", "cpu-bound")]
    small = [stage("decode/read", cause(), cpu_ms=4.0), stage("decode/resize", cause(), cpu_ms=4.0)]
    assert advised(batch, outer, *small) == [("decode", "cpu-bound")]  # they hold less than half of it
    other = stage("decode/resize", cause("gpu-bound"), cpu_ms=15.0)
    assert advised(outer, other) == [("decode", "cpu-bound"), ("decode/resize", "gpu-bound")]


def test_causes_at_one_line_are_one_though_named_differently() -> None:
    line = function()
    outer = stage("decode", cause("synchronization-bound", where=line, saves_ms=4.0))
    inner = stage("decode/resize", cause("implicit-synchronization", where=line, saves_ms=3.0))
    assert advised(outer, inner) == [("decode/resize", "implicit-synchronization")]
    elsewhere = replace(outer, causes=[replace(outer.causes[0], where=function(line=43))])
    assert len(advised(elsewhere, inner)) == 2


def test_what_one_step_mends_is_named_together() -> None:
    """Their times and savings add up; a saving that is not known makes the sum unknown."""
    stages = [stage("a", cause(saves_ms=2.0), cpu_ms=5.0), stage("b", cause(saves_ms=4.0), cpu_ms=6.0)]
    (one,) = advise({"proc": diagnosis(stage("", cpu_ms=20.0), *stages)})
    assert [path[-1] for path in one.paths] == ["b", "a"]
    assert (one.stage_ms, one.batch_ms, one.worth_ms, one.saves_ms, one.saves_share) == (11.0, 20.0, 6.0, 6.0, 0.3)
    (one,) = advise({"proc": diagnosis(*stages, stage("c", cause(share=0.1), cpu_ms=7.0))})
    assert (one.stage_ms, one.saves_ms) == (18.0, None)
    assert one.worth_ms == pytest.approx(6.7)
    elsewhere = stage("c", cause(saves_ms=3.0, where=function()))
    assert advised(*stages, elsewhere) == [("b, a", "cpu-bound"), ("c", "cpu-bound")]


def test_two_names_of_the_same_time_are_one_cause_the_first() -> None:
    line = function()
    wait, system = (
        cause("network-wait", where=line, saves_ms=5.0),
        cause("waiting-on-system", where=line, saves_ms=4.95),
    )
    assert advised(stage("a", wait, system)) == [("a", "network-wait")]
    assert len(advised(stage("a", wait, replace(system, saves_ms=2.0)))) == 2
    assert len(advised(stage("a", wait, replace(system, where=function(line=43))))) == 2
    assert len(advised(stage("a", wait, replace(system, where=None)))) == 2
    assert len(advised(stage("a", replace(wait, saves_ms=None), replace(system, saves_ms=None)))) == 2


def test_a_verdict_without_causes_is_advice_too_but_not_one_that_says_nothing() -> None:
    verdict = StageVerdict(Verdict.GPU_BOUND, ["the evidence"], "the step")
    (one,) = advise({"proc": diagnosis(stage("a", verdict=verdict))})
    assert (one.cause.code, one.cause.what, one.cause.try_this) == ("gpu-bound", "the evidence", "the step")
    unknown = StageVerdict(Verdict.CANNOT_TELL, ["no single cause"], "look inside")
    assert advise({"proc": diagnosis(stage("a", verdict=unknown), stage("b", cause(), cpu_ms=None))}) == []


def test_the_process_that_it_costs_most_speaks_for_all() -> None:
    made = {f"proc_{ms}": diagnosis(stage("a", cause(saves_ms=float(ms)))) for ms in (2, 6, 4)}
    (one,) = advise({**made, "proc_other": diagnosis(stage("a", cause("gpu-bound", saves_ms=1.0)))})[:1]
    assert (one.process, one.processes, one.worth_ms) == ("proc_6", 3, 6.0)


def test_processes_that_know_no_line_are_counted_with_those_that_do() -> None:
    """In one of three processes the second pass said nothing of the stage, and it costs that one most."""
    made = {f"proc_{ms}": diagnosis(stage("a", cause(saves_ms=float(ms), where=function()))) for ms in (2, 4)}
    elsewhere = diagnosis(stage("a", cause(saves_ms=6.0, try_this="profile it")), stage("b", cause(saves_ms=3.0)))
    found = advise({**made, "proc_6": elsewhere})
    assert [(one.paths[0][-1], one.process, one.processes) for one in found] == [("a", "proc_4", 3), ("b", "proc_6", 1)]


NAMES = st.lists(st.sampled_from(["a", "a/b", "a/b/c", "a/d", "e", "e/f"]), unique=True)
CAUSES = st.builds(
    cause,
    st.sampled_from(["cpu-bound", "file-wait"]),
    share=st.floats(0.05, 1),  # and the least saving: worth a sentence, or what is named for them would be left out
    saves_ms=st.none() | st.floats(1.5, 10),
    where=st.none() | st.builds(function, line=st.integers(1, 2)),
)


@given(NAMES, st.data())
def test_no_cause_is_lost_and_none_is_named_twice_along_a_path(names: list[str], data: st.DataObject) -> None:
    stages = [stage(name, *data.draw(st.lists(CAUSES, max_size=2, unique_by=lambda one: one.code))) for name in names]
    found = advise({"proc": diagnosis(*stages)})
    given_codes = {one.code for each in stages for one in each.causes}
    by_line = {one.cause.where.line for one in found if one.cause.where is not None}
    for code in given_codes - {one.cause.code for one in found}:  # gone only where its line is named otherwise
        gone = [one for each in stages for one in each.causes if one.code == code]
        assert any(one.where is not None and one.where.line in by_line for one in gone)
    for one in found:
        for path in one.paths:
            inside = [other for other in found for below in other.paths if below != path and below[: len(path)] == path]
            assert one.cause.code not in {other.cause.code for other in inside}
    assert [one.worth_ms for one in found] == sorted((one.worth_ms for one in found), reverse=True)


SLOW = cause(where=function(), where_reason=None, saves_ms=6.0)


def test_a_second_pass_that_says_nothing_of_the_stage_is_named() -> None:
    doubted = stage("a", SLOW, explained=Explained(2.5, trusted=False, reason="it took 2.5 times as long"))
    trusted = stage("a", SLOW, explained=Explained(1.5, trusted=True))
    assert [one.doubt for one in advise({"proc": diagnosis(doubted)})] == ["it took 2.5 times as long"]
    assert [one.doubt for one in advise({"proc": diagnosis(trusted)})] == [None]


def test_a_cause_has_its_times_and_its_line_and_only_the_most_valuable_are_printed() -> None:
    stages = [
        stage("", cpu_ms=20.0),
        stage("decode", SLOW),
        *(stage(name, cause(name, saves_ms=5.0)) for name in "abc"),
    ]
    _, first, *others = printed(*stages).splitlines()
    for part in ("decode", "10.0 ms", "20.0 ms", "resize (/work/app/pipeline.py:42)", "6.00 ms, 30 %"):
        assert part in first
    assert [line.split()[0] for line in others[:2]] == ["2.", "3."]
    assert len(printed(*stages, most=None).splitlines()) == 6
    assert printed(stage("", cpu_ms=20.0), stage("a", cause(saves_ms=0.1))) == ""  # half a percent of the batch


@pytest.mark.parametrize("is_markdown", [False, True])
def test_names_of_others_mean_nothing_but_themselves(is_markdown: bool) -> None:
    evil = "\x1b[2J[bold]*x*</b>|`\n"
    mean: Cause = cause(evil, what=evil, try_this=evil, where=function(evil, evil))
    said = printed(stage(evil, mean), markdown=is_markdown)
    assert "\x1b" not in said
    assert len([line for line in said.splitlines() if line]) == 3
    assert ("\\[bold\\]\\*x\\*\\</b\\>\\|\\`" if is_markdown else "[bold]*x*</b>|`") in said


def test_a_stage_is_limited_by_what_most_processes_say() -> None:
    def of(verdict: Verdict, limit: GpuLimit | None = None) -> object:
        return diagnosis(stage("a", verdict=StageVerdict(verdict, [], "", limit=limit)))

    memory = of(Verdict.GPU_BOUND, GpuLimit.MEMORY)
    path = (*BATCH, "a")
    texts = [
        limited_by(made)[path].plain  # type: ignore[arg-type]
        for made in ([memory], [memory, of(Verdict.CPU_BOUND), memory], [of(Verdict.GPU_BOUND, GpuLimit.CANNOT_TELL)])
    ]
    assert texts == ["gpu-bound (memory)", "gpu-bound (memory) 2/3", "gpu-bound"]


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c/d"]), min_size=1, max_size=4).map(tuple), max_size=8))
def test_a_stage_is_named_by_the_end_of_its_path_that_no_other_has(paths: list[tuple[str, ...]]) -> None:
    names = stage_names(paths)
    for path, name in names.items():
        assert is_named(path, name)
        others = [one for one in names if one != path and is_named(one, name)]
        assert all(one[-len(path) :] == path for one in others)  # only where the whole path is the end of another


def test_names_of_stages_are_short() -> None:
    paths = [("r", "p"), ("r", "p", "det"), ("r", "p", "det", "run"), ("r", "p", "rec"), ("r", "p", "rec", "run")]
    assert list(stage_names(paths).values()) == ["p", "det", "det/run", "rec", "rec/run"]


def test_times_of_stages_outside_of_batches_are_of_an_occurrence() -> None:
    made = replace(diagnosis(stage("decode", cause(), cpu_ms=8.0)), warmup=[])
    assert [(one.batch_ms, one.is_in_batches) for one in advise({"proc": made})] == [(None, False)]
