"""Run a script or a module as Python itself would: the same `__main__`, `sys.path`, tracebacks and exit codes.

For code that has to start before the script: the embedded tracer, annotations from a file.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.machinery
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType, TracebackType
from typing import Any

_OWN_FILES = frozenset(
    __file__.replace("script.py", name)
    for name in (
        "script.py",
        *(f"{package}/{file}.py" for package in ("tracer", "annotate", "host_probe") for file in ("entry", "__main__")),
        "annotate/main_module.py",
        "boot/perfharness_run_module.py",
    )
)
"""Our files, whose frames are hidden above the script's in a traceback."""

_RUNPY = "runpy"

modules_at_start: frozenset[str] = frozenset(sys.modules)
"""Modules that Python had imported before ours, as far as known."""

_shadowed_names: frozenset[str] = frozenset()
"""Modules next to the script, which take precedence over ours of the same name."""

_saved_modules: dict[str, ModuleType] = {}
"""Our modules of these names, imported before the script."""

Compile = Callable[[bytes, str], CodeType]
"""Source and file name -> code, as `compile` does."""


def compile_plainly(source: bytes, path: str) -> CodeType:
    """Compile as Python itself does."""
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    return code


def run(command: list[str], on_interrupt: Callable[[], None], compile_script: Compile = compile_plainly) -> None:
    """Run what follows the options of Python on a command line: `SCRIPT ARGUMENTS…` or `-m MODULE ARGUMENTS…`.

    `on_interrupt` is called when a KeyboardInterrupt ends the script. Python would then end by SIGINT, but forgets it
    when an exit function runs code from a string, as importing NumPy does.
    """
    if command[0] == "-m":
        _run_module(command[1], command[2:], on_interrupt, compile_script)
    elif _is_archive(command[0]):
        _run_archive(command, on_interrupt)
    else:
        _run_path(command, on_interrupt, compile_script)


