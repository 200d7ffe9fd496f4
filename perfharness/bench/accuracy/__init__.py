"""Outputs against a baseline or ground truth: accumulators that take one sample at a time, and the samples.

Every accumulator has `update`, `merge` and `figures`; memory does not grow with the number of samples.
"""
