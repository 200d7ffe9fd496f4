"""Calls of `torch.distributed` as ranges, without PyTorch: functions of the same form in a module made here."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from perfharness.annotate.collectives import follow_collectives
from perfharness.annotate.runtime import Runtime
from perfharness.model.annotations import Annotations
from perfharness.tracer.range_log import RangeLog
from tests.unit.recorder_events import shown


class Work:
    def wait(self) -> bool:
        return True


class Group:
    def __init__(self, *ranks: int) -> None:
        self.ranks = list(ranks)


def all_reduce(tensor: list[int], op: str = "sum", group: Group | None = None, async_op: bool = False) -> Work | None:
    if not tensor:
        raise ValueError("nothing to reduce")
    return Work() if async_op else None


def send(tensor: list[int], dst: int, group: Group | None = None) -> None:
    pass


def get_process_group_ranks(group: Group) -> list[int]:
    return group.ranks


def get_world_size() -> int:
    return 4


def module(**functions: Any) -> Any:
    made: Any = ModuleType("torch.distributed.distributed_c10d")

    def all_gather_object(values: list[int]) -> None:
        made.all_reduce(values)

    class OwnWork(Work):
        pass

    vars(made).update(
        all_reduce=all_reduce, send=send, all_gather_object=all_gather_object, Work=OwnWork,
        get_process_group_ranks=get_process_group_ranks, get_world_size=get_world_size, **functions,
    )  # fmt: skip
    return made


def followed(**functions: Any) -> tuple[Any, Runtime]:
    runtime = Runtime(Annotations(collectives=True), "/nowhere")
    made = module(**functions)
    follow_collectives(made, runtime)
    return made, runtime


def test_calls_are_ranges_that_say_what_they_are(log: RangeLog) -> None:
    distributed, runtime = followed()
    distributed.all_reduce([1])
    distributed.all_reduce([1], group=Group(0, 1, 2, 3))
    distributed.all_reduce([1], "sum", Group(3, 1))
    distributed.send([1], 2)
    assert shown(log) == "all_reduce() all_reduce() all_reduce (ranks 1,3)() send()"
    assert runtime.collectives_note is not None
    assert (runtime.collectives_note.found, runtime.collectives_note.recorded) == (True, True)


def test_an_asynchronous_call_and_the_wait_for_it_are_two(log: RangeLog) -> None:
    distributed, _ = followed()
    distributed.all_reduce([1], async_op=True)
    distributed.Work().wait()
    assert shown(log) == "all_reduce (async)() wait (async)()"


def test_of_calls_inside_each_other_the_outermost_is_a_range(log: RangeLog) -> None:
    distributed, _ = followed()
    distributed.all_gather_object([1])
    distributed.all_reduce([1])
    assert shown(log) == "all_gather_object() all_reduce()"


def test_an_exception_goes_through_and_leaves_nothing_open(log: RangeLog) -> None:
    distributed, _ = followed()
    with pytest.raises(ValueError, match="nothing to reduce"):
        distributed.all_reduce([])
    with pytest.raises(TypeError):
        distributed.all_reduce(1, 2, 3, 4, 5)
    distributed.all_reduce([1])
    assert shown(log) == "all_reduce() all_reduce() all_reduce()"


def test_a_pytorch_without_distributed_support_is_noted() -> None:
    runtime = Runtime(Annotations(collectives=True), "/nowhere")
    follow_collectives(ModuleType("torch.distributed.distributed_c10d"), runtime)
    assert runtime.collectives_note is not None
    assert not runtime.collectives_note.found
    assert runtime.collectives_note.problem is not None


def test_what_is_replaced_is_replaced_once(log: RangeLog) -> None:
    distributed, runtime = followed()
    follow_collectives(distributed, runtime)
    distributed.all_reduce([1])
    assert shown(log) == "all_reduce()"
