"""A comparison as a table for a terminal, as Markdown for a pull request, and as JUnit XML for a CI job."""
