"""What is measured, in which order, and the parent of its processes: a suite from its file to `bench.json`."""
