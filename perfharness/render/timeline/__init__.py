"""Timelines in Chrome's trace format, which Perfetto reads too."""
