"""`--ray`: a launch on nodes of a Ray cluster, with the results returned through the object store.

An actor per node (`ray_node`) starts the launch there in a new session, with the variables of
`--nodes`. Nothing is restarted.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfharness.cluster.node import refuse_elastic
from perfharness.cluster.ray_node import CHUNK_BYTES, CLOSE_S, POLL_S, NodeLaunch
from perfharness.cluster.wire import path_in
from perfharness.distribution import install_command
from perfharness.errors import LaunchError, LaunchInterruptedError, ToolNotFoundError, UsageError
from perfharness.files import read_model
from perfharness.model import environment
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import MANIFEST_NAME, RunManifest
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.supervise import Observer

CONNECT_S = 5.0
SAY_AFTER_S = 2.0
PROGRESS = re.compile(r"\[ *\d+\.\d s\] ")
"""Prefix of a launch's own messages."""

ERROR = "perfharness: "
"""Prefix of an error."""


@dataclass
class RayNode:
    """A node as the driver knows it."""

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
        """Name in messages."""
        return f"node {self.rank} ({self.host})"


@dataclass
class RayLaunch:
    """A launch and its reserved nodes."""

    options: LaunchOptions
    nodes: Sequence[RayNode]
    observer: Observer
    interrupts: Interrupts

    def plans(self) -> list[str]:
        """Return the plan of each node, as text. Raises `UsageError` or `LaunchError` of a node."""
        answers = self._ask("plan", [])
        for node, (code, _, errors) in zip(self.nodes, answers, strict=True):
            if code:
                text = "\n".join(line.removeprefix(ERROR) for line in errors.splitlines())
                raise (UsageError if code == 2 else LaunchError)(f"On {node.name}: {text}")
        return [f"{node.name}\n{text}" for node, (_, text, _) in zip(self.nodes, answers, strict=True)]

    def measure(self, command: Sequence[str], into: Path) -> RunManifest:
        """Launch on all nodes, and copy the joined run into a folder.

        Raises `UsageError` or `LaunchError` if node 0 has no results.
        """
        import ray

        if self.interrupts:
            raise LaunchInterruptedError("interrupted before anything was started")
        self._ask("start", command)
        self._watch()
        first = self.nodes[0]
        if first.is_lost:
            raise LaunchError(f"{first.name} and its results were lost.")
        self.observer.stage("copying the results")
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
                message = f"On {node.name}, Ray ran the launch with niceness {node.niceness}, behind other work."
                hint = "Set RAY_worker_niceness=0 for `ray start` on the node."
                yield Finding("low-priority", Severity.WARNING, message, hint)

    def _ask(self, method: str, command: Sequence[str]) -> list[Any]:
        """Call a method on all nodes with the options and a command line; return the answers."""
        import ray

        first, options = self.nodes[0], self.options.model_copy(update={"nodes": True})
        order = {
            "options": options.model_dump(mode="json", exclude_unset=True),
            "command": list(command),
            "verbose": self.observer.shows_output,
        }
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
        """Pass on output and Ctrl-C until all launches have ended or node 0 is lost."""
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
                    self.observer.message(f"Ray lost {node.name}")
                    continue
                self._pass_on(node, printed)
                if node.code is None:
                    asked[node.actor.poll.remote()] = node
                elif node.code and node.rank and node.errors:
                    self.observer.message(f"{node.name}: {'; '.join(node.errors)}")

    def _pass_on(self, node: RayNode, printed: bytes) -> None:
        *lines, node.partial = (node.partial + printed).split(b"\n")
        for line in (one.decode(errors="replace") for one in lines):
            progress = PROGRESS.match(line)
            if progress is None:
                node.errors += [line.removeprefix(ERROR)] if line.startswith(ERROR) else []
                self.observer.output(line if node.rank == 0 else f"node {node.rank} | {line}")
            elif node.rank == 0:
                self.observer.message(line[progress.end() :])


@contextmanager
def connected(options: LaunchOptions) -> Iterator[None]:
    """Connect to the cluster while the block runs; an existing connection is used and stays open.

    Raises `UsageError`, `ToolNotFoundError` without Ray, or `LaunchError` if no cluster answers or it was lost.
    """
    if options.nodes:
        raise UsageError("--ray starts the launch of each node itself; drop --nodes.")
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
        if host and port.isdecimal():  # ray.init would take two minutes to fail
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, SystemExit) as error:
        hint = "Start one with `ray start --head`, or give --ray HOST:PORT of its head."
        raise LaunchError(f"--ray {address}: no cluster answers ({_last_line(error)}). {hint}") from error


def _last_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text.splitlines()[-1]).rstrip(".")


@contextmanager
def reserved(options: LaunchOptions, observer: Observer, interrupts: Interrupts) -> Iterator[RayLaunch]:
    """Reserve nodes while the block runs. Raises `LaunchError` if the cluster lacks them."""
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
        ordered = sorted(facts, key=lambda fact: fact[1][0] != here)  # this machine, if reserved, is node 0
        nodes = [RayNode(rank, actor, *facts[1:]) for rank, (actor, facts) in enumerate(ordered)]
        observer.message(f"Ray nodes: {', '.join(node.host for node in nodes)}")
        yield RayLaunch(options, nodes, observer, interrupts)
    finally:
        interrupts.raises = False
        ray.wait([actor.close.remote() for actor in actors], num_returns=len(actors), timeout=CLOSE_S)
        remove_placement_group(group)


def _size(options: LaunchOptions) -> tuple[int, dict[str, float]]:
    """Number of nodes, and resources per node: the GPUs of the launch, and all CPUs but one."""
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
        state = f"{min(there, count)} of {count} nodes with {_names(bundle)} exist"
        if interrupts:
            raise LaunchInterruptedError("interrupted while waiting for nodes")
        if waited_s > options.barrier_timeout_s:
            hint = "other work occupies them; see `ray status`" if there >= count else "give a smaller --num-nodes"
            raise LaunchError(f"--ray {options.ray}: {state} after {options.barrier_timeout_s:g} s; {hint}.")
        if waited_s > SAY_AFTER_S and not is_said:
            is_said = True
            observer.message(f"waiting for Ray nodes: {state}")
