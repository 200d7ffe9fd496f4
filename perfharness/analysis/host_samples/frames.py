"""Ownership of a stack's frames: the program, a library, or perfharness around it.

Frames of a stack are ordered innermost first, unless stated otherwise.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache

from perfharness.model.host_samples import Frame, HostSamples

LIBRARY_PARTS = (
    "/site-packages/", "/dist-packages/", "<frozen ", "<string>", "<__array_function__", "<eval_with_key>",
    "/__autograph_generated_file", "/torchinductor_", "<attrs generated ", "<decorator-gen-", "<lambdifygenerated-",
)  # fmt: skip
"""Parts of file names that are not the user's own: installed or generated (`<eval_with_key>`: torch.fx; AutoGraph:
tf.function; torchinductor: torch.compile). The standard library is found by its folder (`is_library`)."""
STARTING = re.compile(r"<frozen runpy>|.*/runpy\.py$|.*/perfharness/(boot/|tracer/|annotate/|script\.py$)")
"""Files with the functions that start a measured script."""
INSTRUMENT = re.compile(
    r".*/perfharness/(?:(?:recorder|annotate|tracer|host_probe|boot)/"
    r"|(?:own_work|steps|script|errors|model/[a-z_]+)\.py$)"
    r"|.*/nvtx/nvtx\.py$"
)
"""Files of the code that records in the measured process."""
INSTALLED = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/(.+)")
"""Path of an installed module, relative to its import folder."""
WRAPPERS = ("call", "call_async", "__call__", "inner", "elements", "generate", "_step", "_batches")
"""Functions of these files that only call what they wrap, which is native code if no frame is below them."""


@cache
def is_instrument(file: str) -> bool:
    """Whether a file belongs to the recorder, the annotations, the tracer or the Python package nvtx."""
    return INSTRUMENT.match(file) is not None


@cache
def is_library(file: str) -> bool:
    """Whether a file belongs to an installed package, the standard library, or perfharness."""
    if is_instrument(file) or any(part in file for part in LIBRARY_PARTS):
        return True
    folder = file.rpartition("/lib/python3")[2]
    return folder != file and folder.partition("/")[0].lstrip(".").isdecimal()


def library_of(file: str) -> str | None:
    """The installed package or standard-library module of a file; None for other files."""
    if file.startswith("<frozen importlib"):
        return "importlib"
    inside = inside_library(file)
    return None if inside is None else inside.partition("/")[0].removesuffix(".py")


def inside_library(file: str) -> str | None:
    """Path of an installed module, relative to its import folder; None for other files."""
    found = INSTALLED.match(file)
    return None if found is None else found[1]


def is_recording(frames: Sequence[Frame]) -> bool:
    """Whether perfharness was opening or closing a range: its own function runs, or a library function called by it,
    but not the code it wraps.
    """
    for frame in frames:
        if is_instrument(frame.file):
            return not _is_wrapper(frame)
        if not is_library(frame.file):
            return False
    return False


def stack_of_script(samples: HostSamples, stack: int) -> list[int]:
    """Frame indices of a stack, outermost first, without the frames that start the script."""
    numbers = samples.stacks[stack][::-1]
    starting = list(itertools.takewhile(lambda number: _is_starting(samples.frames[number].file), numbers))
    return list(numbers[len(starting) :] or numbers)


def shown_stack(samples: HostSamples, stack: int) -> list[int]:
    """Like `stack_of_script`, without perfharness's wrapper functions."""
    numbers = stack_of_script(samples, stack)
    outer = [number for number in numbers[:-1] if not _is_wrapper(samples.frames[number])]
    return [*outer, *numbers[-1:]]


def _is_wrapper(frame: Frame) -> bool:
    return is_instrument(frame.file) and frame.function.rpartition(".")[2] in WRAPPERS


def frames_of(samples: HostSamples, stack: int) -> list[Frame]:
    """Frames of a stack, innermost first, without those that start the script."""
    return [samples.frames[number] for number in reversed(stack_of_script(samples, stack))]


@cache
def _is_starting(file: str) -> bool:
    return STARTING.match(file) is not None


def program_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Frames outside perfharness; all frames if there are none."""
    return [frame for frame in frames if not is_instrument(frame.file)] or list(frames)


def own_frame(frames: Sequence[Frame]) -> Frame:
    """The innermost frame outside libraries, else the innermost."""
    return next((frame for frame in frames if not is_library(frame.file)), frames[0])
