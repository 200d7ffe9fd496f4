"""Annotation in the measured process: ranges and batches as NVTX events, and the recorder's counts.

Imports only the standard library and, with the first recorder, nvtx, to leave the process undisturbed.
"""

from perfharness.recorder.arguments import get_default_arg_parser, parse_validate_default_args
from perfharness.recorder.blocks import BatchBlock, RangeBlock
from perfharness.recorder.core import default_recorder
from perfharness.recorder.journal import startup_range
from perfharness.recorder.recorder import PerfRecorder

__all__ = [
    "BatchBlock",
    "PerfRecorder",
    "RangeBlock",
    "default_recorder",
    "get_default_arg_parser",
    "parse_validate_default_args",
    "startup_range",
]
