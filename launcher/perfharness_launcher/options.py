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
from perfharness.model.settings import options_of, setting
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

    num_processes: int = setting(1, "-np --num-processes", PROCESSES, "Processes per GPU.")
    num_gpus: int | None = setting(
        None, "-ng --num-gpus", PROCESSES, "GPUs to use, -np processes on each. [default: 1]"
    )
    gpu_offset: int | None = setting(None, "-go --gpu-offset", PROCESSES, "Number of the first GPU. [default: 0]")
    gpus: tuple[str, ...] = setting((), "--gpus", PROCESSES, "GPUs by UUID, INDEX or INDEX:MIG.", metavar="GPU,…")
    gpus_per_process: int = setting(1, "gpus-per-process", PROCESSES, "GPUs per process.", metavar="K")
    cpu_bind: CpuBind = setting(
        "auto", "--cpu-bind", PROCESSES, "Bind processes to the CPUs near their GPUs (numa), or not (none)."
    )
    require_exclusive: bool = setting(
        False, "--require-exclusive", PROCESSES, "Start only on GPUs without other users; fail if one appears."
    )
    module: bool = setting(False, "--module", PROCESSES, "SCRIPT is a Python module, as in `python -m`.")
    python: str = setting(
        default_python, "python", PROCESSES, "Interpreter of a .py SCRIPT or module.", show_default="this one"
    )
    timeout_s: float | None = setting(None, "--timeout", PROCESSES, "End a process after this time.", metavar="SECONDS")
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "-ll --log-level", PROCESSES, "Log level of the script."
    )
    warmup_batches: int = setting(
        1, "-w --warmup-batches", BATCHES, "Batches to drop as warm-up at both ends of each loop."
    )
    annotate: Path | None = setting(
        None, "--annotate", BATCHES, "Measure the functions in this file.", metavar="FILE.toml"
    )
    annotate_torch: int | None = setting(
        None, "--annotate-torch", BATCHES, "Measure PyTorch modules down to DEPTH (0: outermost).", metavar="DEPTH"
    )
    annotate_collectives: bool = setting(
        False, "--annotate-collectives", BATCHES, "Measure calls of torch.distributed, to see which rank waits."
    )
    parallel: Literal["auto", "data", "model"] = setting(
        "auto", "--parallel", BATCHES, "Ranks process different items (data) or the same ones (model)."
    )
    domain: str | None = setting(None, "domain", BATCHES, "NVTX domain to read in a script without PerfRecorder.")
    batch_pattern: str | None = setting(
        None, "batch-pattern", BATCHES, "Names of batches in a script without PerfRecorder.", metavar="REGEX"
    )
    capture_batches: str | None = setting(
        None,
        "--capture-batches",
        BATCHES,
        "Trace only batches FIRST to LAST - 1 (from 0) of the first loop that reaches them.",
        metavar="FIRST:LAST",
    )
    on_demand: bool = setting(False, "--on-demand", BATCHES, "Record only while `perfharness record OUT` runs.")
    tracer: Literal["auto", "nsys", "embedded", "ranges", "none"] = setting(
        "auto", "--tracer", TRACING, "auto: nsys if it works, else embedded; ranges: wall times only."
    )
    nsys: Path | None = setting(None, "--nsys", TRACING, "nsys to use. [default: newest found]")
    trace_os: bool = setting(False, "trace-os", TRACING, "Record blocking system calls (nsys only; slow).")
    explain: bool = setting(
        False, "--explain/--no-explain", TRACING, "Run SCRIPT again to profile functions and waits."
    )
    sampling: bool = setting(
        True, "--sampling/--no-sampling", TRACING, "Sample Python stacks at 50 Hz to name functions and lines."
    )
    barrier: bool = setting(
        True, "--barrier/--no-barrier", TOGETHER, "Start measured batches of all processes together."
    )
    barrier_timeout_s: float = setting(
        300.0, "--barrier-timeout", TOGETHER, "Longest wait for the last process.", metavar="SECONDS"
    )
    nodes: bool = setting(
        False, "--nodes", TOGETHER, "Run as one node of several, started by srun, mpirun or a Kubernetes Job."
    )
    ray: str | None = setting(
        None, "--ray", TOGETHER, "Launch on the nodes of this Ray cluster.", metavar="auto|ADDRESS"
    )
    num_nodes: int | None = setting(
        None, "--num-nodes", TOGETHER, "Nodes for --ray. [default: all, or all with GPUs]", metavar="N"
    )
    telemetry: bool = setting(True, "--telemetry/--no-telemetry", MACHINE, "Sample GPUs and host during the run.")
    metrics: str | None = setting(
        None,
        "--metrics",
        MACHINE,
        "Serve the readings to Prometheus during the run (127.0.0.1:9400; 0.0.0.0 for other hosts).",
        metavar="HOST:PORT",
    )
    measure_idle_s: float = setting(
        1.0, "measure-idle", MACHINE, "Sample the idle GPUs this long before the run.", metavar="SECONDS"
    )
    cool_down_c: float | None = setting(
        None, "--cool-down", MACHINE, "Wait until the GPUs are this cool.", metavar="CELSIUS"
    )
    cool_down_limit_s: float = setting(
        DEFAULT_COOL_DOWN_LIMIT_S, "cool-down-limit", MACHINE, "Longest wait for --cool-down.", metavar="SECONDS"
    )
    maximize_clocks: bool = setting(
        False, "-m --maximize-clocks", MACHINE, "Lock GPU clocks at maximum during the run."
    )
    output_dir: Path = setting(Path("out"), "-o --output-dir", OUTPUT, "Folder of the results.")
    history: bool = setting(True, "--history/--no-history", OUTPUT, "Add the run to the history.")

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
    for name, option in OPTIONS.items():
        value = getattr(options, name)
        if not option.has_flag or value == LaunchOptions.model_fields[name].get_default(call_default_factory=True):
            continue
        if name == "module" and options.python_command:
            continue  # written as `python -m NAME`
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
    return f"unknown setting {name}" + (f"; did you mean {near[0]}?" if near else "; see launch --help-all")