def _run_path(command: list[str], on_interrupt: Callable[[], None], compile_script: Compile) -> None:
    path = command[0]
    full_path = os.path.abspath(path)  # noqa: PTH100 - as Python itself computes __file__
    try:
        with io.open_code(full_path) as stream:
            source = stream.read()
    except OSError as error:
        # Python's own message and exit code for a script that it cannot open.
        sys.stderr.write(f"{sys.executable}: can't open file {full_path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    sys.argv[:] = command
    if not is_safe_path():
        _set_first_folder(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    module = _new_main(full_path, importlib.machinery.SourceFileLoader("__main__", full_path))
    _execute(lambda: exec(compile_script(source, full_path), module.__dict__), on_interrupt)


def _run_module(name: str, arguments: list[str], on_interrupt: Callable[[], None], compile_script: Compile) -> None:
    import runpy

    sys.argv[:] = ["-m", *arguments]
    if not is_safe_path():
        _set_first_folder(os.getcwd())  # noqa: PTH109
    module = _new_main(None, importlib.machinery.BuiltinImporter)  # until the packages above the module are imported

    def run_annotated() -> None:
        _, spec, code = runpy._get_module_details(name, runpy._Error)  # type: ignore[attr-defined]
        if hasattr(spec.loader, "get_data") and spec.has_location and spec.origin.endswith(".py"):
            code = compile_script(spec.loader.get_data(spec.origin), spec.origin)
        sys.argv[0] = spec.origin
        runpy._run_code(code, module.__dict__, None, "__main__", spec)  # type: ignore[attr-defined]

    def run_plainly() -> None:  # with the frames of `runpy` that tracebacks of `python -m` have
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]

    _execute(run_plainly if compile_script is compile_plainly else run_annotated, on_interrupt)


def _is_archive(path: str) -> bool:
    """Whether Python would run the `__main__` module in a folder or zip file."""
    if path.endswith(".py"):
        return False
    if os.path.isdir(path):  # noqa: PTH112
        return True
    import zipimport

    try:
        zipimport.zipimporter(path)
    except zipimport.ZipImportError:
        return False
    return True


def _run_archive(command: list[str], on_interrupt: Callable[[], None]) -> None:
    import runpy

    path = os.path.abspath(command[0])  # noqa: PTH100
    sys.argv[:] = command
    if is_safe_path():
        sys.path.insert(0, path)
    else:
        _set_first_folder(path)
    _new_main(None, importlib.machinery.BuiltinImporter)
    run_main = runpy._run_module_as_main  # type: ignore[attr-defined]
    _execute(lambda: run_main("__main__", False), on_interrupt)


def is_safe_path() -> bool:
    """Whether an option of Python keeps the script's folder off the path."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def _set_first_folder(folder: str) -> None:
    """Search it first for modules, in place of the folder of ours that Python was started with."""
    sys.path[0] = folder
    _unload_shadowed_modules(folder)


def _unload_shadowed_modules(folder: str) -> None:
    """Let the script import modules next to it, as it would without us: a `json.py`, though we have imported json."""
    global _shadowed_names
    if folder in sys.path[1:]:
        return
    library = {*sys.stdlib_module_names, "perfharness"}
    found = set()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)  # noqa: PTH122 - the script's folder may have a pathlib.py
            if suffix == ".py" or (name in library and not suffix and entry.is_dir()):
                found.add(name)
    _shadowed_names = frozenset(
        name for name in found if name not in modules_at_start and not _is_loaded_from(name, folder)
    )
    _saved_modules.update(_remove_modules(_shadowed_names))


def _is_loaded_from(name: str, folder: str) -> bool:
    """Whether the imported module of that name is the one in the folder."""
    origin = getattr(sys.modules.get(name), "__file__", None)
    return origin is not None and os.path.realpath(origin).startswith(os.path.join(folder, ""))  # noqa: PTH118


def _remove_modules(names: frozenset[str]) -> dict[str, ModuleType]:
    taken = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in taken}


@contextlib.contextmanager
def own_imports(path: list[str]) -> Iterator[None]:
    """While open, imports search that path, as before the script ran, and not the script's folder."""
    scripts_path, sys.path[:] = list(sys.path), path
    scripts_modules = _remove_modules(_shadowed_names)
    sys.modules.update(_saved_modules)
    try:
        yield
    finally:
        sys.path[:] = scripts_path
        _remove_modules(_shadowed_names)
        sys.modules.update(scripts_modules)


def end_by_signal(number: int) -> None:
    """Flush the output and end this process by a signal."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def ending_by_sigint() -> Callable[[], None]:
    """What ends the process by SIGINT after all exit functions, as Python does after a KeyboardInterrupt.

    Call it before the script can register exit functions: the first that is registered runs last.
    """
    interrupts: list[int] = []

    def end_as_interrupted() -> None:
        if interrupts:
            end_by_signal(signal.SIGINT)

    atexit.register(end_as_interrupted)
    return lambda: interrupts.append(signal.SIGINT)


def _new_main(path: str | None, loader: Any) -> ModuleType:
    """An empty `__main__`; without a path, as long as Python looks for the module, it has no file."""
    import builtins

    module = ModuleType("__main__")
    vars(module).update(__builtins__=builtins, __loader__=loader, __package__=None, __spec__=None)
    if path is not None:
        vars(module).update(__file__=path, __cached__=None)
    if sys.version_info < (3, 14):
        vars(module)["__annotations__"] = {}
    sys.modules["__main__"] = module
    return module


def _execute(run_main: Callable[[], None], on_interrupt: Callable[[], None]) -> None:
    try:
        run_main()
    except SystemExit:
        raise
    except KeyboardInterrupt:
        on_interrupt()
        _hide_own_frames()
        raise
    except BaseException:
        _hide_own_frames()
        raise


def _hide_own_frames() -> None:
    """Hide our frames in the next traceback: the hook is wrapped once and restores itself."""
    hook = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        trace = _without_own_frames(trace)
        value = value.with_traceback(trace)
        try:
            hook(kind, value, trace)
        except SystemExit:
            raise
        except BaseException as error:
            # Python's own message for a failing hook.
            inner = error.__traceback__ and error.__traceback__.tb_next
            sys.stderr.write("Error in sys.excepthook:\n")
            sys.__excepthook__(type(error), error.with_traceback(inner), inner)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, value, trace)

    sys.excepthook = show


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback behind our last frame above the script: `runpy` is called to start us, and again by us."""
    behind = trace
    while trace is not None and (_is_own(trace) or _is_runpy(trace)):
        if _is_own(trace):
            behind = trace.tb_next
        trace = trace.tb_next
    return behind


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename in _OWN_FILES


def _is_runpy(trace: TracebackType) -> bool:
    frame = trace.tb_frame
    return _RUNPY in frame.f_code.co_filename and frame.f_globals.get("__name__") == _RUNPY
