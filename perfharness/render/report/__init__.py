"""A report for readers: one document of sections, written as HTML, PDF, Markdown, CSV or a workbook."""
