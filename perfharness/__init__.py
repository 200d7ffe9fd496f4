"""perfharness: where the time of an inference pipeline goes, per stage and per item, on CPU and GPU."""

from perfharness.recorder import PerfRecorder, get_default_arg_parser, parse_validate_default_args

__all__ = ["PerfRecorder", "get_default_arg_parser", "parse_validate_default_args"]
