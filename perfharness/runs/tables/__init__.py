"""Arrow tables of a run: ranges, batches, stages and GPU operations."""
