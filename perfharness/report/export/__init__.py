"""Results in other programs' formats: a timeline for trace viewers, tables for notebooks."""
