"""Environment variables through which a launch controls the measured process.

Using only the environment keeps scripts unmodified. Standard library only, because the recorder uses this module. List
for users: docs/reference/environment.md.
"""

from __future__ import annotations

OUTPUT_DIR = "PERFHARNESS_OUTPUT_DIR"  # folder of this process (`proc_X_gpu_Y`); set inside a launch
PROCESS_INDEX = "PERFHARNESS_PROCESS_INDEX"  # over all GPUs, from 0
NUM_PROCESSES = "PERFHARNESS_NUM_PROCESSES"  # over all GPUs
GPU_INDEX = "PERFHARNESS_GPU_INDEX"  # on the machine, comma-separated; inside the process devices 0, 1, …
TRACER = "PERFHARNESS_TRACER"  # `nsys`, `embedded`, `ranges` or `none`
WARMUP_BATCHES = "PERFHARNESS_WARMUP_BATCHES"
CAPTURE_BATCHES = "PERFHARNESS_CAPTURE_BATCHES"  # `FIRST:LAST`; empty for all
ON_DEMAND = "PERFHARNESS_ON_DEMAND"  # `1`: record a window when `perfharness record` asks, and nothing else
RUN_ID = "PERFHARNESS_RUN_ID"  # marks every process of a run, to find any left running
LAUNCHED = "PERFHARNESS_LAUNCHED"  # `1` in the launched process; its start-up hook removes it for children
OUTER_RANK = "PERFHARNESS_OUTER_RANK"  # rank variables of the launch itself: `NAME=VALUE;…`
LOG_LEVEL = "PERFHARNESS_LOG_LEVEL"  # for the script to use
EXPLAIN = "PERFHARNESS_EXPLAIN"  # `1`: the profiling pass of `--explain`
SAMPLING = "PERFHARNESS_SAMPLING"  # `1` to sample stacks; empty for only in the profiling pass
ANNOTATIONS = "PERFHARNESS_ANNOTATIONS"  # JSON of `model.annotations.Annotations`
NVML_MODULE = "PERFHARNESS_NVML_MODULE"  # for tests: module to use as `pynvml` (docs/internals/architecture.md)
START_BARRIER = "PERFHARNESS_START_BARRIER"  # folder of the barrier's FIFOs; empty for no barrier
START_BARRIER_LIMIT = "PERFHARNESS_START_BARRIER_LIMIT"  # seconds until a process continues without the others
METRICS = "PERFHARNESS_METRICS"  # `1` or `HOST:PORT`: recorders time stages for Prometheus; a launch does not set it
HISTORY = "PERFHARNESS_HISTORY"
"""Path (SQLite), `postgresql://` URL, or `off`. `off` in measured processes, because traces contain the environment."""

NODES = "PERFHARNESS_NODES"  # number of nodes of a launch with --nodes, if the engine does not set it
NODE_RANK = "PERFHARNESS_NODE_RANK"  # of this node, from 0
COORDINATOR = "PERFHARNESS_COORDINATOR"  # `HOST:PORT` of node 0
NODES_TOKEN = "PERFHARNESS_NODES_TOKEN"  # shared secret of all nodes; empty in measured processes

HISTORY_OFF = "off"
ONLY_RANGES = "ranges"
LOGGING_TRACERS = ("embedded", ONLY_RANGES)  # write ranges into the embedded tracer's log
BARRIER_ARRIVALS = "arrivals"
"""FIFO in the barrier's folder: a line `process index, pid, UTC nanoseconds` per first measured batch."""
BARRIER_GATE = "gate"  # FIFO in the same folder, written when the launch opens the barrier
