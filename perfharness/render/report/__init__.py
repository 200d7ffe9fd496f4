"""Reports of runs, traces and suites, as HTML, PDF or Markdown."""
