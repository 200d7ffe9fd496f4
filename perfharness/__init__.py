"""perfharness: where the time of an inference pipeline goes, per stage and per item, on CPU and GPU."""
