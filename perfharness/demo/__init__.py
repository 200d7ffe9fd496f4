"""The pipeline of `perfharness demo`, which runs a copy of it."""
