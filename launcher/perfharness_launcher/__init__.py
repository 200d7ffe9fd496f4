"""Plan, start, watch and collect the measured processes."""
