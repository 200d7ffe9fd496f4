"""Results laid out as blocks: one view per result, for the terminal, Markdown, HTML and PDF."""
