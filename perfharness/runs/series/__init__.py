"""Several launches one after another: repeats, sweeps, cold starts, the cost of tracing."""
