"""Use cases for Python and the command line: launch, analyze, compare, sweep, cold start, reports."""
