"""Where host time goes, by what was sampled in the profiling pass."""
