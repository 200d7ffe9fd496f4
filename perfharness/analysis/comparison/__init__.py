"""Compare launches and versions: means with intervals, verdicts, steps of a trend."""
