"""Batch sizes: sweeps, and the largest batch within a latency target."""
