"""Whose code a frame of a sampled stack is: the program's own, a library's, or that of perfharness around it.

Frames of a stack are in order, the innermost first, where nothing else is said.
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
"""Of files that are not the user's own, or that a library makes (`<eval_with_key>`: torch.fx; AutoGraph: tf.function;
torchinductor: torch.compile); the standard library's are found by their folder (`is_library`)."""
STARTING = re.compile(r"<frozen runpy>|.*/runpy\.py$|.*/perfharness/(boot/|tracer/|annotate/|script\.py$)")
"""Files of the functions that start a measured script."""
INSTRUMENT = re.compile(
    r".*/perfharness/(?:(?:recorder|annotate|tracer|host_probe|boot)/"
    r"|(?:own_work|steps|script|errors|model/[a-z_]+)\.py$)"
    r"|.*/nvtx/nvtx\.py$"
)
"""Files of what records in the measured process."""
INSTALLED = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/(.+)")
"""The path of an installed module, from the folder that it is imported from."""
WRAPPERS = ("call", "call_async", "__call__", "inner", "elements", "generate", "_step", "_batches")
"""Functions of these files that do no more than call what they wrap, which is native where no frame is below them."""


@cache
def is_instrument(file: str) -> bool:
    """Whether a file is of the recorder, the annotations, the tracer or NVTX's Python package."""
    return INSTRUMENT.match(file) is not None


@cache
def is_library(file: str) -> bool:
    """Whether a file is of an installed package, of the standard library, or of perfharness."""
    if is_instrument(file) or any(part in file for part in LIBRARY_PARTS):
        return True
    folder = file.rpartition("/lib/python3")[2]
    return folder != file and folder.partition("/")[0].lstrip(".").isdecimal()


def library_of(file: str) -> str | None:
    """The installed package, or the module of the standard library, that a file is of; None: neither."""
    if file.startswith("<frozen importlib"):
        return "importlib"
    inside = inside_library(file)
    return None if inside is None else inside.partition("/")[0].removesuffix(".py")


def inside_library(file: str) -> str | None:
    """The path of an installed module, from the folder that it is imported from; None: it is none."""
    found = INSTALLED.match(file)
    return None if found is None else found[1]


def is_recording(frames: Sequence[Frame]) -> bool:
    """Whether perfharness was at work, to open or close a range: its function runs, or a library's that it calls, and
    not what it wraps.
    """
    for frame in frames:
        if is_instrument(frame.file):
            return not _is_wrapper(frame)
        if not is_library(frame.file):
            return False
    return False


def stack_of_script(samples: HostSamples, stack: int) -> list[int]:
    """The frames of a stack, indices, the outermost first; without those that started the script."""
    numbers = samples.stacks[stack][::-1]
    starting = list(itertools.takewhile(lambda number: _is_starting(samples.frames[number].file), numbers))
    return list(numbers[len(starting) :] or numbers)


def shown_stack(samples: HostSamples, stack: int) -> list[int]:
    """The same as `stack_of_script`, without the functions of perfharness that only call what they wrap."""
    numbers = stack_of_script(samples, stack)
    outer = [number for number in numbers[:-1] if not _is_wrapper(samples.frames[number])]
    return [*outer, *numbers[-1:]]


def _is_wrapper(frame: Frame) -> bool:
    return is_instrument(frame.file) and frame.function.rpartition(".")[2] in WRAPPERS


def frames_of(samples: HostSamples, stack: int) -> list[Frame]:
    """The same frames, the innermost first."""
    return [samples.frames[number] for number in reversed(stack_of_script(samples, stack))]


@cache
def _is_starting(file: str) -> bool:
    return STARTING.match(file) is not None


def program_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Without those of perfharness; all where there are no others."""
    return [frame for frame in frames if not is_instrument(frame.file)] or list(frames)


def own_frame(frames: Sequence[Frame]) -> Frame:
    """The innermost frame outside of libraries; where there is none, the innermost."""
    return next((frame for frame in frames if not is_library(frame.file)), frames[0])
