"""A run as a timeline: Chrome's trace format, which Perfetto reads too."""
