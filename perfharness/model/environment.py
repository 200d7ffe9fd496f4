"""Names of the environment variables through which a launch speaks to the measured process.

The environment is the only channel, so that unmodified scripts work. Standard library only: the recorder reads this.
"""

from __future__ import annotations

OUTPUT_DIR = "PERFHARNESS_OUTPUT_DIR"
"""Folder of this process (`proc_X_gpu_Y`); the recorder writes `recorder.json` there. Set means: inside a launch."""

PROCESS_INDEX = "PERFHARNESS_PROCESS_INDEX"
"""Number of the process over all GPUs, from 0."""

NUM_PROCESSES = "PERFHARNESS_NUM_PROCESSES"
"""How many processes the launch measures, over all GPUs."""

GPU_INDEX = "PERFHARNESS_GPU_INDEX"
"""Index of the GPU on the machine, of several with commas; inside the process they are devices 0, 1, …, for
CUDA_VISIBLE_DEVICES holds their UUIDs."""

TRACER = "PERFHARNESS_TRACER"
"""`nsys`, `embedded`, `ranges` or `none`."""

ONLY_RANGES = "ranges"
LOGGING_TRACERS = ("embedded", ONLY_RANGES)
"""Those whose ranges are written into the log of the embedded tracer."""

WARMUP_BATCHES = "PERFHARNESS_WARMUP_BATCHES"
"""`--warmup-batches`."""

CAPTURE_BATCHES = "PERFHARNESS_CAPTURE_BATCHES"
"""`--capture-batches`, as `FIRST:LAST`; unset or empty: all batches are recorded."""

RUN_ID = "PERFHARNESS_RUN_ID"
"""Marks every process of a run, so that none is left running."""

LAUNCHED = "PERFHARNESS_LAUNCHED"
"""`1` for the launched process; the start-up hook removes it, so that no process which that one starts has it."""

OUTER_RANK = "PERFHARNESS_OUTER_RANK"
"""The variables of a rank that the launch was given itself, `NAME=VALUE` with semicolons: no rank of what it starts."""

LOG_LEVEL = "PERFHARNESS_LOG_LEVEL"
"""`--log-level`, for the script to use."""

EXPLAIN = "PERFHARNESS_EXPLAIN"
"""`1` in the profiling pass of `--explain`: record what explains the times, at a cost. Empty: not."""

SAMPLING = "PERFHARNESS_SAMPLING"
"""`1`: sample the stacks of the process from outside. Empty: only where `EXPLAIN` is `1`."""

ANNOTATIONS = "PERFHARNESS_ANNOTATIONS"
"""JSON of `model.annotations.Annotations`, where a launch annotates the script from outside."""

NVML_MODULE = "PERFHARNESS_NVML_MODULE"
"""For tests: the module that answers instead of `pynvml`; see docs/internals/testing-nvml.md."""

START_BARRIER = "PERFHARNESS_START_BARRIER"
"""Folder of the FIFOs of the start barrier; unset or empty: there is none."""

START_BARRIER_LIMIT = "PERFHARNESS_START_BARRIER_LIMIT"
"""Seconds after which a process continues, should the launch not have opened the barrier."""

BARRIER_ARRIVALS = "arrivals"
"""FIFO in it: a line `process index, pid, UTC nanoseconds` from each that has come to its first measured batch."""

BARRIER_GATE = "gate"
"""FIFO in it: the launch writes to it when it opens the barrier, and no process reads from it."""

HISTORY = "PERFHARNESS_HISTORY"
"""Where the history of runs is: a path (SQLite), a `postgresql://` URL, or `off`. `off` in the measured processes,
because a trace contains their environment, and a URL may contain a password."""

HISTORY_OFF = "off"
