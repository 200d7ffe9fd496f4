"""Settings of a launch: each once, with its option, help and default.

The command line, the `[launch]` table of a TOML file and `perfharness.launch()` take the same settings.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.base import Settings
from perfharness.model.manifest import SettingsRecord
from perfharness.model.settings import Option, options_of
from perfharness_launcher.program import read_python_command

CpuBind = Literal["auto", "none", "numa"]

PROCESSES = "Processes and GPUs"
BATCHES = "Batches and ranges"
TRACING = "Tracing"
TOGETHER = "Starting together"
MACHINE = "Telemetry and clocks"
OUTPUT = "Output"
"""Groups of options in the help."""

DEFAULT_COOL_DOWN_LIMIT_S = 300.0

SETTINGS_NAME = "perfharness.toml"
PROJECT_NAME = "pyproject.toml"
TABLE = "launch"


class LaunchOptions(Settings):
    """Settings of a launch. `script` is a `.py` file, a module, or any program (a path, or a name on PATH)."""

    script: str
    script_arguments: tuple[str, ...] = ()
    python_command: tuple[str, ...] = ()
    """The interpreter and its options, if SCRIPT was given as `python [options] FILE`."""

    settings: SettingsRecord | None = None
    """Which of these came from a file."""

    source: str | None = None
    """What is measured, if that is not SCRIPT: `app.py:answer`. Its commit and digest are recorded."""

    num_processes: Annotated[int, Option(("-np", "--num-processes"), PROCESSES, "Processes per GPU.")] = 1
    num_gpus: Annotated[
        int | None, Option(("-ng", "--num-gpus"), PROCESSES, "GPUs to use, -np processes on each. [default: 1]")
    ] = None
    gpu_offset: Annotated[
        int | None, Option(("-go", "--gpu-offset"), PROCESSES, "Number of the first GPU. [default: 0]")
    ] = None
    gpus: Annotated[
        tuple[str, ...], Option(("--gpus",), PROCESSES, "GPUs by UUID, INDEX or INDEX:MIG.", metavar="GPU,…")
    ] = ()
    gpus_per_process: Annotated[
        int, Option(("gpus-per-process",), PROCESSES, "GPUs that each process sees.", metavar="K")
    ] = 1
    cpu_bind: Annotated[
        CpuBind, Option(("--cpu-bind",), PROCESSES, "Bind each process to the CPUs near its GPU (numa), or to none.")
    ] = "auto"
    require_exclusive: Annotated[
        bool,
        Option(("--require-exclusive",), PROCESSES, "Start only on GPUs without other users; fail if one appears."),
    ] = False
    module: Annotated[
        bool, Option(("--module",), PROCESSES, "SCRIPT is the name of a Python module, as after `python -m`.")
    ] = False
    python: Annotated[
        str, Option(("python",), PROCESSES, "Interpreter of a .py SCRIPT or a module.", show_default="this one")
    ] = Field(default_factory=lambda: sys.executable)
    timeout_s: Annotated[
        float | None, Option(("--timeout",), PROCESSES, "End a process after this time.", metavar="SECONDS")
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Option(("-ll", "--log-level"), PROCESSES, "Log level of the script."),
    ] = "info"
    warmup_batches: Annotated[
        int, Option(("-w", "--warmup-batches"), BATCHES, "Batches to drop as warm-up at both ends of each loop.")
    ] = 1
    annotate: Annotated[
        Path | None, Option(("--annotate",), BATCHES, "Measure the functions in this file.", metavar="FILE.toml")
    ] = None
    annotate_torch: Annotated[
        int | None,
        Option(("--annotate-torch",), BATCHES, "Measure PyTorch modules as stages; 0: the outermost.", metavar="DEPTH"),
    ] = None
    annotate_collectives: Annotated[
        bool,
        Option(("--annotate-collectives",), BATCHES, "Measure calls of torch.distributed, to see which rank waits."),
    ] = False
    parallel: Annotated[
        Literal["auto", "data", "model"],
        Option(("--parallel",), BATCHES, "Ranks process different items (data) or the same ones (model)."),
    ] = "auto"
    domain: Annotated[
        str | None, Option(("domain",), BATCHES, "NVTX domain to read, for a script without the recorder.")
    ] = None
    batch_pattern: Annotated[
        str | None,
        Option(
            ("batch-pattern",), BATCHES, "Ranges that are batches, for a script without the recorder.", metavar="REGEX"
        ),
    ] = None
    capture_batches: Annotated[
        str | None,
        Option(
            ("--capture-batches",),
            BATCHES,
            "Trace only batches FIRST to LAST - 1 (from 0) of the first loop that reaches them.",
            metavar="FIRST:LAST",
        ),
    ] = None
    tracer: Annotated[
        Literal["auto", "nsys", "embedded", "ranges", "none"],
        Option(("--tracer",), TRACING, "auto: nsys if a working one is found, else embedded; ranges: wall times only."),
    ] = "auto"
    nsys: Annotated[Path | None, Option(("--nsys",), TRACING, "The nsys to use. [default: found]")] = None
    trace_os: Annotated[bool, Option(("trace-os",), TRACING, "Record system calls that block (nsys only; slow).")] = (
        False
    )
    explain: Annotated[
        bool,
        Option(
            ("--explain",),
            TRACING,
            "Run SCRIPT a second time, to profile functions and waits.",
            negative="--no-explain",
        ),
    ] = False
    sampling: Annotated[
        bool,
        Option(
            ("--sampling",),
            TRACING,
            "Sample Python stacks 50 times a second, from outside, to name functions and lines.",
            negative="--no-sampling",
        ),
    ] = True
    barrier: Annotated[
        bool,
        Option(("--barrier",), TOGETHER, "Start measured batches of all processes together.", negative="--no-barrier"),
    ] = True
    barrier_timeout_s: Annotated[
        float,
        Option(("--barrier-timeout",), TOGETHER, "Wait this long for the last process.", metavar="SECONDS"),
    ] = 300.0
    nodes: Annotated[
        bool,
        Option(("--nodes",), TOGETHER, "Be one node of a run; srun, mpirun or a Kubernetes Job starts one on each."),
    ] = False
    telemetry: Annotated[
        bool, Option(("--telemetry",), MACHINE, "Sample GPUs and host during the run.", negative="--no-telemetry")
    ] = True
    metrics: Annotated[
        str | None,
        Option(
            ("--metrics",),
            MACHINE,
            "Serve the readings to Prometheus during the run, as at 127.0.0.1:9400; 0.0.0.0 for other hosts.",
            metavar="HOST:PORT",
        ),
    ] = None
    measure_idle_s: Annotated[
        float, Option(("measure-idle",), MACHINE, "Sample the idle GPUs this long before the run.", metavar="SECONDS")
    ] = 1.0
    cool_down_c: Annotated[
        float | None, Option(("--cool-down",), MACHINE, "Wait until the GPUs are this cool.", metavar="CELSIUS")
    ] = None
    cool_down_limit_s: Annotated[
        float, Option(("cool-down-limit",), MACHINE, "Wait at most this long for --cool-down.", metavar="SECONDS")
    ] = DEFAULT_COOL_DOWN_LIMIT_S
    maximize_clocks: Annotated[
        bool, Option(("-m", "--maximize-clocks"), MACHINE, "Lock the GPU clocks at maximum during the run.")
    ] = False
    output_dir: Annotated[Path, Option(("-o", "--output-dir"), OUTPUT, "Folder of the results.")] = Path("out")
    history: Annotated[bool, Option(("--history",), OUTPUT, "Add the run to the history.", negative="--no-history")] = (
        True
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        return tuple(value) if isinstance(value, list) else value


OPTIONS = options_of(LaunchOptions)
FIELDS = {option.key: name for name, option in OPTIONS.items()}
"""Fields by their names in a file."""


def read_settings(words: Sequence[str], config: Path | None = None) -> tuple[dict[str, Any], SettingsRecord | None]:
    """Read settings from a file, by field, and which they are; paths in it are relative to it.

    Args:
        words: SCRIPT and its arguments.
        config: the file; None: `perfharness.toml` or `pyproject.toml` next to the script, or next to the first Python
            file among its arguments (torchrun, a module).
    """
    for path in _candidates(words) if config is None else [config]:
        content = read_toml(path, "--config" if config is not None else "")
        table = content.get("tool", {}).get("perfharness", {}) if path.name == PROJECT_NAME else content
        name = f"[tool.perfharness.{TABLE}]" if path.name == PROJECT_NAME else f"[{TABLE}]"
        if stray := sorted(key for key in table if key.replace("_", "-") in FIELDS):
            raise UsageError(f"{path}: move {stray[0]} into {name}")
        if TABLE in table:
            found = _checked(table[TABLE], f"{path} {name}", path.parent)
            return found, SettingsRecord(file=str(path), names=[OPTIONS[field].key for field in found])
        if config is not None:
            raise UsageError(f"{path} has no table {name}")
    return {}, None


def _candidates(words: Sequence[str]) -> Iterator[Path]:
    files = (Path(word) for word in words if word == words[0] or word.endswith(".py"))
    script = next((path for path in files if path.is_file()), None)
    if script is not None:
        yield from (path for name in (SETTINGS_NAME, PROJECT_NAME) if (path := script.with_name(name)).is_file())


def _checked(table: Any, where: str, folder: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} must be a table, not {table!r}")
    unknown = sorted(key for key in table if key.replace("_", "-") not in FIELDS)
    if unknown:
        raise UsageError(f"{where}: {_unknown(unknown[0].replace('_', '-'), FIELDS)}")
    values = {FIELDS[key.replace("_", "-")]: value for key, value in table.items()}
    try:  # as JSON, in which a path is a string and a tuple a list, though nothing else is converted
        checked = LaunchOptions.model_validate_json(json.dumps({"script": "", **values}, default=str), strict=True)
    except ValidationError as error:
        raise UsageError("\n".join(f"{where}: {sentence}" for sentence in sentences_of(error))) from None
    found = {name: getattr(checked, name) for name in values}
    if "/" in found.get("python", ""):
        found["python"] = str(folder / found["python"])
    return {name: folder / value if isinstance(value, Path) else value for name, value in found.items()}


def launch_options(
    script: str | Path, script_arguments: Sequence[str], given: Mapping[str, Any], config: str | Path | None = None
) -> LaunchOptions:
    """Combine the settings of a launch: the given ones before those of a file before the defaults.

    Raises:
        UsageError: a setting is unknown or has a wrong type, or the interpreter is named twice.
    """
    words, of_python = [str(script), *map(str, script_arguments)], {}
    if not given.get("module") and (command := read_python_command(words)) is not None:
        if "python" in given:
            raise UsageError(f"python = {given['python']}, but SCRIPT names an interpreter too ({command.python})")
        of_python = {"python_command": (command.python, *command.options), "module": command.is_module}
        words = [command.target, *command.arguments]
    values, record = read_settings(words, None if config is None else Path(config))
    if record is not None:
        record = record.model_copy(update={"names": [OPTIONS[name].key for name in values if name not in given]})
    values |= {**given, **of_python}
    try:
        return LaunchOptions(script=words[0], script_arguments=tuple(words[1:]), settings=record, **values)
    except ValidationError as error:
        raise UsageError("\n".join(sentences_of(error))) from None


def command_of(options: LaunchOptions, *more: str) -> list[str]:
    """Write the command line of a launch, without settings that only files take; `more`: options of other models."""
    words = ["perfharness", "launch", *more]
    for name, option in OPTIONS.items():
        value = getattr(options, name)
        if not option.has_flag or value == LaunchOptions.model_fields[name].get_default(call_default_factory=True):
            continue
        if name == "module" and options.python_command:
            continue  # `python -m NAME` says it
        if isinstance(value, bool):
            words.append(option.flags[-1] if value or option.negative is None else option.negative)
        else:
            words += [option.flags[-1], ",".join(value) if isinstance(value, tuple) else str(value)]
    as_module = ["-m"] if options.module and options.python_command else []
    return [*words, *options.python_command, *as_module, options.script, *options.script_arguments]


def sentences_of(error: ValidationError) -> Iterator[str]:
    """One sentence per problem."""
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            yield _unknown(name, LaunchOptions.model_fields)
        else:
            key = OPTIONS[name].key if name in OPTIONS else name
            yield f"{key} = {problem['input']!r} {problem['msg'].removeprefix('Input ')}"


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"there is no setting {name}" + (f"; did you mean {near[0]}?" if near else "; see launch --help-all")
