"""Helpers for tests of code that uses perfharness, and for its own."""
