"""A result as blocks: one view per result."""
