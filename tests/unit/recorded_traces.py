"""Traces as a recorder writes them, times in ms."""

from __future__ import annotations

from typing import Any

from perfharness.model import conventions
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


class Recorded(TraceBuilder):
    """A trace as a recorder writes it, times in ms."""

    def __init__(self, recorder: str = "toy", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.declare(recorder)
        self.recorder = recorder

    def declare(self, recorder: str) -> None:
        self.mark(conventions.MARK_RECORDER, 0, domain="perfharness", category=recorder)

    def stage(self, name: str, start: float, end: float | None, *, lane: int = 0, **where: Any) -> None:
        where.setdefault("domain", "perfharness")
        where["category"] = conventions.category_name(where.pop("recorder", self.recorder), where.get("category"), lane)
        stop = None if end is None else int(end * MS)
        self.range(name, int(start * MS), stop, start_end=lane > 0, **where)

    def batch(
        self, index: int, start: float, end: float, items: int | None = 1, *, name: str = "batch", **where: Any
    ) -> None:
        self.stage(name, start, end, payload=index, **where)
        if items is not None:
            self.inside(conventions.MARK_ITEMS, end, payload=items, **where)

    def inside(self, mark: str, end: float, *, lane: int = 0, payload: int | None = None, **where: Any) -> None:
        """A mark just before `end`."""
        category = conventions.category_name(where.pop("recorder", self.recorder), lane=lane)
        self.mark(mark, int(end * MS) - 1, domain="perfharness", category=category, payload=payload, **where)
