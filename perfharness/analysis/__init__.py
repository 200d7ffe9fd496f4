"""Pure functions over columns: nesting, projection, busy time, batches, statistics, findings. No paths, no clocks."""
