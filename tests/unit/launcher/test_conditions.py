"""Conditions of a launch: entered before any process, left whatever happens, in reverse order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfharness.errors import LaunchError, PerfHarnessError, UsageError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness_launcher.conditions import Condition, Run
from perfharness_launcher.launch import launch
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.process import RunningProcess
from perfharness_launcher.supervise import Observer, Phase
from tests.support.launch_plans import plan_of


class Log:
    """What the conditions of a launch met, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.pids: list[int] = []
        self.alive = 0  # processes that were alive when a condition was left

    def condition(
        self, name: str, fails: str = "", error: Exception | None = None, started: Callable[[], None] = lambda: None
    ) -> Condition:
        """One that logs its entry, each process, its end; and raises at one of them."""

        def note(step: str) -> None:
            self.lines.append(f"{name} {step}")
            if step.startswith(fails or "-"):
                raise error or ValueError("no sensor")

        @contextmanager
        def entered(run: Run) -> Iterator[None]:
            def process_started(process: RunningProcess) -> None:
                self.pids.append(process.pid or 0)
                started()
                note(f"started {process.spec.folder}")

            assert run.folder.is_dir()
            run.started.append(process_started)
            note("in")
            yield
            self.alive += sum(Path(f"/proc/{pid}").exists() for pid in self.pids)
            run.records[name] = {"left": True}
            run.findings.append(Finding(f"{name}-done", Severity.NOTE, "done"))
            note("out")

        return entered


def run(
    folder: Path,
    command: Sequence[str],
    conditions: Sequence[Condition] = (),
    observer: Observer | None = None,
    num_processes: int = 1,
) -> RunManifest:
    """Launch a program into `folder/out`."""
    arguments, output_dir = tuple(command[1:]), folder / "out"
    options = LaunchOptions(
        script=command[0],
        script_arguments=arguments,
        output_dir=output_dir,
        tracer="none",
        num_processes=num_processes,
    )
    with launch(plan_of(options), ["x"], observer or Observer(), conditions=conditions) as finished:
        finished.put_in_place()
    return finished.manifest


def codes(manifest: RunManifest) -> list[str]:
    return [finding.code for finding in manifest.findings]


def test_they_are_entered_before_the_processes_and_left_after_them_whichever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`c` cannot be entered, `b` fails at each start and `d` at its end; the disk is almost full."""
    monkeypatch.setattr("perfharness_launcher.launch.shutil.disk_usage", lambda _: SimpleNamespace(free=5000))
    log = Log()
    fails = {"a": "", "b": "started", "c": "in", "d": "out"}
    conditions = [log.condition(name, step) for name, step in fails.items()]
    manifest = run(tmp_path, ["sleep", "0.5"], conditions, num_processes=2)
    started = [line for line in log.lines if "started" in line]
    assert sorted({*started}) == [f"{name} started proc_{number}_gpu_0" for name in "abcd" for number in range(2)]
    assert log.lines == ["a in", "b in", "c in", "d in", *started, "d out", "b out", "a out"]
    assert manifest.companions == {name: {"left": True} for name in "abd"}
    assert log.alive == 0
    found = codes(manifest)
    assert [found.count(code) for code in ("condition-failed", "a-done", "b-done", "disk-full")] == [4, 1, 1, 1]


@pytest.mark.parametrize(
    ("command", "fails", "left", "error"),
    [
        (["touch", "ran"], "in", ["a out"], UsageError("-m needs root")),
        (["gone"], "", ["c out", "b out", "a out"], LaunchError()),
    ],
)
def test_where_no_process_starts_they_are_left_and_what_they_found_is_reported(
    tmp_path: Path, command: list[str], fails: str, left: list[str], error: PerfHarnessError
) -> None:
    log = Log()
    conditions = [log.condition("a"), log.condition("b", fails, error), log.condition("c")]
    with pytest.raises(type(error), match="done"):
        run(tmp_path, [command[0], *(str(tmp_path / name) for name in command[1:])], conditions)
    assert [line for line in log.lines if "out" in line] == left
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]


class Faulty(Observer):
    def poll(self, phases: Sequence[Phase]) -> None:
        if Phase.RUNNING in phases:
            raise ZeroDivisionError


def test_they_are_left_after_an_interrupt_or_a_fault_of_ours(tmp_path: Path) -> None:
    log = Log()
    for number in (signal.SIGTERM, signal.SIGHUP):
        interrupting = log.condition("a", started=partial(os.kill, os.getpid(), number))
        assert run(tmp_path, ["sleep", "600"], [interrupting]).processes[0].ended == "interrupted"
        assert log.lines[-1] == "a out"
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, ["sleep", "600"], [log.condition("a"), log.condition("b")], Faulty())
    assert log.lines[-2:] == ["b out", "a out"]


UP = "open(sys.argv[1], 'w').close(); "
IGNORE = "[signal.signal(one, signal.SIG_IGN) for one in (2, 15)]; "


@pytest.mark.parametrize(
    ("server", "ended"),
    [
        (f"{UP}time.sleep(600)", "ok"),
        (f"{IGNORE}{UP}time.sleep(600)", "failed"),
        (f"{UP}sys.exit(7)", "failed"),
    ],
)
def test_a_server_is_ended_when_its_only_client_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, ended: str
) -> None:
    monkeypatch.setattr("perfharness_launcher.supervise.SIGNAL_S", 0.3)
    up = tmp_path / "up"

    @contextmanager
    def client(run: Run) -> Iterator[None]:
        run.done.append((lambda: False) if "exit" in server else up.exists)
        yield

    command = [sys.executable, "-c", f"import signal, sys, time; {server}", str(up)]
    manifest = run(tmp_path, command, [client])
    assert manifest.processes[0].ended == ended
    assert ("process-failed" in codes(manifest)) == (ended == "failed")
