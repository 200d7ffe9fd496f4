"""Charts of results, one file each kind of result: Altair's specifications of rows that were worked out before.

Altair and vl-convert are imported where a chart is made and nowhere before.
"""
