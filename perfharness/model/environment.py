"""Names of the environment variables through which a launch speaks to the measured process.

The environment is the only channel, so that unmodified scripts work. Standard library only: the recorder reads this.
All of them: docs/reference/environment.md.
"""

from __future__ import annotations

OUTPUT_DIR = "PERFHARNESS_OUTPUT_DIR"  # folder of this process (`proc_X_gpu_Y`); set: inside a launch
PROCESS_INDEX = "PERFHARNESS_PROCESS_INDEX"  # over all GPUs, from 0
NUM_PROCESSES = "PERFHARNESS_NUM_PROCESSES"  # over all GPUs
GPU_INDEX = "PERFHARNESS_GPU_INDEX"  # on the machine, several with commas; inside the process they are devices 0, 1, …
TRACER = "PERFHARNESS_TRACER"  # `nsys`, `embedded`, `ranges` or `none`
WARMUP_BATCHES = "PERFHARNESS_WARMUP_BATCHES"
CAPTURE_BATCHES = "PERFHARNESS_CAPTURE_BATCHES"  # `FIRST:LAST`; empty: all
RUN_ID = "PERFHARNESS_RUN_ID"  # marks every process of a run, so that none is left running
LAUNCHED = "PERFHARNESS_LAUNCHED"  # `1`: the launched process; the start-up hook removes it for those that it starts
OUTER_RANK = "PERFHARNESS_OUTER_RANK"  # variables of a rank that the launch itself has: `NAME=VALUE;…`
LOG_LEVEL = "PERFHARNESS_LOG_LEVEL"  # for the script to use
EXPLAIN = "PERFHARNESS_EXPLAIN"  # `1`: the profiling pass of `--explain`
SAMPLING = "PERFHARNESS_SAMPLING"  # `1`: sample the stacks; empty: only in the profiling pass
ANNOTATIONS = "PERFHARNESS_ANNOTATIONS"  # JSON of `model.annotations.Annotations`
NVML_MODULE = "PERFHARNESS_NVML_MODULE"  # for tests: the module used as `pynvml` (docs/internals/tests.md)
START_BARRIER = "PERFHARNESS_START_BARRIER"  # folder of the barrier's FIFOs; empty: no barrier
START_BARRIER_LIMIT = "PERFHARNESS_START_BARRIER_LIMIT"  # seconds after which a process continues without the others
METRICS = "PERFHARNESS_METRICS"  # `1` or `HOST:PORT`: recorders time stages for Prometheus; a launch does not set it
HISTORY = "PERFHARNESS_HISTORY"
"""Path (SQLite), `postgresql://` URL, or `off`. `off` in measured processes: traces contain their environment."""

NODES = "PERFHARNESS_NODES"  # number of nodes of a launch with --nodes, where the engine does not give it
NODE_RANK = "PERFHARNESS_NODE_RANK"  # of this node, from 0
COORDINATOR = "PERFHARNESS_COORDINATOR"  # `HOST:PORT` at which node 0 listens
NODES_TOKEN = "PERFHARNESS_NODES_TOKEN"  # secret that all nodes share; empty in measured processes

HISTORY_OFF = "off"
ONLY_RANGES = "ranges"
LOGGING_TRACERS = ("embedded", ONLY_RANGES)  # whose ranges go into the log of the embedded tracer
BARRIER_ARRIVALS = "arrivals"
"""FIFO in the barrier's folder: a line `process index, pid, UTC nanoseconds` per first measured batch."""
BARRIER_GATE = "gate"  # FIFO in the same folder: the launch writes to it when it opens the barrier
