"""Gather what the plan rests on: GPUs, nsys, the interpreter, the script and the output folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perfharness.boot import ASK_INTERPRETER
from perfharness.model.plan import InterpreterFacts, LaunchOptions, MachineFacts, NsysInstall
from perfharness_launcher.annotations import AnnotationFacts, read_annotations
from perfharness_launcher.discovery import find_nsys
from perfharness_launcher.gpus import GpuFacts, find_gpus
from perfharness_launcher.topology import gpu_localities, read_topology
from perfharness_launcher.tracers import Pair, pair
from perfharness_launcher.trial import try_nsys

INTERPRETER_TIMEOUT_S = 60


def gather(options: LaunchOptions, environ: Mapping[str, str], gpus: GpuFacts | None = None) -> MachineFacts:
    """Ask the machine everything that this launch may depend on."""
    gpus = gpus or find_gpus()
    interpreter = ask_interpreter(options.python) if options.is_python_script else InterpreterFacts(options.python)
    nsys = find_nsys(options.nsys, environ) if options.tracer in ("auto", "nsys") else ()
    annotations = _annotations(options, interpreter)
    topology = read_topology() if options.cpu_bind != "none" else None
    return MachineFacts(
        gpus=gpus.gpus,
        gpu_problem=gpus.problem,
        visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        nsys=with_trials(nsys, interpreter),
        interpreter=interpreter,
        cuda_driver=gpus.cuda_driver,
        script_problem=_script_problem(options),
        output_problem=_output_problem(options.output_dir),
        program=None if options.is_python_script else shutil.which(options.script),
        annotations=annotations.annotations,
        annotation_problems=annotations.problems,
        topology=topology,
        near_gpus=gpu_localities([gpu.uuid for gpu in gpus.gpus], topology) if topology and gpus.gpus else {},
    )


def _annotations(options: LaunchOptions, interpreter: InterpreterFacts) -> AnnotationFacts:
    """What the script is annotated with; not looked into where something else is wrong with script or interpreter."""
    if not options.is_python_script or not interpreter.has_perfharness or _script_problem(options):
        return AnnotationFacts()
    return read_annotations(options.annotate, options.annotate_torch, Path(options.script), interpreter)


def with_trials(installs: tuple[NsysInstall, ...], interpreter: InterpreterFacts) -> tuple[NsysInstall, ...]:
    """Try the newest usable nsys where nobody knows yet whether it records this nvtx; the others are left as found."""
    for position, install in enumerate(installs):
        if not install.usable:
            continue
        if pair(install, interpreter.nvtx) is not Pair.UNKNOWN:
            break
        tried = replace(install, hears_nvtx=try_nsys(install, interpreter.executable).hears_nvtx)
        return (*installs[:position], tried, *installs[position + 1 :])
    return installs


def ask_interpreter(python: str) -> InterpreterFacts:
    """What the interpreter would import, asked of itself."""
    executable = shutil.which(python)
    if executable is None:
        return InterpreterFacts(python, problem=f"--python {python}: no such program")
    try:
        done = subprocess.run(
            [executable, str(ASK_INTERPRETER)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INTERPRETER_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return InterpreterFacts(executable, problem=f"--python {python} does not behave like a Python interpreter")
    return InterpreterFacts(executable, answer["version"], answer["nvtx"], answer["has_perfharness"])


def _script_problem(options: LaunchOptions) -> str | None:
    script = Path(options.script)
    if options.is_python_script:
        if script.is_dir():
            return f"{script} is a folder, not a script"
        if not script.exists():
            return f"there is no script {script}"
        return None if os.access(script, os.R_OK) else f"{script} cannot be read"
    if shutil.which(options.script) is not None:
        return None
    if script.is_dir():
        return f"{script} is a folder, not a program"
    if script.exists():
        return f"{script} does not end in .py, so it runs as a program, but it is not executable"
    return f"there is no program {script}, neither as a path nor on PATH"


def _output_problem(output_dir: Path) -> str | None:
    """Why results could not be put there; looks at the nearest folder that exists, and makes none."""
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
