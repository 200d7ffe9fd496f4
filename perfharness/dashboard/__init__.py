"""`perfharness dashboard`: earlier runs, comparisons, reports and what is running, as pages for this machine alone."""
