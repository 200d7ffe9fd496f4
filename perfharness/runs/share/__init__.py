"""A run for others: the same numbers, without secrets, names and paths of the machine that it was measured on."""
