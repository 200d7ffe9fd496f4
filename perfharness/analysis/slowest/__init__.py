"""The slowest batches beside the typical one: what was different, in parts that sum to the difference."""
