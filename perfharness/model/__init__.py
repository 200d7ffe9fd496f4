"""Plain types that every stage shares; no I/O, nothing beyond the standard library unless a file is read back."""
