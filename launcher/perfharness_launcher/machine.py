"""Gather the facts for a plan: GPUs, CPUs, nsys, interpreter, script, output folder."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from perfharness.boot import ASK_INTERPRETER
from perfharness.distribution import VERSION
from perfharness.errors import UsageError
from perfharness.model.annotations import Annotations
from perfharness.model.manifest import EXPLAIN_NAME, EnvironmentRecord, SourceRecord
from perfharness_launcher.annotations import read_annotations
from perfharness_launcher.collect import records_ranges
from perfharness_launcher.gpus import CpuFacts, GpuFacts, find_cpus, find_gpus
from perfharness_launcher.nsys import NsysInstall, dotted, find_nsys, records_nvtx
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.program import Program, PythonCommand, find_program
from perfharness_launcher.staging import is_run

STARTED_AT = "PERFHARNESS_STARTED_AT"
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
CONTAINER_VARIABLES = frozenset({"container", "KUBERNETES_SERVICE_HOST"})

ANSWER_S = 60
GIT_S = 10


@dataclass(frozen=True)
class InterpreterFacts:
    """Interpreter of the script, or the `problem` with it."""

    executable: str
    version: str | None = None
    nvtx: str | None = None
    has_perfharness: bool = False
    problem: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    module_path: str | None = None
    module_problem: str | None = None


@dataclass(frozen=True)
class MachineFacts:
    """Facts for a plan; each problem is one sentence.

    Args:
        visible_devices: CUDA_VISIBLE_DEVICES of the launcher.
        nsys: newest first.
        annotations: of `--annotate`, `--annotate-torch` and `--annotate-collectives`.
        environment, source: for the manifest.
    """

    program: Program
    gpus: GpuFacts = field(default_factory=GpuFacts)
    visible_devices: str | None = None
    nsys: tuple[NsysInstall, ...] = ()
    interpreter: InterpreterFacts = InterpreterFacts("python3")
    output_problem: str | None = None
    annotations: Annotations | None = None
    annotation_problems: tuple[str, ...] = ()
    cpus: CpuFacts = field(default_factory=CpuFacts)
    environment: EnvironmentRecord = field(default_factory=EnvironmentRecord)
    container_start_unix_ns: int | None = None
    source: SourceRecord = field(default_factory=SourceRecord)


def gather(options: LaunchOptions, environ: Mapping[str, str]) -> MachineFacts:
    """Gather the facts for a launch."""
    gpus = find_gpus()
    python, is_file = options.python_command or (options.python,), bool(options.python_command)
    program = find_program(options.script, options.script_arguments, python, is_module=options.module, is_file=is_file)
    interpreter = _interpreter(program, python[0])
    nsys = find_nsys(options.nsys, environ) if options.tracer in ("auto", "nsys") else ()
    script = _script_path(program.script, interpreter)
    annotations, problems = _annotations(options, program.script, interpreter, script)
    return MachineFacts(
        program=program,
        gpus=gpus,
        visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        nsys=_with_trial(nsys, interpreter),
        interpreter=interpreter,
        output_problem=_output_problem(options),
        annotations=annotations,
        annotation_problems=tuple(problems),
        cpus=find_cpus(gpus.gpus),
        environment=_environment(gpus, interpreter),
        container_start_unix_ns=container_start_unix_ns(),
        source=_source(script if options.source is None else _file_of_target(options.source)),
    )


def _with_trial(installs: tuple[NsysInstall, ...], interpreter: InterpreterFacts) -> tuple[NsysInstall, ...]:
    """Try the first usable nsys, unless it is known whether it records this nvtx."""
    usable = next((install for install in installs if install.usable), None)
    if usable is None or records_nvtx(usable, interpreter.nvtx) is not None:
        return installs
    tried = replace(usable, records_nvtx=records_ranges(usable, interpreter.executable))
    return tuple(tried if install is usable else install for install in installs)


# ---- the interpreter and its script ----


def _interpreter(program: Program, python: str) -> InterpreterFacts:
    """Ask the interpreter of the script. A program may start one on another machine or in a container."""
    own, script = program.python, program.script
    asked = script or own
    if asked is None:
        return InterpreterFacts(python)
    facts = ask_interpreter(asked.python, asked.options, asked.target if asked.is_module else None)
    if asked is own:
        return facts
    if own is None and (facts.problem or facts.module_problem):
        return InterpreterFacts(python)
    return replace(facts, module_problem=None)  # for a launcher of ranks, -m may mean something else


def ask_interpreter(python: str, options: Sequence[str] = (), module: str | None = None) -> InterpreterFacts:
    """Ask an interpreter, run with its later options, for versions, packages and the module to run."""
    executable = shutil.which(python)
    if executable is None:
        return InterpreterFacts(python, problem=f"interpreter {python} not found")
    answer = _ask([executable, *options], {} if module is None else {"module": module})
    if answer is None:
        problem = f"{shlex.join([python, *options])} is not a working Python interpreter"
        return InterpreterFacts(executable, problem=problem)
    del answer["functions"]
    return InterpreterFacts(executable, **answer)


def _ask(python: Sequence[str], question: Mapping[str, Any]) -> dict[str, Any] | None:
    """Answer of `perfharness_ask_interpreter.py`, or None if the program is not a Python interpreter."""
    command = [*python, str(ASK_INTERPRETER), json.dumps(question)]
    try:
        answer: dict[str, Any] = json.loads(_printed_by(command, ANSWER_S).splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return answer


def _printed_by(command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None) -> str:
    """Output of a program. Raises `OSError` or `SubprocessError`."""
    stdin = subprocess.DEVNULL
    return subprocess.run(
        command, stdin=stdin, capture_output=True, text=True, timeout=timeout_s, check=True, env=environ
    ).stdout.strip()


def _script_path(script: PythonCommand | None, interpreter: InterpreterFacts) -> Path | None:
    if script is None:
        return None
    path = Path(interpreter.module_path or "" if script.is_module else script.target)
    return path if path.is_file() else None


def _annotations(
    options: LaunchOptions, script: PythonCommand | None, interpreter: InterpreterFacts, path: Path | None
) -> tuple[Annotations | None, Sequence[str]]:
    """Read the annotations; a file only if script and interpreter are usable."""
    asked = Annotations(torch_depth=options.annotate_torch, collectives=options.annotate_collectives)
    if options.annotate is None:
        return None if asked == Annotations() else asked, ()
    if script is None or path is None or not interpreter.has_perfharness:
        return None, ()
    folder = "" if script.is_module else str(path.resolve().parent)

    def locate(functions: Sequence[str]) -> list[dict[str, Any]]:
        answer = _ask([interpreter.executable, *script.options], {"path": folder, "functions": functions})
        return [] if answer is None else answer["functions"]

    return read_annotations(options.annotate, asked, path, locate)


def _output_problem(options: LaunchOptions) -> str | None:
    """Why results cannot be written, or None; creates no folder."""
    asked = options.output_dir
    folder = asked.absolute()
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        return f"-o {asked}: the path is not UTF-8"
    nearest = next(one for one in (folder, *folder.parents) if one.exists())
    if not nearest.is_dir():
        return f"-o {asked}: {nearest} is a file, not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"-o {asked}: {nearest} cannot be written to"
    explained = asked / EXPLAIN_NAME
    if options.explain and os.path.lexists(explained) and not is_run(explained):
        return f"--explain would overwrite {explained}, which is not a run; choose another -o"
    return None


# ---- for the manifest ----


def _source(script: Path | None) -> SourceRecord:
    if script is None:
        return SourceRecord(git_reason="the script is not a file")
    try:
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError:
        digest = None
    # run no program that the repository configures
    git = ["git", "-c", "core.fsmonitor=false", "-C", str(script.resolve().parent)]
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        commit = _printed_by([*git, "rev-parse", "HEAD"], GIT_S, environ)
        changes = _printed_by([*git, "status", "--porcelain", "--untracked-files=no"], GIT_S, environ)
    except FileNotFoundError:
        return SourceRecord(script_sha256=digest, git_reason="git is not installed")
    except (OSError, ValueError, subprocess.SubprocessError):
        return SourceRecord(script_sha256=digest, git_reason="the script is not in a git repository with a commit")
    return SourceRecord(git_commit=commit, git_dirty=bool(changes), script_sha256=digest)


def _file_of_target(target: str) -> Path | None:
    """File of `path/file`, `path/file.py:function` or `module:function` in the current folder."""
    name = target.rpartition(":")[0]
    module = name.replace(".", "/")
    candidates = (target, name, f"{module}.py", f"{module}/__init__.py")
    return next((Path(one) for one in candidates if one and Path(one).is_file()), None)


def _environment(gpus: GpuFacts, interpreter: InterpreterFacts) -> EnvironmentRecord:
    return EnvironmentRecord(
        hostname=socket.gethostname(),
        os=operating_system(),
        kernel=platform.release(),
        cpu=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        python=interpreter.version,
        perfharness=VERSION,
        nvtx=interpreter.nvtx,
        driver=gpus.driver,
        cuda_driver=dotted(gpus.cuda_driver) if gpus.cuda_driver else None,
        packages=dict(interpreter.packages),
        gpus=list(gpus.gpus),
    )


def container_start_unix_ns() -> int | None:
    """Start of this container: `PERFHARNESS_STARTED_AT`, or the start of its first process; None outside of one.

    Raises `UsageError` if `PERFHARNESS_STARTED_AT` is not a time.
    """
    given = os.environ.get(STARTED_AT)
    if given:
        try:
            return round(float(given) * 1e9)
        except ValueError:
            raise UsageError(f"{STARTED_AT}={given} must be seconds since 1970 (`date +%s.%N`).") from None
    is_inside = any(Path(sign).exists() for sign in CONTAINER_FILES) or not CONTAINER_VARIABLES.isdisjoint(os.environ)
    if not is_inside:
        return None
    since_boot_s = psutil.Process(1).create_time() - psutil.boot_time()  # both are off by up to a second
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + round(since_boot_s * 1e9)


def operating_system() -> str:
    """`Debian GNU/Linux 12 (bookworm)`."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def cpu_model() -> str | None:
    """Model name of the first CPU, or else its architecture."""
    with suppress(OSError):
        cpus = Path("/proc/cpuinfo").read_text(errors="replace")
        if found := re.search(r"^(?:model name|Model)\s*: (.*\S)", cpus, re.MULTILINE):
            return found[1]
    return platform.machine() or None
