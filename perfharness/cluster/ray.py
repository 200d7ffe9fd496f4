"""`--ray`: a launch on each of several nodes of a Ray cluster, whose results come back through the object store.

An actor on each node starts the launch there, as a process in a session of its own, with the variables of `--nodes`.
Nothing is started a second time.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfharness.cluster.files import files_of, path_in
from perfharness.cluster.node import refuse_elastic
from perfharness.distribution import install_command
from perfharness.errors import LaunchError, LaunchInterruptedError, ToolNotFoundError, UsageError
from perfharness.files import read_model
from perfharness.model import environment
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import MANIFEST_NAME, RunManifest
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.supervise import Observer

NODE_MODULE = "perfharness.cli.node"
CONNECT_S = 5.0
POLL_S = 0.2
SAY_AFTER_S = 2.0
CLOSE_S = 30.0
"""For launches to end their processes."""

CHUNK_BYTES = 16 << 20
"""Of a file in one object."""

SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")
"""Variables that Ray sets in its workers; a launch has them only if the node or the job sets them."""

PROGRESS = re.compile(r"\[ *\d+\.\d s\] ")
"""In front of what a launch prints about itself."""

PR_SET_PDEATHSIG = 1


# ---- on a node ----


class NodeLaunch:
    """An actor: the launch on one node, and a folder for its results.

    Args:
        folder: the working directory, unless the job has one.
    """

    def __init__(self, folder: str) -> None:
        import ray

        job = ray.get_runtime_context().runtime_env
        self._folder = str(Path.cwd()) if "working_dir" in job else folder
        kept = {*job.get("env_vars", {}), *_variables_of_raylet()}
        self._environ = {name: value for name, value in os.environ.items() if name not in SET_BY_RAY or name in kept}
        self._home = Path(tempfile.mkdtemp(prefix="perfharness-ray-"))
        self._out, errors = self._home / "out", self._home / "errors"
        self._writing, self._reading = errors.open("wb"), errors.open("rb")
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)  # workers of Ray have niceness 15

    def describe(self) -> tuple[str, str, int, int]:
        """Id and host of this node in Ray, a free port there, and the niceness of the launch."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        with socket.socket() as free:
            free.bind(("", 0))
            return node, ray.util.get_node_ip_address(), free.getsockname()[1], os.nice(0)

    def plan(self, order: Mapping[str, Any], variables: Mapping[str, str]) -> tuple[int, str, str]:
        """Exit code, output and errors of a launch with `--dry-run`."""
        if not Path(self._folder).is_dir():
            return 2, "", f"there is no folder {self._folder}; share it, or use ray job submit --working-dir"
        process = self._start({**order, "dry_run": True}, variables, subprocess.PIPE, subprocess.PIPE)
        output, errors = process.communicate()
        return process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")

    def start(self, order: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        """Start the launch."""
        self._process = self._start(order, variables, subprocess.DEVNULL, self._writing)

    def _start(
        self, order: Mapping[str, Any], variables: Mapping[str, str], output: int, errors: Any
    ) -> subprocess.Popen[bytes]:
        libc = ctypes.CDLL(None)

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)

        process = subprocess.Popen(
            [sys.executable, "-m", NODE_MODULE],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            cwd=self._folder,
            env={**self._environ, **variables},
            start_new_session=True,
            preexec_fn=prepare,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            options = {**order["options"], "output_dir": str(self._out)}
            process.stdin.write(json.dumps({**order, "options": options}).encode())
        process.stdin = None
        return process

    def poll(self) -> tuple[bytes, int | None]:
        """What the launch has printed since, and its exit code; waits a moment for its end."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(POLL_S)
        code = self._process.poll()
        return self._reading.read(), code

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def files(self) -> list[tuple[str, int]]:
        """The files of the results: path in the run folder, bytes."""
        return [(path.relative_to(self._out).as_posix(), path.stat().st_size) for path in files_of(self._out)]

    def read(self, name: str, offset: int) -> bytes:
        """Part of a file."""
        with (self._out / name).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

    def close(self) -> None:
        """End the launch if it still runs, and remove its folder."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second one kills what is measured
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(CLOSE_S / 3)
        shutil.rmtree(self._home, ignore_errors=True)


def _variables_of_raylet() -> set[str]:
    """Names in the environment of the process that starts the workers of this node."""
    try:
        environ = Path("/proc", os.environ.get("RAY_RAYLET_PID", "self"), "environ").read_bytes()
    except OSError:
        return set()
    return {entry.partition("=")[0] for entry in environ.decode(errors="replace").split("\0")}


# ---- where the command is typed ----


@dataclass
class Node:
    """What the driver knows of a node."""

    rank: int
    actor: Any
    host: str
    port: int
    niceness: int
    code: int | None = None
    is_lost: bool = False
    partial: bytes = b""
    errors: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"node {self.rank} ({self.host})"


@dataclass
class RayNodes:
    """The nodes that are reserved for a launch."""

    options: LaunchOptions
    nodes: Sequence[Node]
    observer: Observer
    interrupts: Interrupts

    def plans(self) -> list[str]:
        """The plan of each node, as text.

        Raises:
            UsageError: the launch contradicts itself or the machine of a node.
            LaunchError: something is missing on a node.
        """
        answers = self._ask("plan", self._order([]))
        for node, (code, _, errors) in zip(self.nodes, answers, strict=True):
            if code:
                text = "\n".join(_without_name(line) for line in errors.splitlines())
                raise (UsageError if code == 2 else LaunchError)(f"On {node.name}: {text}")
        return [f"{node.name}\n{text}" for node, (_, text, _) in zip(self.nodes, answers, strict=True)]

    def measure(self, command: Sequence[str], into: Path) -> RunManifest:
        """Launch on all nodes, and bring the joined run into a folder.

        Raises:
            UsageError, LaunchError: node 0 has no results.
        """
        import ray

        if self.interrupts:
            raise LaunchInterruptedError("interrupted before anything was started")
        self._ask("start", self._order(command))
        self._watch()
        first = self.nodes[0]
        if first.is_lost:
            raise LaunchError(f"{first.name} was lost, and the results with it.")
        self.observer.stage("bringing the results back")
        self.interrupts.raises = True
        for name, size in ray.get(first.actor.files.remote()):
            with path_in(into, name).open("wb") as file:
                for offset in range(0, size, CHUNK_BYTES):
                    file.write(ray.get(first.actor.read.remote(name, offset)))
        manifest = read_model(into / MANIFEST_NAME, RunManifest)
        if manifest is None:
            text = "\n".join(first.errors) or f"its launch ended with exit code {first.code}"
            raise (UsageError if first.code == 2 else LaunchError)(f"No results of {first.name}: {text}")
        return manifest.model_copy(update={"findings": [*manifest.findings, *self._niceness()]})

    def _niceness(self) -> Iterator[Finding]:
        for node in self.nodes:
            if node.niceness > 0:
                message = f"On {node.name}, Ray ran the launch with niceness {node.niceness}: other work came first."
                hint = "Set RAY_worker_niceness=0 for `ray start` on the node."
                yield Finding("low-priority", Severity.WARNING, message, hint)

    def _order(self, command: Sequence[str]) -> dict[str, Any]:
        """What a node is to launch."""
        options = self.options.model_copy(update={"nodes": True})
        return {
            "options": options.model_dump(mode="json", exclude_unset=True),
            "command": list(command),
            "verbose": self.observer.shows_output,
        }

    def _ask(self, method: str, order: Mapping[str, Any]) -> list[Any]:
        """Call a method on all nodes; return what they answer."""
        import ray

        first = self.nodes[0]
        shared = {
            environment.NODES: str(len(self.nodes)),
            environment.COORDINATOR: f"{first.host}:{first.port}",
            environment.NODES_TOKEN: secrets.token_hex(32),
            environment.HISTORY: environment.HISTORY_OFF,
        }
        asked = []
        for node in self.nodes:
            variables = {**shared, environment.NODE_RANK: str(node.rank)}
            asked.append(getattr(node.actor, method).remote(order, variables))
        answers: list[Any] = ray.get(asked)
        return answers

    def _watch(self) -> None:
        """Pass on what the launches print and each Ctrl-C, until all have ended or node 0 is lost."""
        import ray

        asked, passed_on = {node.actor.poll.remote(): node for node in self.nodes}, 0
        while asked and not self.nodes[0].is_lost:
            if self.interrupts.count > passed_on:
                passed_on = self.interrupts.count
                self.observer.interrupted(passed_on)
                for node in asked.values():
                    node.actor.interrupt.remote()
            for answer in ray.wait(list(asked), timeout=POLL_S)[0]:
                node = asked.pop(answer)
                try:
                    printed, node.code = ray.get(answer)
                except ray.exceptions.RayActorError:
                    node.is_lost = True
                    self.observer.message(f"{node.name} is lost")
                    continue
                self._pass_on(node, printed)
                if node.code is None:
                    asked[node.actor.poll.remote()] = node

    def _pass_on(self, node: Node, printed: bytes) -> None:
        *lines, node.partial = (node.partial + printed).split(b"\n")
        for line in (one.decode(errors="replace") for one in lines):
            progress = PROGRESS.match(line)
            if progress is None:
                node.errors += [_without_name(line)] if line.startswith(ERROR) else []
                self.observer.output(line if node.rank == 0 else f"node {node.rank} | {line}")
            elif node.rank == 0:
                self.observer.message(line[progress.end() :])


ERROR = "perfharness: "


def _without_name(line: str) -> str:
    return line.removeprefix(ERROR)


@contextmanager
def connected(options: LaunchOptions) -> Iterator[None]:
    """A connection to the cluster; one that is open already is used, and stays open.

    Raises:
        UsageError: options contradict each other.
        ToolNotFoundError: Ray is not installed.
        LaunchError: no cluster answers, or it was lost.
    """
    if options.nodes:
        raise UsageError("--ray starts the launch of each node by itself; drop --nodes.")
    if options.num_nodes is not None and options.num_nodes < 1:
        raise UsageError(f"--num-nodes {options.num_nodes}: must be 1 or more")
    refuse_elastic([*options.python_command, options.script, *options.script_arguments])
    try:
        import ray
    except ImportError as error:
        raise ToolNotFoundError(f"--ray needs Ray ({error}). Install it: {install_command('ray')}.") from error
    is_new = not ray.is_initialized()
    if is_new:
        _connect(str(options.ray))
    try:
        yield
    except ray.exceptions.RayError as error:
        raise LaunchError(f"--ray {options.ray}: {_last_line(error)}") from error
    finally:
        if is_new:
            ray.shutdown()


def _connect(address: str) -> None:
    import ray

    asked = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host, _, port = asked.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # Ray takes two minutes to notice
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, SystemExit) as error:
        hint = "Start one with `ray start --head`, or give --ray HOST:PORT of its head."
        raise LaunchError(f"--ray {address}: no cluster answers ({_last_line(error)}). {hint}") from error


