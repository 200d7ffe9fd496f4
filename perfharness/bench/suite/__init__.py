"""A suite from its file to `bench.json`: its cases, their order, and their processes."""
