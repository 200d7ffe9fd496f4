"""A view of each kind of result: the blocks that all formats are written from."""