def _last_line(error: BaseException) -> str:
    return (str(getattr(error, "strerror", None) or error).strip().splitlines() or [type(error).__name__])[-1].rstrip(
        "."
    )


@contextmanager
def reserved(options: LaunchOptions, observer: Observer, interrupts: Interrupts) -> Iterator[RayNodes]:
    """Nodes of the cluster, reserved while the block runs.

    Raises:
        LaunchError: the cluster has not got them.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    count, bundle = _size(options)
    group = placement_group([bundle] * count, strategy="STRICT_SPREAD")
    actors: list[Any] = []
    try:
        _wait_for(group, count, bundle, options, observer, interrupts)
        for rank in range(count):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            actor = ray.remote(NodeLaunch).options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=place,
            )
            actors.append(actor.remote(str(Path.cwd())))
        here = ray.get_runtime_context().get_node_id()
        facts = zip(actors, ray.get([actor.describe.remote() for actor in actors]), strict=True)
        ordered = sorted(facts, key=lambda fact: fact[1][0] != here)  # node 0 is this one, if it takes part
        nodes = [Node(rank, actor, *facts[1:]) for rank, (actor, facts) in enumerate(ordered)]
        yield RayNodes(options, nodes, observer, interrupts)
    finally:
        interrupts.raises = False
        ray.wait([actor.close.remote() for actor in actors], num_returns=len(actors), timeout=CLOSE_S)
        remove_placement_group(group)


def _size(options: LaunchOptions) -> tuple[int, dict[str, float]]:
    """How many nodes, and what is reserved on each: the GPUs that its launch uses, and its CPUs but one."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = int(max((node.get("GPU", 0) for node in nodes), default=0))
    asked = (options.num_gpus or options.gpus_per_process) + (options.gpu_offset or 0)
    gpus = most if options.gpus else asked if most or asked > 1 else 0
    fitting = [node for node in nodes if node.get("GPU", 0) >= gpus and node.get("CPU", 0) >= 1]
    if not fitting and options.num_nodes is None:
        raise LaunchError(f"--ray {options.ray}: no node of the cluster has {_names({'CPU': 1, 'GPU': gpus})}.")
    cpus = int(min((node["CPU"] for node in fitting), default=1))
    return options.num_nodes or len(fitting), {"CPU": max(cpus - 1, 1), **({"GPU": gpus} if gpus else {})}


def _names(bundle: Mapping[str, float]) -> str:
    return " and ".join(f"{value:g} {name}{'s' if value > 1 else ''}" for name, value in bundle.items() if value)


def _wait_for(
    group: Any,
    count: int,
    bundle: Mapping[str, float],
    options: LaunchOptions,
    observer: Observer,
    interrupts: Interrupts,
) -> None:
    import ray

    begin, is_said = time.monotonic(), False
    while not group.wait(POLL_S):
        waited_s = time.monotonic() - begin
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        there = sum(all(node.get(name, 0) >= value for name, value in bundle.items()) for node in alive)
        state = f"{min(there, count)} of {count} nodes with {_names(bundle)} are there"
        if interrupts:
            raise LaunchInterruptedError("interrupted before the nodes were there")
        if waited_s > options.barrier_timeout_s:
            hint = "other work on them holds them; see `ray status`" if there >= count else "give a smaller --num-nodes"
            raise LaunchError(f"--ray {options.ray}: {state} after {options.barrier_timeout_s:g} s; {hint}.")
        if waited_s > SAY_AFTER_S and not is_said:
            is_said = True
            observer.message(f"waiting for nodes of Ray: {state}")
