"""Charts of results, one file per kind of result: Altair specifications of precomputed rows.

Altair and vl-convert are imported only when a chart is made.
"""
