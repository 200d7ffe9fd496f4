"""Settings of a launch, each with its option, help and default.

They are shared by the command line, the `[launch]` table of a TOML file and `perfharness.launch()`.
"""

from __future__ import annotations

import difflib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError, field_validator

from perfharness.errors import UsageError
from perfharness.files import read_toml
from perfharness.model.base import Settings
from perfharness.model.manifest import SettingsRecord
from perfharness.model.settings import option, options_of
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

TOOL_RECEIPTS = ("uv-receipt.toml", "pipx_metadata.json")
"""Files in an environment of `uv tool install` or pipx, which lacks the pipeline's packages."""

SETTINGS_NAME = "perfharness.toml"
PROJECT_NAME = "pyproject.toml"
TABLE = "launch"


def default_python() -> str:
    """Interpreter of perfharness, or the first on PATH if perfharness is installed as a tool."""
    is_tool = any(Path(sys.prefix, name).is_file() for name in TOOL_RECEIPTS)
    found = (shutil.which("python") or shutil.which("python3")) if is_tool else None
    return found or sys.executable


class LaunchOptions(Settings):
    """Settings of a launch. `script` is a `.py` file, a module, or a program (path or name on PATH)."""

    script: str
    script_arguments: tuple[str, ...] = ()
    python_command: tuple[str, ...] = ()
    """Interpreter and its options, if SCRIPT is `python [options] FILE`."""

    settings: SettingsRecord | None = None
    """Settings that came from a file."""

    source: str | None = None
    """Measured code if it is not SCRIPT (`app.py:answer`); its commit and digest are recorded."""

    num_processes: int = option("Processes per GPU.", PROCESSES, flags="-np --num-processes", default=1)
    num_gpus: int | None = option("GPUs to use, -np processes on each. [default: 1]", PROCESSES, flags="-ng --num-gpus")
    gpu_offset: int | None = option("Number of the first GPU. [default: 0]", PROCESSES, flags="-go --gpu-offset")
    gpus: tuple[str, ...] = option("GPUs by UUID, INDEX or INDEX:MIG.", PROCESSES, "GPU,…", default=())
    gpus_per_process: int = option("GPUs per process.", PROCESSES, "K", flags="gpus-per-process", default=1)
    cpu_bind: CpuBind = option(
        "Bind processes to the CPUs near their GPUs (numa), or not (none).", PROCESSES, default="auto"
    )
    require_exclusive: bool = option(
        "Start only on GPUs without other users; fail if one appears.", PROCESSES, default=False
    )
    module: bool = option("SCRIPT is a Python module, as in `python -m`.", PROCESSES, default=False)
    python: str = option(
        "Interpreter of a .py SCRIPT or module.",
        PROCESSES,
        flags="python",
        default=default_python,
        show_default="this one",
    )
    timeout_s: float | None = option("End a process after this time.", PROCESSES, "SECONDS", flags="--timeout")
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "Log level of the script.", PROCESSES, flags="-ll --log-level", default="info"
    )
    warmup_batches: int = option(
        "Batches to drop as warm-up at both ends of each loop.", BATCHES, flags="-w --warmup-batches", default=1
    )
    annotate: Path | None = option("Measure the functions in this file.", BATCHES, "FILE.toml")
    annotate_torch: int | None = option("Measure PyTorch modules down to DEPTH (0: outermost).", BATCHES, "DEPTH")
    annotate_collectives: bool = option(
        "Measure calls of torch.distributed, to see which rank waits.", BATCHES, default=False
    )
    parallel: Literal["auto", "data", "model"] = option(
        "Ranks process different items (data) or the same ones (model).", BATCHES, default="auto"
    )
    domain: str | None = option("NVTX domain to read in a script without PerfRecorder.", BATCHES, flags="domain")
    batch_pattern: str | None = option(
        "Names of batches in a script without PerfRecorder.", BATCHES, "REGEX", flags="batch-pattern"
    )
    capture_batches: str | None = option(
        "Trace only batches FIRST to LAST - 1 (from 0) of the first loop that reaches them.", BATCHES, "FIRST:LAST"
    )
    on_demand: bool = option("Record only while `perfharness record OUT` runs.", BATCHES, default=False)
    tracer: Literal["auto", "nsys", "embedded", "ranges", "none"] = option(
        "auto: nsys if it works, else embedded; ranges: wall times only.", TRACING, default="auto"
    )
    nsys: Path | None = option("nsys to use. [default: newest found]", TRACING)
    trace_os: bool = option("Record blocking system calls (nsys only; slow).", TRACING, flags="trace-os", default=False)
    explain: bool = option(
        "Run SCRIPT again to profile functions and waits.", TRACING, default=False, negative="--no-explain"
    )
    sampling: bool = option(
        "Sample Python stacks at 50 Hz to name functions and lines.", TRACING, default=True, negative="--no-sampling"
    )
    barrier: bool = option(
        "Start measured batches of all processes together.", TOGETHER, default=True, negative="--no-barrier"
    )
    barrier_timeout_s: float = option(
        "Longest wait for the last process.", TOGETHER, "SECONDS", flags="--barrier-timeout", default=300.0
    )
    nodes: bool = option(
        "Run as one node of several, started by srun, mpirun or a Kubernetes Job.", TOGETHER, default=False
    )
    ray: str | None = option("Launch on the nodes of this Ray cluster.", TOGETHER, "auto|ADDRESS")
    num_nodes: int | None = option("Nodes for --ray. [default: all, or all with GPUs]", TOGETHER, "N")
    telemetry: bool = option("Sample GPUs and host during the run.", MACHINE, default=True, negative="--no-telemetry")
    metrics: str | None = option(
        "Serve the readings to Prometheus during the run (127.0.0.1:9400; 0.0.0.0 for other hosts).",
        MACHINE,
        "HOST:PORT",
    )
    measure_idle_s: float = option(
        "Sample the idle GPUs this long before the run.", MACHINE, "SECONDS", flags="measure-idle", default=1.0
    )
    cool_down_c: float | None = option("Wait until the GPUs are this cool.", MACHINE, "CELSIUS", flags="--cool-down")
    cool_down_limit_s: float = option(
        "Longest wait for --cool-down.", MACHINE, "SECONDS", flags="cool-down-limit", default=DEFAULT_COOL_DOWN_LIMIT_S
    )
    maximize_clocks: bool = option(
        "Lock GPU clocks at maximum during the run.", MACHINE, flags="-m --maximize-clocks", default=False
    )
    output_dir: Path = option("Folder of the results.", OUTPUT, flags="-o --output-dir", default=Path("out"))
    history: bool = option("Add the run to the history.", OUTPUT, default=True, negative="--no-history")

    @field_validator("gpus", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        return tuple(value) if isinstance(value, list) else value


OPTIONS = options_of(LaunchOptions)
FIELDS = {option.key: name for name, option in OPTIONS.items()}
"""Field names by their keys in a file."""


def read_settings(words: Sequence[str], config: Path | None = None) -> tuple[dict[str, Any], SettingsRecord | None]:
    """Read settings by field, and a record of their names, from a file; relative paths start at its folder.

    Args:
        words: SCRIPT and its arguments.
        config: the file (default: `perfharness.toml` or `pyproject.toml` next to the script, or next to the first
            Python file in its arguments).
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
    try:  # JSON mode accepts strings for paths and lists for tuples, and converts nothing else
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
    """Combine settings: `given` ones override those of a file, which override defaults.

    Raises `UsageError` if a setting is unknown, its type is wrong, or two interpreters are named.
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
    """Command line of a launch, without settings that only files take, and with `more` options."""
    words = ["perfharness", "launch", *more]
    for name, one in OPTIONS.items():
        value = getattr(options, name)
        if not one.has_flag or value == LaunchOptions.model_fields[name].get_default(call_default_factory=True):
            continue
        if name == "module" and options.python_command:
            continue  # written as `python -m NAME`
        if isinstance(value, bool):
            words.append(one.flags[-1] if value or one.negative is None else one.negative)
        else:
            words += [one.flags[-1], ",".join(value) if isinstance(value, tuple) else str(value)]
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
    return f"unknown setting {name}" + (f"; did you mean {near[0]}?" if near else "; see launch --help-all")
