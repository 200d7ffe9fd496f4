"""Series of launches: repeats, sweeps, cold starts, the overhead of tracing."""
