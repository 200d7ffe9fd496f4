"""Outputs against a baseline or ground truth: accumulators that see one sample after another, and the samples.

Every accumulator has `update`, `merge` and `figures`; memory does not grow with the number of samples.
"""
