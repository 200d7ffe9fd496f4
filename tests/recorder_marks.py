"""What recorders mark in batches and stages now and then, by the clock: tests of everything else leave it out."""

from __future__ import annotations

from perfharness.model import conventions

READING_MARKS = frozenset(
    {
        conventions.MARK_COMPILING,
        conventions.MARK_QUEUED,
        conventions.MARK_READY_TIME,
    }
)
