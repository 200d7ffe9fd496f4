"""Files of a run folder, and what a user may name as one."""
