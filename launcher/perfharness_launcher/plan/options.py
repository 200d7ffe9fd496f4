"""What a launch is asked to do: each setting once, with its option, help and default; and the file of settings.

The command line, the `[launch]` table of a TOML file and `perfharness.launch()` take the same settings.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.manifest import SettingsRecord
from perfharness.model.settings import Option, options_of
from perfharness.python_command import read_python_command

CpuBind = Literal["auto", "none", "numa"]

PROCESSES = "Processes and GPUs"
BATCHES = "Batches and ranges"
TRACING = "Tracing"
TOGETHER = "Starting together"
MACHINE = "Telemetry and clocks"
OUTPUT = "Output"
"""Groups of options in the help."""

DEFAULT_WARMUP_BATCHES = 1
DEFAULT_OUTPUT_DIR = "out"
DEFAULT_COOL_DOWN_LIMIT_S = 300.0

SETTINGS_NAME = "perfharness.toml"
PROJECT_NAME = "pyproject.toml"
TABLE = "launch"


def split_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """`a,b` is two; blanks and empty parts are left out."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value)


class LaunchOptions(BaseModel):
    """Settings of a launch, checked for form only. Units of fields that have one are the end of their names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    script: str
    """A `.py` file, a module, or any program (a path, or a name on PATH)."""

    script_arguments: tuple[str, ...] = ()

    python_command: tuple[str, ...] = ()
    """The interpreter and its options, where SCRIPT was given as `python [options] FILE`; empty: `python` runs it."""

    settings: SettingsRecord | None = None
    """Which of these came from a file."""

    source: str | None = None
    """What is measured where that is not SCRIPT, as `app.py:answer`: its commit and digest are recorded."""

    num_processes: Annotated[int, Option(("-np", "--num-processes"), PROCESSES, "Processes per GPU.")] = 1
    num_gpus: Annotated[
        int | None,
        Option(
            ("-ng", "--num-gpus"),
            PROCESSES,
            "GPUs to use, -np processes on each. [default: 1]",
        ),
    ] = None
    gpu_offset: Annotated[
        int | None,
        Option(("-go", "--gpu-offset"), PROCESSES, "Number of the first GPU. [default: 0]"),
    ] = None
    gpus: Annotated[
        tuple[str, ...],
        Option(("--gpus",), PROCESSES, "The GPUs: UUID, INDEX, or INDEX:MIG or MIG UUID.", metavar="GPU,…"),
    ] = ()
    gpus_per_process: Annotated[
        int, Option(("gpus-per-process",), PROCESSES, "GPUs that each process sees.", metavar="K")
    ] = 1
    cpu_bind: Annotated[
        CpuBind,
        Option(
            ("--cpu-bind",),
            PROCESSES,
            "CPUs of the processes: all near their GPU (numa), or as they are (none).",
        ),
    ] = "auto"
    require_exclusive: Annotated[
        bool,
        Option(("--require-exclusive",), PROCESSES, "Start only on GPUs without other users; fail if one appears."),
    ] = False
    module: Annotated[
        bool,
        Option(("--module",), PROCESSES, "SCRIPT is the name of a Python module, as after `python -m`."),
    ] = False
    python: Annotated[
        str, Option(("python",), PROCESSES, "Interpreter of a .py SCRIPT or a module.", show_default="this one")
    ] = Field(default_factory=lambda: sys.executable)
    timeout_s: Annotated[
        float | None,
        Option(("--timeout",), PROCESSES, "End a process that runs longer than this.", metavar="SECONDS"),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Option(("-ll", "--log-level"), PROCESSES, "Log level of the script."),
    ] = "info"
    warmup_batches: Annotated[
        int,
        Option(
            ("-w", "--warmup-batches"),
            BATCHES,
            "Batches excluded as warm-up, at the front and at the end of each loop.",
        ),
    ] = DEFAULT_WARMUP_BATCHES
    annotate: Annotated[
        Path | None,
        Option(
            ("--annotate",),
            BATCHES,
            "Functions of the script and its packages that become ranges.",
            metavar="FILE.toml",
        ),
    ] = None
    annotate_torch: Annotated[
        int | None,
        Option(
            ("--annotate-torch",), BATCHES, "PyTorch modules become stages; 0: the outermost only.", metavar="DEPTH"
        ),
    ] = None
    annotate_collectives: Annotated[
        bool,
        Option(
            ("--annotate-collectives",),
            BATCHES,
            "Calls of torch.distributed become ranges, which show who waits for which rank.",
        ),
    ] = False
    parallel: Annotated[
        Literal["auto", "data", "model"],
        Option(
            ("--parallel",),
            BATCHES,
            "Ranks have items of their own (data), or all work on the same ones (model); auto: find out.",
        ),
    ] = "auto"
    domain: Annotated[
        str | None, Option(("domain",), BATCHES, "NVTX domain to read, for a script without the recorder.")
    ] = None
    batch_pattern: Annotated[
        str | None,
        Option(
            ("batch-pattern",),
            BATCHES,
            "Names of the ranges that are batches, for a script without the recorder.",
            metavar="REGEX",
        ),
    ] = None
    capture_batches: Annotated[
        str | None,
        Option(
            ("--capture-batches",),
            BATCHES,
            "Trace only these batches of the first loop that reaches them, from FIRST to before LAST, counted from 0.",
            metavar="FIRST:LAST",
        ),
    ] = None
    tracer: Annotated[
        Literal["auto", "nsys", "embedded", "ranges", "none"],
        Option(
            ("--tracer",),
            TRACING,
            "auto: nsys where a working one is found, else embedded; ranges: host times of ranges only.",
        ),
    ] = "auto"
    nsys: Annotated[Path | None, Option(("--nsys",), TRACING, "The nsys to use; otherwise it is looked for.")] = None
    trace_os: Annotated[
        bool, Option(("trace-os",), TRACING, "Record waits in the operating system too (nsys; costs time).")
    ] = False
    explain: Annotated[
        bool,
        Option(
            ("--explain",),
            TRACING,
            "A second pass that records what explains the times of the first.",
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
        Option(
            ("--barrier",),
            TOGETHER,
            "Hold each process at its first measured batch until all have come to theirs.",
            negative="--no-barrier",
        ),
    ] = True
    barrier_timeout_s: Annotated[
        float,
        Option(
            ("--barrier-timeout",), TOGETHER, "How long the first process there waits for the last.", metavar="SECONDS"
        ),
    ] = 300.0
    """Their imports and models are the same, so minutes between the first and the last mean that one hangs."""

    telemetry: Annotated[
        bool,
        Option(("--telemetry",), MACHINE, "Sample the GPUs and the host during the run.", negative="--no-telemetry"),
    ] = True
    measure_idle_s: Annotated[
        float,
        Option(
            ("measure-idle",),
            MACHINE,
            "How long the idle GPUs are sampled before the first process.",
            metavar="SECONDS",
        ),
    ] = 1.0
    cool_down_c: Annotated[
        float | None,
        Option(("--cool-down",), MACHINE, "Begin when the GPUs are at most that warm.", metavar="CELSIUS"),
    ] = None
    cool_down_limit_s: Annotated[
        float, Option(("cool-down-limit",), MACHINE, "Begin after that long in any case.", metavar="SECONDS")
    ] = DEFAULT_COOL_DOWN_LIMIT_S
    maximize_clocks: Annotated[
        bool,
        Option(("-m", "--maximize-clocks"), MACHINE, "GPU clocks at their maximum for the time of the run."),
    ] = False
    output_dir: Annotated[Path, Option(("-o", "--output-dir"), OUTPUT, "Folder of the results.")] = Path(
        DEFAULT_OUTPUT_DIR
    )
    history: Annotated[bool, Option(("--history",), OUTPUT, "Add the run to the history.", negative="--no-history")] = (
        True
    )

    @field_validator("gpus", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_names(value) if isinstance(value, str | list) else value


KEYS = {option.key: name for name, option in options_of(LaunchOptions).items()}
"""Fields by their names in a file."""


def read_settings(words: Sequence[str], config: Path | None = None) -> tuple[dict[str, Any], SettingsRecord | None]:
    """The settings of a file, by field, and which they are; paths in it are relative to it.

    Args:
        words: SCRIPT and its arguments.
        config: the file; None: `perfharness.toml` or `pyproject.toml` next to the script, where there is one. Where
            SCRIPT is no file (torchrun, a module), next to the first Python file among its arguments.

    Raises:
        UsageError: it cannot be read, or has a setting that does not exist or a value of a wrong type.
    """
    for path in _candidates(words) if config is None else [config]:
        content = read_toml(path, "--config" if config is not None else "")
        table = content.get("tool", {}).get("perfharness", {}) if path.name == PROJECT_NAME else content
        name = f"[tool.perfharness.{TABLE}]" if path.name == PROJECT_NAME else f"[{TABLE}]"
        if stray := sorted(key for key in table if key.replace("_", "-") in KEYS):
            raise UsageError(f"{path}: {stray[0]} stands outside of {name}")
        if TABLE in table:
            found = _checked(table[TABLE], f"{path} {name}", path.parent)
            return found, SettingsRecord(file=str(path), names=[_key(name) for name in found])
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
        raise UsageError(f"{where} is a table of settings, not {table!r}")
    unknown = sorted(key for key in table if key.replace("_", "-") not in KEYS)
    if unknown:
        near = difflib.get_close_matches(unknown[0].replace("_", "-"), KEYS, 1)
        hint = f"; {near[0]} does" if near else "; `perfharness launch --help-all` lists all"
        raise UsageError(f"{where}: the setting {unknown[0]} does not exist{hint}")
    values = {KEYS[key.replace("_", "-")]: value for key, value in table.items()}
    try:  # as JSON, in which a path is a string and a tuple a list, though nothing else is converted
        checked = LaunchOptions.model_validate_json(json.dumps({"script": "", **values}, default=str), strict=True)
    except ValidationError as error:
        raise UsageError("\n".join(f"{where}: {sentence}" for sentence in sentences_of(error))) from None
    return {name: _in_folder(name, getattr(checked, name), folder) for name in values}


def _in_folder(name: str, value: Any, folder: Path) -> Any:
    if isinstance(value, Path):
        return folder / value
    return str(folder / value) if name == "python" and "/" in value else value


def _key(name: str) -> str:
    return next(key for key, field in KEYS.items() if field == name)


def launch_options(
    script: str | Path, script_arguments: Sequence[str], given: Mapping[str, Any], config: str | Path | None = None
) -> LaunchOptions:
    """The options of a launch: the given ones over those of a file over the defaults.

    Args:
        given: by field.
        config: as in `read_settings`.

    Raises:
        UsageError: a setting does not exist or has a wrong type.
    """
    script, script_arguments, of_python = _without_python([str(script), *map(str, script_arguments)], given)
    values, record = read_settings([script, *script_arguments], None if config is None else Path(config))
    if record is not None:
        record = record.model_copy(update={"names": [_key(name) for name in values if name not in given]})
    values |= {**given, **of_python}
    try:
        return LaunchOptions(script=script, script_arguments=tuple(script_arguments), settings=record, **values)
    except ValidationError as error:
        raise UsageError("\n".join(sentences_of(error))) from None


def _without_python(words: Sequence[str], given: Mapping[str, Any]) -> tuple[str, Sequence[str], dict[str, Any]]:
    """SCRIPT, its arguments, and the settings that a `python [options]` before them stands for.

    Raises `UsageError` where the interpreter is named twice.
    """
    command = None if given.get("module") else read_python_command(words)
    if command is None:
        return words[0], words[1:], {}
    if "python" in given:
        raise UsageError(
            f"python = {given['python']} names the interpreter, and so does SCRIPT ({command.python}); drop one of them"
        )
    settings = {"python_command": (command.python, *command.options), "module": command.is_module}
    return command.target, command.arguments, settings


def command_of(options: LaunchOptions, *more: str) -> list[str]:
    """A command line that launches the same, but for settings that only files take.

    Args:
        more: options that are not of the launch itself.
    """
    words = ["perfharness", "launch", *more]
    for name, option in options_of(LaunchOptions).items():
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
    """The problems, a sentence per setting."""
    for problem in error.errors(include_url=False, include_context=False):
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, LaunchOptions.model_fields, 1)
            yield f"the setting {name} does not exist" + (f"; {near[0]} does" if near else "")
        else:
            what = problem["msg"].removeprefix("Input ")
            key = next((key for key, field in KEYS.items() if field == name), name)
            yield f"{key} = {problem['input']!r} {what}"
