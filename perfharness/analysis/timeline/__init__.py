"""Ranges, calls and operations on their time axis: nesting, projection, busy time."""
