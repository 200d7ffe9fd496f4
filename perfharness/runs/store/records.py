"""What the run store holds of a measurement. No environment values, and no argument that looks like a secret."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from perfharness.model.checks import MaskedArguments
from perfharness.model.conventions import printable

Kind = Literal["launch", "stress", "mlperf", "repeat", "sweep", "cold-start", "bench", "bench-sweep", "trtexec"]
KINDS: tuple[str, ...] = get_args(Kind)
LAUNCHED: tuple[Kind, ...] = ("launch", "stress", "mlperf")
"""What is one launch, with a manifest: of a program, of a load test, of a test of LoadGen."""

SERIES: tuple[Kind, ...] = ("repeat", "sweep", "cold-start")
"""Measurements that consist of launches."""

COMPARABLE: tuple[Kind, ...] = (*LAUNCHED, "repeat", "bench", "trtexec")
"""What can be a side of a comparison: the launches of the others differ on purpose."""

WHOLE_RUN = ""
"""`Figure.path` of what is of a run as a whole."""

CPU, GPU, BUSY = "cpu_time", "gpu_time", "gpu_busy_time"
CPU_PER_ITEM, GPU_PER_ITEM, BUSY_PER_ITEM = "cpu_time_per_item", "gpu_time_per_item", "gpu_busy_time_per_item"
THROUGHPUT, ENERGY_PER_ITEM, ENERGY_PER_BATCH = "items_per_second", "energy_per_item_j", "energy_per_batch_j"
LATENCY, DEVICE_MEMORY, HOST_MEMORY = "latency", "device_peak_bytes", "host_peak_bytes"
"""Metrics, by the names that they have in the result files; `latency` is that of a case of `bench`."""

UNITS = {
    **dict.fromkeys((CPU, GPU, BUSY, CPU_PER_ITEM, GPU_PER_ITEM, BUSY_PER_ITEM, LATENCY), "ms"),
    THROUGHPUT: "items/s",
    ENERGY_PER_ITEM: "J",
    ENERGY_PER_BATCH: "J",
    DEVICE_MEMORY: "bytes",
    HOST_MEMORY: "bytes",
}

COMMITTED = "git_committed_unix_s"
"""Of `StoredRun.environment`: when the commit was made."""

Statistic = Literal["mean", "p50", "p95"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="after")
    @classmethod
    def _can_be_stored(cls, value: Any) -> Any:
        """No database takes NUL, nor text that is no UTF-8."""
        return printable(value) if isinstance(value, str) else value


class Figure(_Model):
    """A number of one stage, of one case of a suite, or of a whole run, in one launch."""

    path: str = WHOLE_RUN
    """Of a stage, as in the results; of a suite the id of the case; empty: of the whole."""

    metric: str
    unit: str = ""
    count: int | None = None
    """Of batches without warm-up, or of iterations; of a repeat, of launches."""

    mean: float | None = None
    """Of what is no mean, as a rate or a percentile of a load test, its value."""

    p50: float | None = None
    p95: float | None = None
    low: float | None = None
    high: float | None = None
    """95 % interval of `mean` within this run; null: not known."""

    reason: str | None = None
    """Why there is no mean, or what is in doubt about it."""


class StoredRun(_Model):
    """A launch, a series of launches, a suite or a sweep of `bench`, a result of trtexec."""

    run_id: str
    kind: Kind
    series_id: str | None = None
    """The run that this launch is a part of."""

    position: int | None = None
    """Its place in that, from 0."""

    folder: str
    """Absolute; there may be something else today."""

    created: str
    """UTC, ISO 8601."""

    created_unix_ns: int
    command: MaskedArguments = Field(default_factory=list)
    script: str
    """As it was given; of a load test its target, of a suite its name."""

    script_path: str | None = None
    """Absolute; null where SCRIPT is no file."""

    script_arguments: MaskedArguments = Field(default_factory=list)
    setup: str
    """A digest of what must be equal for the numbers of two runs to be of the same thing: see `setup_facts`."""

    setup_facts: dict[str, Any] = Field(default_factory=dict)
    """Script's name, arguments, machine, CPU, GPUs, tracer, numbers of processes and GPUs, warm-up."""

    environment: dict[str, Any] = Field(default_factory=dict)
    """Versions of the software, the machine; no environment variables."""

    git_commit: str | None = None
    git_dirty: bool | None = None
    """Whether files differed from the commit; null: not recorded."""

    num_processes: int | None = None
    """Of a launch; of a series its launches, of a suite its cases."""

    processes_ok: int | None = None
    """How many of them ended well."""

    exit_code: int
    """As the command ended: 0, 1 or 3; conditions of `--fail-if` are no part of it."""

    verdict: str | None = None
    """Of a load test: `ok`, or how it ended; of LoadGen `VALID` or `INVALID`; with the reason. Null: it has none."""

    errors: int = 0
    warnings: int = 0
    notes: int = 0
    """Numbers of findings."""

    tags: list[str] = Field(default_factory=list)
    figures: list[Figure] = Field(default_factory=list)

    def figure(self, path: str, metric: str) -> Figure | None:
        """One of its figures."""
        return next((one for one in self.figures if one.path == path and one.metric == metric), None)
