"""In a Python that a launched process started: the same annotations, also of the functions of its own script.

The script of a plain `python SCRIPT` is run by the interpreter itself. Where functions of it are named, this process is
replaced by one that runs it through perfharness, with the same pid. A worker of multiprocessing imports it again.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from perfharness.annotate.main_module import script_compiler
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.watch import watch_imports
from perfharness.boot import RUN_MODULE
from perfharness.import_hook import ImportHook
from perfharness.model import environment
from perfharness.model.annotations import MAIN, Annotations
from perfharness.python_command import read_python_command

WORKERS_MAIN = "__mp_main__"


def start() -> None:
    """Annotate from now on, as this process begins."""
    text, folder = os.environ.get(environment.ANNOTATIONS), os.environ.get(environment.OUTPUT_DIR)
    if not text or not folder or any(os.path.basename(word) == RUN_MODULE.name for word in sys.orig_argv):  # noqa: PTH119
        return  # another part of perfharness runs the script
    annotations = Annotations.from_json(text)
    names_main = any(function.module == MAIN for function in annotations.functions)
    if names_main and (command := _own_command(sys.orig_argv)) is not None:
        os.environ[environment.CHILD_PID] = str(os.getpid())
        os.execv(sys.executable, command)
    runtime = Runtime(annotations, os.path.abspath(folder), is_child=True)  # noqa: PTH100 - as the tracer does
    watch_imports(runtime)
    if names_main:
        ImportHook({"runpy"}, lambda module, _: _annotate_workers_main(module, runtime)).install()


def _own_command(words: list[str]) -> list[str] | None:
    """`python [options] SCRIPT …` or `python [options] -m MODULE …`, run by perfharness; None of any other."""
    command = read_python_command(["python", *words[1:]])
    if command is None:
        return None
    module = ("-m",) if command.is_module else ()
    runner = (str(RUN_MODULE), "perfharness.annotate")
    return [sys.executable, *command.options, *runner, *module, command.target, *command.arguments]


def _annotate_workers_main(runpy: ModuleType, runtime: Runtime) -> None:
    """Have a worker's copy of the main script compiled with its annotations."""
    compile_script, run_path = script_compiler(runtime), runpy.run_path
    run_code: Any = vars(runpy)["_run_module_code"]

    def run_annotated(path_name: str, init_globals: Any = None, run_name: str | None = None) -> Any:
        if run_name != WORKERS_MAIN or not os.path.isfile(path_name):  # noqa: PTH113 - start-up time
            return run_path(path_name, init_globals, run_name)
        with open(path_name, "rb") as file:  # noqa: PTH123 - the same
            code = compile_script(file.read(), path_name)
        return run_code(code, init_globals, run_name, pkg_name="", script_name=path_name)

    vars(runpy)["run_path"] = run_annotated
