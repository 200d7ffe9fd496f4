"""Use cases over runs, callable from Python: launch, sweep over the number of processes, cold start."""
