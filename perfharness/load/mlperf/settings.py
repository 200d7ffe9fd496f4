"""What a run of LoadGen is asked to do; the process that runs it gets the same as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from perfharness.backends import Device, DeviceChoice
from perfharness.backends.models import model_source, shapes_of
from perfharness.errors import UsageError
from perfharness.model.base import Settings
from perfharness.model.bench import BenchCase, Precision
from perfharness.model.settings import Option

if TYPE_CHECKING:
    from perfharness.bench.spec import CaseSpec

MODEL, TEST, DATA = "Model", "Test", "Data"
"""Groups of options in the help."""

Scenario = Literal["SingleStream", "MultiStream", "Server", "Offline"]

RANDOM = "random"
ONE_AT_A_TIME = ("SingleStream", "MultiStream")
"""Scenarios in which LoadGen waits for the answer to a query before it issues the next."""


LAUNCH_SETTINGS = (
    "gpus", "gpu_offset", "cpu_bind", "require_exclusive", "timeout_s", "warmup_batches",
    "tracer", "nsys", "trace_os", "telemetry", "measure_idle_s", "cool_down_c", "cool_down_limit_s",
    "maximize_clocks", "output_dir", "history",
)  # fmt: skip
"""Settings of `perfharness launch` that a test of LoadGen takes; it is one process, on one GPU or none."""


class MlperfSettings(Settings):
    """Settings of LoadGen, of the system under test and of its data. What is None is LoadGen's own default, or that of
    the configuration files; what is set overrides these.
    """

    model: str
    """A model file, or `module:function`, as of `perfharness bench`."""

    backend: Annotated[str, Option(("--backend",), MODEL, "As of `perfharness bench`.", metavar="NAME[/MODE]")] = ""
    precision: Annotated[Precision, Option(("--precision",), MODEL, "In which the model computes.")] = "fp32"
    device: Annotated[DeviceChoice, Option(("--device",), MODEL, "auto: the GPU where there is one.")] = "auto"
    shape: Annotated[
        tuple[str, ...],
        Option(("--shape",), MODEL, "Of inputs that leave dimensions open.", metavar="NAME=DIMxDIM…,…"),
    ] = ()
    backend_option: Annotated[
        tuple[str, ...], Option(("--backend-option",), MODEL, "Options of the backend.", metavar="NAME=VALUE,…")
    ] = ()
    threads: Annotated[
        int | None, Option(("--threads",), MODEL, "Of the host, for backends that compute there.", metavar="N")
    ] = Field(default=None, ge=1)
    max_batch: Annotated[
        int | None,
        Option(
            ("--max-batch",),
            MODEL,
            "Most samples in one execution. [default: 1; MultiStream: those of a query]",
            metavar="N",
        ),
    ] = Field(default=None, ge=1)
    batch_sizes: Annotated[
        tuple[int, ...],
        Option(
            ("--batch-sizes",),
            MODEL,
            "Sizes that are executed, each with a session; fewer samples are padded. [default: --max-batch]",
            metavar="N,…",
        ),
    ] = ()
    batch_timeout_ms: Annotated[
        float,
        Option(
            ("--batch-timeout",),
            MODEL,
            "Server: how long a batch that is not full waits for more; 0: takes what is queued.",
            metavar="MS",
        ),
    ] = Field(default=0.0, ge=0, allow_inf_nan=False)
    workers: Annotated[
        int,
        Option(("--workers",), MODEL, "Server and Offline: threads, each with sessions of its own.", metavar="N"),
    ] = Field(default=1, ge=1)
    warmup_rounds: Annotated[
        int, Option(("--warmup-rounds",), MODEL, "Executions of each session before the test.", metavar="N")
    ] = Field(default=5, ge=1)

    scenario: Annotated[Scenario, Option(("--scenario",), TEST, "Of LoadGen.")] = "SingleStream"
    benchmark: Annotated[
        str | None,
        Option(
            ("--benchmark",),
            TEST,
            "Apply LoadGen's own rules of this benchmark, as resnet50.",
            metavar="NAME",
        ),
    ] = None
    user_conf: Annotated[Path | None, Option(("--user-conf",), TEST, "LoadGen's user.conf.", metavar="FILE")] = None
    target_qps: Annotated[
        float | None,
        Option(
            ("--target-qps",),
            TEST,
            "Server: queries a second that are issued; Offline: samples a second that are expected.",
            metavar="X",
        ),
    ] = Field(default=None, gt=0, allow_inf_nan=False)
    target_latency_ms: Annotated[
        float | None,
        Option(
            ("--target-latency",),
            TEST,
            "Server: the bound; SingleStream, MultiStream: expected of a query.",
            metavar="MS",
        ),
    ] = Field(default=None, gt=0, allow_inf_nan=False)
    min_duration_s: Annotated[float | None, Option(("--min-duration",), TEST, "Of the test.", metavar="SECONDS")] = (
        Field(default=None, ge=0, allow_inf_nan=False)
    )
    max_duration_s: Annotated[
        float | None, Option(("--max-duration",), TEST, "Of the test; the result is INVALID then.", metavar="SECONDS")
    ] = Field(default=None, ge=0, allow_inf_nan=False)
    min_queries: Annotated[int | None, Option(("--min-queries",), TEST, "Of the test.", metavar="N")] = Field(
        default=None, ge=1
    )
    max_queries: Annotated[int | None, Option(("--max-queries",), TEST, "Of the test.", metavar="N")] = Field(
        default=None, ge=1
    )
    samples_per_query: Annotated[
        int | None, Option(("--samples-per-query",), TEST, "MultiStream. [default: 8]", metavar="N")
    ] = Field(default=None, ge=1)
    seed: Annotated[
        int | None,
        Option(("--seed",), TEST, "Sets LoadGen's three seeds. [default: those of LoadGen or its files]", metavar="N"),
    ] = Field(default=None, ge=0)
    log_queries: Annotated[
        bool,
        Option(
            ("--log-queries",),
            TEST,
            "LoadGen's trace log too: when each query was scheduled.",
            negative="--no-log-queries",
        ),
    ] = False

    dataset: Annotated[
        str,
        Option(
            ("--dataset",),
            DATA,
            "random, an .npz with an array of samples for each input, or a function.",
            metavar="FILE.npz|module:function",
        ),
    ] = RANDOM
    samples: Annotated[
        int | None,
        Option(("--samples",), DATA, "How many of them. [default: all; random: 64]", metavar="N"),
    ] = Field(default=None, ge=1)
    performance_samples: Annotated[
        int | None,
        Option(
            ("--performance-samples",),
            DATA,
            "How many LoadGen holds in memory. [default: all, at most 1024]",
            metavar="N",
        ),
    ] = Field(default=None, ge=1)

    @field_validator("shape", "backend_option", "batch_sizes", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """`a,b` is two."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return tuple(value) if isinstance(value, list) else value

    @field_validator("batch_sizes")
    @classmethod
    def _are_sizes(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in sizes):
            raise ValueError("must be 1 or more")
        return tuple(sorted(set(sizes)))

    @property
    def query_samples(self) -> int:
        """Samples in a query, as far as the options say."""
        return (self.samples_per_query or 8) if self.scenario == "MultiStream" else 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes that are executed, ascending.

        Server, which has batches of any size: powers of two.
        """
        if self.batch_sizes:
            return self.batch_sizes
        largest = self.max_batch or self.query_samples
        if self.scenario != "Server":
            return (largest,)
        return (*(1 << power for power in range((largest - 1).bit_length())), largest)

    def case_spec(self, device: Device, batch_size: int = 1) -> CaseSpec:
        """The model as a case of `bench`. Raises `UsageError`."""
        from perfharness.backends import backend_and_mode
        from perfharness.bench.spec import CaseSpec  # takes long to import

        name, mode = backend_and_mode(self.backend)
        source = model_source(self.model)
        case = BenchCase(
            case_id="", model=source.name, backend=name, mode=mode, precision=self.precision, device=device,
            batch_size=batch_size,
        )  # fmt: skip
        extra = {}
        for text in self.backend_option:
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise UsageError(f"--backend-option {text}: must be NAME=VALUE")
            extra[key] = value
        return CaseSpec(
            case=case,
            model=self.model,
            threads=self.threads,
            extra=extra,
            inputs=shapes_of(self.shape),
            seed=self.seed or 0,
        )


def check_settings(settings: MlperfSettings) -> None:
    """Raise `UsageError` where settings contradict each other, or name what is not there."""
    from perfharness.backends import backend

    if not settings.backend:
        raise UsageError("name a --backend, as --backend onnxruntime")
    backend(settings.case_spec("cpu").case.backend)
    dataset = Path(settings.dataset) if settings.dataset.endswith(".npz") else None
    for option, path in (
        ("--user-conf", settings.user_conf), ("--dataset", dataset),
    ):  # fmt: skip
        if path is not None and not path.is_file():
            raise UsageError(f"{option}: there is no file {path}")
    is_queue = settings.scenario not in ONE_AT_A_TIME
    if settings.workers > 1 and not is_queue:
        raise UsageError(
            f"--workers {settings.workers}: {settings.scenario} issues one query at a time; workers are for Server and "
            "Offline"
        )
    if settings.batch_timeout_ms and settings.scenario != "Server":
        raise UsageError(f"--batch-timeout: only Server waits for more queries, {settings.scenario} does not")
    if settings.samples_per_query is not None and settings.scenario != "MultiStream":
        raise UsageError(f"--samples-per-query is MultiStream's; {settings.scenario} has its own")
    if settings.target_qps is not None and not is_queue:
        raise UsageError(
            f"--target-qps: {settings.scenario} has no rate, for each query waits for the answer before; Server and "
            "Offline have one"
        )
    if settings.target_latency_ms is not None and settings.scenario == "Offline":
        raise UsageError("--target-latency: Offline has one query with everything, and no latency to expect")
    for name, least, most in (
        ("duration", settings.min_duration_s, settings.max_duration_s),
        ("queries", settings.min_queries, settings.max_queries),
    ):
        if least is not None and most and least > most:
            raise UsageError(f"--min-{name} {least:g} is above --max-{name} {most:g}, so the test would be INVALID")
    if settings.batch_sizes and settings.max_batch not in (None, settings.batch_sizes[-1]):
        raise UsageError("--batch-sizes ends with the largest batch, so leave --max-batch away")
    if settings.scenario == "Server" and settings.target_qps is None and settings.user_conf is None:
        raise UsageError("Server issues queries at a rate; give --target-qps, or a --user-conf with target_qps")
