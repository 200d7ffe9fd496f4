"""Versions against each other, and gates: launches, suites, load tests, results of trtexec."""
