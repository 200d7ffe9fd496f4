"""Judge a load test: percentiles with intervals, drift and leaks of a sustained run. Pure functions."""
