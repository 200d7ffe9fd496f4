"""`python -m perfharness.load.worker SPEC [--beside FOLDER PID]`: sends the load, from inside a launch.

SPEC is the JSON of a `WorkerSpec`. The target is in this process, or a server that receives the requests. With
`--beside` the launched process is that server: this one is not measured, writes into the server's folder, and ends
early at the end of its standard input.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from perfharness.bench.memory import host_bytes
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.load.callables import CallableTarget, Inputs, load_callable
from perfharness.load.generator import LoadRun, send_load
from perfharness.load.http_settings import HttpSettings
from perfharness.load.models import BackendTarget, ModelSpec
from perfharness.load.profile import Profile
from perfharness.load.record import memory_bytes_below
from perfharness.load.request import MakeTarget
from perfharness.model import environment
from perfharness.model.base import Settings
from perfharness.model.load import TargetKind
from perfharness.recorder import PerfRecorder, barrier

MODULE = "perfharness.load.worker"
RECORDER = "load"
SAID = "perfharness: "
"""Prefix of the line on stderr with the reason why nothing was sent."""


class WorkerSpec(Settings):
    """Task of a worker process."""

    kind: TargetKind
    target: str
    profile: Profile
    model: ModelSpec | None = None
    """For a target of kind `backend`."""
    http: HttpSettings | None = None
    """For a target of kind `http`."""

    def to_text(self) -> str:
        """The JSON for the command line of the process."""
        return self.model_dump_json(exclude_defaults=True)


def main(arguments: list[str]) -> int:
    """Run the load; returns the exit code."""
    spec = WorkerSpec.model_validate_json(arguments[0])
    server = int(arguments[3]) if len(arguments) > 1 else None
    folder = Path(os.environ[environment.OUTPUT_DIR] if server is None else arguments[2])
    recorder = PerfRecorder(RECORDER, args={"target": spec.target})
    if server is not None:
        threading.Thread(target=_interrupt_at_end_of_input, daemon=True).start()
    is_elsewhere = spec.http is not None
    try:
        send_load(
            spec.profile,
            make_targets(spec, recorder, is_started=server is not None),
            folder,
            recorder,
            memory_bytes=partial(memory_bytes_below, server) if is_elsewhere else host_bytes,
            opened=_opened,
            process=int(os.environ.get(environment.PROCESS_INDEX, "0")),
            processes=int(os.environ.get(environment.NUM_PROCESSES, "1")),
            is_alone=is_elsewhere,
        )
    except PerfHarnessError as error:
        print(f"{SAID}{error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print(f"{SAID}interrupted, or the server ended, before the load began", file=sys.stderr)
        return 1
    sys.stdout.flush()
    return 0


def _opened(run: LoadRun) -> None:
    """From now on a signal ends the load early. All processes of the launch start their clocks together."""
    signal.signal(signal.SIGINT, lambda *_: run.interrupt())
    signal.signal(signal.SIGTERM, lambda *_: run.interrupt())
    if (others := barrier.active()) is not None:
        others.wait(RECORDER)


def _interrupt_at_end_of_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def make_targets(spec: WorkerSpec, recorder: PerfRecorder, *, is_started: bool = False) -> MakeTarget:
    """Makes targets. Raises `UsageError`, and `LaunchError` if a server does not answer."""
    if spec.http is not None:
        from perfharness.load.http import http_targets  # only HTTP targets need aiohttp

        return http_targets(spec.http, spec.profile.mix, is_started=is_started)
    if spec.model is not None:
        return partial(BackendTarget, spec.target, spec.model, spec.profile, recorder)
    function, profile = load_callable(spec.target), spec.profile
    return partial(CallableTarget, function, recorder, Inputs(profile.mix), profile.uncounted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
