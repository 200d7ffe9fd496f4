"""Time inside libraries: whose it is, and what their caller can change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from perfharness.analysis.diagnosis.rules.evidence import Figures
from perfharness.analysis.host_samples.frames import library_of
from perfharness.model.diagnosis import FunctionTime

MOST_OF_IT = 0.50
"""Of a function's time: in a library that takes so much of it, rather than in the function itself."""
MIN_IDLE = 0.40
"""Of the CPUs: on a machine of two, a program of one thread leaves half of them, less what the sampler takes."""

MAX_OTHERS = 0.25
"""Of the host time, of other processes that have the CPUs: as much of one as the sampler takes at most."""

THREADS = {
    "onnxruntime": "SessionOptions.intra_op_num_threads",
    "torch": "torch.set_num_threads, OMP_NUM_THREADS",
    "cv2": "cv2.setNumThreads",
    "faiss": "faiss.omp_set_num_threads",
    "sklearn": "n_jobs",
    "numpy": "OMP_NUM_THREADS for linear algebra",
    "scipy": "workers=",
}
"""How a library is told to use more threads."""
LESS = {
    "onnxruntime": "smaller inputs, fewer runs, a smaller or quantized model",
    "torch": "smaller inputs, a smaller or quantized model, torch.compile",
    "transformers": "fewer steps in Python: fewer logits processors and callbacks, torch.compile",
    "logging": "fewer messages, a higher level, no exc_info where nobody reads the traceback",
    "PIL": "Image.draft or reduce before decoding and resizing, cheaper filters",
}
"""How a caller gives a library less to do."""
ENGINES = ("onnxruntime", "torch", "tensorflow", "jax", "openvino", "faiss")
"""What they compute is what the stage is for: calling them less is not what can be saved."""
HANDS_OVER = ("asyncio", "concurrent", "multiprocessing", "queue", "select", "selectors", "threading")
"""What they compute is waking, and being woken, once for each piece of work."""


@dataclass(frozen=True)
class LibraryTime:
    """Most of the time of a stage's busiest function is a library's, or its with all that it calls. `name`: as it is
    imported; times a batch.
    """

    name: str
    ms: float
    function: FunctionTime
    """What to call less: that takes most of it, or, where other libraries do its work, that is called."""
    most_in: str
    """The function that takes most of it, with its library where that is another one."""


def time_in_library(f: Figures) -> LibraryTime | None:
    """The library that takes most of the busiest function's time; None: that function itself does, or nobody."""
    if f.host is None or f.host.busiest is None:
        return None
    return _largest(f.host.in_libraries, f.host.in_libraries, f) or _largest(f.host.called, f.host.in_libraries, f)


def _largest(functions: Sequence[FunctionTime], inner: Sequence[FunctionTime], f: Figures) -> LibraryTime | None:
    """The library that most of the busiest function's time is in, of these functions, each with its own time."""
    assert f.host is not None, "where there is a busiest function"
    assert f.host.busiest is not None, "where there is a busiest function"
    by_name: defaultdict[str, list[FunctionTime]] = defaultdict(list)
    for function in functions:
        name = library_of(function.file)
        if name is not None:
            by_name[name].append(function)
    spent = {name: sum(function.self_ms for function in of_name) for name, of_name in by_name.items()}
    name = max(spent, key=lambda each: spent[each], default=None)
    if name is None or not inner or spent[name] < MOST_OF_IT * f.host.busiest.self_ms:
        return None
    first = by_name[name][0]
    most = first if functions is inner else inner[0]
    other = library_of(most.file)
    return LibraryTime(name, spent[name], first, most.function if other == name else f"{other}.{most.function}")


def idle_share(f: Figures) -> float | None:
    """Of the CPUs that the process may use, those that nobody used in the stage; None: too few, or not known."""
    if f.host is None or f.host.profile.cpus_used is None or not f.host.profile.cpus:
        return None
    if f.others_ns > MAX_OTHERS * f.wall:
        return None  # what this process leaves, others have
    # While a thread is ready and gets no CPU, none is idle.
    free = f.host.profile.cpus * (1 - f.state_ns("runnable") / f.wall) if f.wall else 0.0
    idle = (free - f.host.profile.cpus_used) / free if free > 0 else 0.0
    return idle if idle >= MIN_IDLE else None


def cpus_text(f: Figures) -> str:
    """How many CPUs the process used."""
    assert f.host is not None, "where a share of them is idle"
    return f"{f.host.profile.cpus_used:.1f} of {f.host.profile.cpus} CPUs are used"


def cheaper(function: str, library: LibraryTime | None, *, is_idle: bool) -> str:
    """What to try where computing takes the time, without a full stop.

    Args:
        is_idle: whether CPUs are.
    """
    if library is None:
        return f"make {function} cheaper" + (", or spread its work over processes" if is_idle else "")
    if library.name in HANDS_OVER:
        return f"hand over fewer and larger pieces of work: each costs {function} a call of {library.function.function}"
    if library.name == "importlib":
        return "import at the top of the module, once; remember that a module is missing, for Python does not"
    threads = THREADS.get(library.name)
    less = LESS.get(library.name, "smaller inputs, cheaper options, fewer calls")
    step = f"give {library.function.function} of {library.name} less to do ({less})"
    if not is_idle:
        return step
    return f"give {library.name} more threads ({threads}); or {step}" if threads else f"{step}, or spread its calls"
