"""The recording stand-ins for Python's nvtx, on a made-up package: what lands in the log, in which order."""

from __future__ import annotations

import contextlib
import pickle
import struct
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.model import nsys_schema as schema
from perfharness.model.range_log import (
    RangeAttributes,
    RangeLog,
)
from perfharness.tracer import nvtx_hook
from perfharness.tracer.ranges import NO_END, Table
from perfharness.tracer.ranges import decode as decode_log
from tests.unit.recorder_events import TemporaryLog, read

NAMES = (
    "annotate",
    "enabled",
    "push_range",
    "pop_range",
    "start_range",
    "end_range",
    "mark",
    "get_domain",
    "Domain",
    "Counter",
)


@pytest.fixture
def log() -> RangeLog:
    return TemporaryLog()


@pytest.fixture
def no_nvtx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the real package is imported, so nothing of it is changed, and afterwards it is all that is there."""
    real = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "nvtx"}
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in real:
        del sys.modules[name]
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvtx"]:
        del sys.modules[name]
    sys.modules.update(real)


@pytest.fixture
def nvtx(log: RangeLog, no_nvtx: None) -> Any:
    """A package with the names of the real one, none of which does anything but say that it was called."""

    def real(*args: object, **kwargs: object) -> object:
        raise AssertionError("the real nvtx was called")

    package = types.ModuleType("nvtx")
    for name in NAMES:
        setattr(package, name, real)
    package.__dict__["enabled"] = lambda: True
    colors = types.ModuleType("nvtx.colors")
    colors.__dict__["color_to_hex"] = lambda color: {"red": 0xFF0000}.get(color, color if isinstance(color, int) else 1)
    sys.modules.update({"nvtx": package, "nvtx.colors": colors})
    nvtx_hook.install(log)
    return package


def decode(log: RangeLog) -> Table:
    return decode_log(read(log))


def attributes_of(log: RangeLog) -> list[RangeAttributes]:
    return read(log).attributes


def events(log: RangeLog) -> list[tuple[int, str, str | None, str | int | None]]:
    """(event type, domain, message, category) of everything that begins, in the order of time."""
    table = decode(log)
    rows = []
    for row in np.argsort(table["start"], kind="stable"):
        entry = attributes_of(log)[table["key"][row]]
        category = entry.category if entry.category is not None else entry.category_id
        rows.append((int(table["event_type"][row]), entry.message, entry.domain, category))
    return rows


def test_functions_of_the_module(nvtx: Any, log: RangeLog) -> None:
    nvtx.push_range("a", color="red", domain="d", category="c", payload=7)
    nvtx.mark("m", category=3)
    nvtx.pop_range(domain="d")
    nvtx.end_range(nvtx.start_range("s"))
    assert events(log) == [
        (schema.NVTX_PUSH_POP_RANGE, "a", "d", "c"),
        (schema.NVTX_MARK_EVENT, "m", None, 3),
        (schema.NVTX_START_END_RANGE, "s", None, None),
    ]
    table = decode(log)
    assert (table["end"][table["event_type"] != schema.NVTX_MARK_EVENT] != NO_END).all()
    assert table["payload"][table["has_payload"]].tolist() == [7]
    assert attributes_of(log)[table["key"][table["has_payload"]][0]].color == 0xFF0000


def test_annotate_as_context_and_decorator(nvtx: Any, log: RangeLog) -> None:
    @nvtx.annotate(domain="d")  # type: ignore[untyped-decorator]
    def stage(value: int) -> int:
        """Doc."""
        return value + 1

    with nvtx.annotate("outer", color="red"):
        assert stage(1) == 2
    assert (stage.__name__, stage.__doc__) == ("stage", "Doc.")
    assert [row[1:3] for row in events(log)] == [("outer", None), ("stage", "d")]


def test_one_annotation_used_on_itself_and_on_threads(nvtx: Any, log: RangeLog) -> None:
    @nvtx.annotate("f")  # type: ignore[untyped-decorator]
    def recurse(depth: int) -> None:
        with contextlib.suppress(ValueError):
            if depth:
                recurse(depth - 1)
            raise ValueError  # ends the range too

    threads = [threading.Thread(target=recurse, args=(3,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = decode(log)
    assert len(table["start"]) == 16
    assert (table["end"] >= table["start"]).all()


def test_domains_and_reused_attributes(nvtx: Any, log: RangeLog) -> None:
    domain = nvtx.get_domain("d")
    assert domain is nvtx.get_domain("d")
    assert domain is nvtx.Domain("d")
    assert isinstance(domain, nvtx.Domain)
    attributes = domain.get_event_attributes(message="a", category="c", payload=1)
    domain.push_range(attributes)
    domain.push_range(attributes, message="b", payload=2)
    domain.pop_range()
    domain.pop_range()
    domain.end_range(
        domain.start_range(message=domain.get_registered_string("r"), category=domain.get_category_id("k"))
    )
    domain.mark(attributes)
    assert [row[1:] for row in events(log)] == [("a", "d", "c"), ("b", "d", "c"), ("r", "d", "k"), ("b", "d", "c")]
    table = decode(log)
    assert sorted(table["payload"][table["has_payload"]].tolist()) == [1, 2, 2]


def test_payloads_of_other_types(nvtx: Any, log: RangeLog) -> None:
    for payload in (2.5, [1, 2], [1, 2]):
        nvtx.mark("m", payload=payload)
    table = decode(log)
    assert sorted(table["has_payload"].tolist()) == [False, False, True]
    (double,) = np.flatnonzero(table["has_payload"])
    assert attributes_of(log)[table["key"][double]].double_payload
    assert struct.unpack("<d", struct.pack("<q", int(table["payload"][double]))) == (2.5,)
    assert len(log.diagnostics) == 1
    assert "list" in log.diagnostics[0]


def test_a_pickled_annotation_is_one_of_the_real_package(nvtx: Any) -> None:
    made = nvtx.annotate("a", color="red")
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is nvtx.annotate
    assert again.init_args == made.init_args


def test_a_disabled_package_stays_as_it_is(log: RangeLog) -> None:
    package = types.ModuleType("nvtx")
    package.__dict__.update(enabled=lambda: False, push_range=len)
    nvtx_hook.patch(package, log)
    assert package.push_range is len


def test_the_package_is_changed_as_it_is_imported(
    log: RangeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_nvtx: None
) -> None:
    folder = tmp_path / "nvtx"
    folder.mkdir()
    (folder / "__init__.py").write_text("from nvtx.nvtx import mark, push_range\n")
    (folder / "nvtx.py").write_text("def push_range(message=None): raise SystemExit\ndef mark(message=None): ...\n")
    (folder / "colors.py").write_text("def color_to_hex(color): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    nvtx_hook.install(log)
    from nvtx import push_range

    push_range("a")
    assert [row[1] for row in events(log)] == ["a"]
