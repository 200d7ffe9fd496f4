"""A comparison as a table for a terminal, and as Markdown for a pull request."""
