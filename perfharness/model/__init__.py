"""Plain types shared by all stages; no I/O, and only the standard library unless files are read."""
