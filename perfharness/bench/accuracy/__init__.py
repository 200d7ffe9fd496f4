"""Compare outputs with a baseline or ground truth, one sample at a time; and find the samples."""
