"""Host time by the samples of the profiling pass."""
