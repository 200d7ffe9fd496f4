"""Charts, one file per kind of result. Altair and vl-convert are imported only when a chart is made."""
