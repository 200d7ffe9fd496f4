"""Tables of a run in Arrow: ranges, batches, stages and GPU operations, a row each."""
