"""Results as blocks: one view per kind of result, for all media."""
