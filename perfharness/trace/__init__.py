"""Trace files into columns. The only place that knows SQL and nsys's schema."""

from perfharness.trace.reader import open_trace

__all__ = ["open_trace"]
