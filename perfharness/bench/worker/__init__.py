"""The process of a case: its measurements, and its files."""
