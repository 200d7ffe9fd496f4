"""A report: all that is known of runs, gathered for a reader (docs/reference/results.md)."""
