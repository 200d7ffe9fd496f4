"""The host's side of a diagnosis: CPU time, waits, calls, compilers, samples."""
