"""Gather the content of a report on runs (docs/reference/results.md)."""
