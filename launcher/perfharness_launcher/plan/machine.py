"""What the plan depends on: GPUs, nsys, the interpreter, the script, the output folder, the machine itself."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfharness.model.annotations import Annotations
from perfharness.model.manifest import EXPLAIN_NAME, EnvironmentRecord, GpuRecord, SourceRecord
from perfharness.model.version import VERSION
from perfharness_launcher.collect import try_nsys
from perfharness_launcher.nsys import NsysInstall, Pair, dotted, find_nsys, pair
from perfharness_launcher.plan.annotations import AnnotationFacts, read_annotations
from perfharness_launcher.plan.ask import ask
from perfharness_launcher.plan.gpus import GpuFacts, find_gpus
from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.plan.placement import CpuTopology, GpuLocality, gpu_localities, read_topology
from perfharness_launcher.plan.program import Program, find_program
from perfharness_launcher.plan.source import file_of_target, find_source
from perfharness_launcher.staging import is_run


@dataclass(frozen=True)
class InterpreterFacts:
    """The interpreter that runs a Python script, or that `python` names where a program may start one.

    Args:
        nvtx: version of the nvtx package that it would import, or None.
        has_perfharness: whether it can import perfharness, which the embedded tracer needs.
        problem: why nothing could be found out, one sentence.
        packages: versions of the libraries that may decide how long a pipeline takes.
        module_path: the file of the module that is to run; None: it is no module, or not found.
        module_problem: why it cannot be found, one sentence.
    """

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
    """What the plan depends on.

    Args:
        gpus: what CUDA can be pointed at, one each: a GPU, or each MIG instance of a GPU that has MIG on.
        gpu_problem: why no GPU could be listed, one sentence.
        visible_devices: CUDA_VISIBLE_DEVICES of the launcher; None where unset.
        nsys: newest first.
        cuda_driver: newest CUDA that the driver runs, `(13, 0)`.
        program: what SCRIPT is.
        output_problem: why the output folder cannot be used, one sentence.
        annotations: what `--annotate`, `--annotate-torch` and `--annotate-collectives` ask for.
        annotation_problems: why they cannot be done, one sentence each.
        topology: the CPUs; None where not asked for.
        near_gpus: what is near each GPU, by UUID.
        environment: the machine and the software, for the manifest.
        source: what is measured, for the manifest.
    """

    program: Program
    gpus: tuple[GpuRecord, ...] = ()
    gpu_problem: str | None = None
    visible_devices: str | None = None
    nsys: tuple[NsysInstall, ...] = ()
    interpreter: InterpreterFacts = InterpreterFacts("python3")
    cuda_driver: tuple[int, int] | None = None
    output_problem: str | None = None
    annotations: Annotations | None = None
    annotation_problems: tuple[str, ...] = ()
    topology: CpuTopology | None = None
    near_gpus: Mapping[str, GpuLocality] = field(default_factory=dict)
    environment: EnvironmentRecord = field(default_factory=EnvironmentRecord)
    source: SourceRecord | None = None


def gather(options: LaunchOptions, environ: Mapping[str, str]) -> MachineFacts:
    """Ask the machine everything that this launch may depend on."""
    gpus = find_gpus()
    program = find_program(options)
    interpreter = _interpreter(program, options.python)
    nsys = find_nsys(options.nsys, environ) if options.tracer in ("auto", "nsys") else ()
    script = program.script
    source = interpreter.module_path if script.module is not None else script.path if script.is_python else None
    annotations = _annotations(options, program, interpreter, source)
    topology = read_topology() if options.cpu_bind != "none" else None
    return MachineFacts(
        program=program,
        gpus=gpus.gpus,
        gpu_problem=gpus.problem,
        visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        nsys=with_trials(nsys, interpreter),
        interpreter=interpreter,
        cuda_driver=gpus.cuda_driver,
        output_problem=_output_problem(options.output_dir) or _explain_folder_problem(options),
        annotations=annotations.annotations,
        annotation_problems=annotations.problems,
        topology=topology,
        near_gpus=gpu_localities([gpu.uuid for gpu in gpus.gpus], topology) if topology and gpus.gpus else {},
        environment=fingerprint(gpus, interpreter),
        source=find_source(*_measured_source(options, source)),
    )


def _measured_source(options: LaunchOptions, script: str | None) -> tuple[str | None, Sequence[str]]:
    """The file of what is measured, and the arguments that may name more of its files."""
    if options.source is None:
        return script, options.script_arguments
    return file_of_target(options.source), ()


def _interpreter(program: Program, python: str) -> InterpreterFacts:
    """The interpreter that runs a Python program; of another, the one that it starts, where that can be asked."""
    script = program.script
    if script.interpreter is None:
        return InterpreterFacts(python)
    facts = ask_interpreter(script.interpreter, script.interpreter_options, script.module)
    if program.inner is None:
        return facts
    if not program.is_python:  # it may be one of another machine, as in a container
        return facts if facts.problem is None and facts.module_problem is None else InterpreterFacts(python)
    if program.module is not None:
        own = ask_interpreter(program.interpreter or python, program.interpreter_options, program.module)
        return replace(own, module_path=facts.module_path)
    return replace(facts, module_problem=None)  # what looks like the name of a module may be something else


def _annotations(
    options: LaunchOptions, program: Program, interpreter: InterpreterFacts, source: str | None
) -> AnnotationFacts:
    """The annotations of the script; not checked where script or interpreter have another problem."""
    if options.annotate is None:
        return read_annotations(None, options.annotate_torch, Path(), [], collectives=options.annotate_collectives)
    if source is None or not interpreter.has_perfharness or program.problem is not None:
        return AnnotationFacts()
    return read_annotations(
        options.annotate,
        options.annotate_torch,
        Path(source),
        [interpreter.executable, *program.script.interpreter_options],
        is_module=program.script.module is not None,
        collectives=options.annotate_collectives,
    )


def with_trials(installs: tuple[NsysInstall, ...], interpreter: InterpreterFacts) -> tuple[NsysInstall, ...]:
    """Try the newest usable nsys where it is not known whether it records this nvtx; the others stay as found."""
    for position, install in enumerate(installs):
        if not install.usable:
            continue
        if pair(install, interpreter.nvtx) is not Pair.UNKNOWN:
            break
        tried = replace(install, records_nvtx=try_nsys(install, interpreter.executable).records_nvtx)
        return (*installs[:position], tried, *installs[position + 1 :])
    return installs


def ask_interpreter(python: str, options: Sequence[str] = (), module: str | None = None) -> InterpreterFacts:
    """What the interpreter would import, as it reports itself.

    Args:
        options: of Python itself, with which it will run.
        module: that it is to run; None: none.
    """
    executable = shutil.which(python)
    if executable is None:
        return InterpreterFacts(python, problem=f"the interpreter {python}: no such program")
    answer = ask([executable, *options], {} if module is None else {"module": module})
    if answer is None:
        problem = f"{shlex.join([python, *options])} does not behave like a Python interpreter"
        return InterpreterFacts(executable, problem=problem)
    return InterpreterFacts(
        executable,
        answer["version"],
        answer["nvtx"],
        answer["has_perfharness"],
        packages=answer["packages"],
        module_path=answer.get("module_path"),
        module_problem=answer.get("module_problem") and f"{python}: {answer['module_problem']}",
    )


def _output_problem(output_dir: Path) -> str | None:
    """Why results could not be put there; checks the nearest folder that exists, and makes none."""
    try:
        str(output_dir.absolute()).encode()
    except UnicodeEncodeError:
        return f"-o {output_dir.absolute()} is not UTF-8, which the files of the results have to be named in"
    if output_dir.exists() and not output_dir.is_dir():
        return f"-o {output_dir} is a file, not a folder"
    nearest = next(folder for folder in (output_dir.absolute(), *output_dir.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        return f"-o {output_dir}: {nearest} is a file, not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"-o {output_dir}: {nearest} cannot be written to"
    return None


def _explain_folder_problem(options: LaunchOptions) -> str | None:
    folder = options.output_dir / EXPLAIN_NAME
    if not options.explain or not os.path.lexists(folder) or is_run(folder):
        return None
    return f"{folder} is not of a run, and --explain writes there; name another -o"


def fingerprint(gpus: GpuFacts, interpreter: InterpreterFacts) -> EnvironmentRecord:
    """The environment of a run."""
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


def operating_system() -> str:
    """`Debian GNU/Linux 12 (bookworm)`, or what the platform module reports."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def cpu_model() -> str | None:
    """Model name of the first CPU, or its architecture where the kernel names none."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.machine() or None
