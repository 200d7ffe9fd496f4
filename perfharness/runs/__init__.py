"""Use cases over runs, callable from Python: launch, analyze, sweep over the number of processes, cold start."""
