"""PyTorch's modules as stages, without PyTorch: the hooks are called as it calls them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from perfharness.annotate.runtime import Runtime
from perfharness.annotate.torch_modules import ModuleTracker, follow_modules
from perfharness.model.annotations import Annotations
from perfharness.tracer.range_log import RangeLog
from tests.unit.recorder_events import shown


class Module:
    """As much of `nn.Module` as the tracker sees."""

    def __init__(self, **children: Module) -> None:
        self.children = children
        self.body: Any = self._call_children
        self.tracker: ModuleTracker

    def _call_children(self) -> None:
        for child in self.children.values():
            child(self.tracker)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def __call__(self, tracker: ModuleTracker) -> None:
        self.tracker = tracker
        tracker.before(self, ())
        try:
            self.body()
        except Exception:
            tracker.after(self, (), None)  # as `always_call` does
            raise
        tracker.after(self, (), None)


class Net(Module):
    pass


def tracker(depth: int, within: str | None = None) -> ModuleTracker:
    return ModuleTracker(Runtime(Annotations(torch_depth=depth, within=within), "/nowhere"), depth)


def net() -> Net:
    return Net(stem=Module(), blocks=Module(a=Module(lin=Module()), b=Module()))


@pytest.mark.parametrize(
    ("depth", "drawing"),
    [
        (0, "Net()"),
        (1, "Net(stem() blocks())"),
        (2, "Net(stem() blocks(blocks.a() blocks.b()))"),
        (3, "Net(stem() blocks(blocks.a(blocks.a.lin()) blocks.b()))"),
    ],
)
def test_modules_down_to_a_depth_by_their_dotted_names(log: RangeLog, depth: int, drawing: str) -> None:
    following = tracker(depth)
    model = net()
    model(following)
    model(following)
    assert shown(log) == f"{drawing} {drawing}"


def test_an_exception_leaves_nothing_open(log: RangeLog) -> None:
    following = tracker(2)
    model = net()

    def fail() -> None:
        raise ValueError("boom")

    model.children["blocks"].children["a"].body = fail
    with pytest.raises(ValueError, match="boom"):
        model(following)
    model.children["stem"](following)
    assert shown(log) == "Net(stem() blocks(blocks.a())) Module()"


def test_modules_that_the_outermost_does_not_hold_are_no_stages(log: RangeLog) -> None:
    following = tracker(2)
    model, stranger = net(), Module(inner=Module())
    model.body = lambda: stranger(following)
    model(following)
    model.children["late"] = stranger  # one that is added later is found, but not again once it was not
    late = Module()
    model.children["latest"] = late
    model.body = lambda: late(following)
    model(following)
    assert shown(log) == "Net() Net(latest())"


def test_nothing_is_recorded_outside_of_the_range_that_is_to_hold_all(log: RangeLog) -> None:
    following = tracker(2, within="pipeline")
    net()(following)
    assert shown(log) == ""


def test_a_pytorch_without_such_hooks_is_noted() -> None:
    runtime = Runtime(Annotations(torch_depth=1), "/nowhere")
    follow_modules(ModuleType("torch.nn.modules.module"), runtime)
    assert runtime.torch_note is not None
    assert runtime.torch_note.problem
