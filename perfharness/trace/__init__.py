"""Read trace files into columns. The only place with SQL and nsys's schema."""

from perfharness.trace.reader import open_trace

__all__ = ["open_trace"]
