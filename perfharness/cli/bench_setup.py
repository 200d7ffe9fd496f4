"""What verbs of `perfharness bench` have in common: the suite that flags make, the machine, what is said at the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfharness.cli.options import EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.report.console import Console

if TYPE_CHECKING:
    from perfharness.bench.suite.suite import Suite
    from perfharness.model.bench import MachineRecord
    from perfharness.model.manifest import GpuRecord
    from perfharness.render.charts.drawing import Picture


def suite_of(path: Path | None, flags: dict[str, Any], equality: bool | None) -> Suite:
    """The suite of a file with the flags over it."""
    from perfharness.bench.suite.check import make_suite
    from perfharness.bench.suite.suite import read_suite

    if path is None and not (flags["models"] or flags["backends"]):
        raise UsageError("name a suite (perfharness bench suite.toml), or --model and --backend")
    content: dict[str, Any] = read_suite(path) if path is not None else {"folder": Path.cwd()}
    for key, value in flags.items():
        table, dot, name = key.rpartition(".")
        if value is None or key == "shapes":
            continue
        if key in ("models", "backends"):
            content.pop(key[:-1], None)
        if dot:
            content[table] = {**content.get(table, {}), name: value}
        else:
            content[key] = value
    if flags.get("shapes"):
        content = with_inputs(content, flags["shapes"])
    if equality is not None:
        kept = content.pop("equality", {})
        content |= {"equality": kept} if equality else {}
    return make_suite(content, str(path) if path is not None else "the command line")


def with_inputs(content: dict[str, Any], shapes: dict[str, tuple[int | str, ...]]) -> dict[str, Any]:
    """The tables of a suite with these shapes of every model's inputs."""
    from perfharness.bench.suite.check import written_out

    content = written_out(content)
    tables = [{**one, "inputs": {**one.get("inputs", {}), **shapes}} for one in content["model"]]
    return {**content, "model": tables}


def gpu_of(suite: Suite, gpus: tuple[GpuRecord, ...], problem: str | None) -> GpuRecord | None:
    """The GPU that the suite's CUDA cases run on; None where there is none, or all run on the CPU."""
    import os

    from perfharness_launcher.plan.gpus import choose_gpus

    if suite.run.gpu is not None and not gpus:
        raise UsageError(f"--gpu {suite.run.gpu}: {problem}")
    if not gpus or (suite.device == "cpu" and all(one.device != "cuda" for one in suite.backend)):
        return None
    names = (suite.run.gpu,) if suite.run.gpu is not None else ()
    return choose_gpus(gpus, names=names, visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"))[0]


def machine_of(facts: Any, uuid: str | None) -> MachineRecord:
    """Where results are from.

    Args:
        facts: of its GPUs, as `find_gpus` has them.
        uuid: of the GPU that is used.
    """
    import platform
    import socket

    from perfharness.model.bench import MachineRecord
    from perfharness.model.version import VERSION
    from perfharness_launcher.plan.machine import cpu_model

    return MachineRecord(
        hostname=socket.gethostname(),
        machine_id=_machine_id(),
        cpu=cpu_model(),
        gpus=[gpu.name or gpu.uuid for gpu in facts.gpus if gpu.uuid == uuid],
        driver=facts.driver,
        python=platform.python_version(),
        perfharness=VERSION,
    )


def _machine_id() -> str | None:
    """Of the operating system; as a digest, for the id itself is not meant to leave the machine (machine-id(5))."""
    import hashlib

    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            return hashlib.sha256(f"perfharness {text}".encode()).hexdigest()[:16]
    return None


def exit_code(statuses: Iterable[str], *, interrupted: bool, check_failed: bool = False) -> int:
    """1 where a process failed or all was interrupted, 3 where nothing could be measured or a check failed, else 0."""
    found = set(statuses)
    if interrupted or found & {"failed", "timeout", "not-run"}:
        return EXIT_FAILED
    return EXIT_CHECK_FAILED if check_failed or "ok" not in found else EXIT_OK


def resume_command() -> str:
    """The command line that goes on with this one."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--resume"]
    return shlex.join(["perfharness", *arguments, "--resume"])


def check_charts(asked: bool | None) -> bool | None:
    """Asked for and impossible is an error before anything is started."""
    from perfharness.render.charts.drawing import require_charts

    if asked:
        require_charts("--charts")
    return asked


def say_drawn(console: Console, make: Callable[[], Sequence[Picture]], folder: Path, page: str) -> None:
    """Draw, and name the files; pictures that cannot be drawn do not take the numbers with them."""
    from perfharness.render.charts.drawing import draw

    try:
        written = draw(make(), folder, page)
    except PerfHarnessError as error:
        say(console, str(error))
        return
    if written:
        say(console, f"charts: {', '.join(path.name for path in written)}")


def say(console: Console, text: str) -> None:
    """A line as it is, however long."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
