"""Conditions of a launch: entered before any process, left whatever happens, in reverse order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfharness.errors import LaunchError, UsageError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness_launcher.conditions import Condition, Run, StartedProcess
from perfharness_launcher.launch import launch
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.plan import LaunchPlan
from perfharness_launcher.supervise import Observer, Patience, Phase
from tests.support import launch_plans


@dataclass
class Log:
    """What the conditions of a launch met, in order."""

    lines: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    alive: int = 0
    """Processes that were alive when a condition was left."""

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
            def process_started(process: StartedProcess) -> None:
                self.pids.append(process.pid)
                started()
                note(f"started {process.folder}")

            assert run.folder.is_dir()
            run.started.append(process_started)
            note("in")
            yield
            self.alive += sum(map(is_alive, self.pids))
            run.records[name] = {"left": True}
            run.findings.append(Finding(f"{name}-done", Severity.NOTE, "done"))
            note("out")

        return entered


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def plan_of(tmp_path: Path, program: str = "true", *arguments: str, num_processes: int = 1) -> LaunchPlan:
    options = LaunchOptions(
        script=program,
        script_arguments=arguments,
        output_dir=tmp_path / "out",
        tracer="none",
        num_processes=num_processes,
    )
    return launch_plans.plan_of(options)


def run(
    plan: LaunchPlan,
    conditions: Sequence[Condition] = (),
    observer: Observer | None = None,
    patience: Patience | None = None,
) -> RunManifest:
    with launch(plan, ["perfharness"], observer or Observer(), conditions=conditions, patience=patience) as finished:
        finished.put_in_place()
    return finished.manifest


def codes(manifest: RunManifest) -> list[str]:
    return [finding.code for finding in manifest.findings]


def test_a_launch_enters_them_before_its_processes_and_leaves_them_after(tmp_path: Path) -> None:
    log = Log()
    manifest = run(plan_of(tmp_path, "sleep", "1", num_processes=2), [log.condition("a"), log.condition("b")])
    started = [line for line in log.lines if "started" in line]
    assert sorted(started) == [f"{name} started proc_{number}_gpu_0" for name in "ab" for number in range(2)]
    assert log.lines == ["a in", "b in", *started, "b out", "a out"]
    assert manifest.companions == {"a": {"left": True}, "b": {"left": True}}
    assert {"b-done", "a-done"} <= set(codes(manifest))
    assert log.alive == 0


@pytest.mark.parametrize("fails", ["in", "started", "out"])
def test_one_that_fails_is_a_finding_and_keeps_no_other_from_its_work(tmp_path: Path, fails: str) -> None:
    log = Log()
    manifest = run(plan_of(tmp_path), [log.condition("a"), log.condition("b", fails), log.condition("c")])
    assert [line for line in log.lines if "out" in line] == ["c out", *["b out"] * (fails != "in"), "a out"]
    assert codes(manifest).count("condition-failed") == 1


@pytest.mark.parametrize(("fails", "error"), [("in", UsageError("-m needs root")), ("", None)])
def test_where_no_process_starts_they_are_left_and_what_they_found_is_reported(
    tmp_path: Path, fails: str, error: Exception | None
) -> None:
    log = Log()
    marker = tmp_path / "ran"
    plan = plan_of(tmp_path, "touch", str(marker)) if fails else plan_of(tmp_path, str(tmp_path / "no_such_program"))
    with pytest.raises(UsageError if fails else LaunchError, match="done"):
        run(plan, [log.condition("a"), log.condition("b", fails, error), log.condition("c")])
    assert [line for line in log.lines if "out" in line] == (["a out"] if fails else ["c out", "b out", "a out"])
    assert not marker.exists()
    assert list((tmp_path / "out").iterdir()) == []


class Faulty(Observer):
    def poll(self, phases: Sequence[Phase]) -> None:
        if Phase.RUNNING in phases:
            raise ZeroDivisionError


def test_they_are_left_after_an_interrupt_or_a_fault_of_ours(tmp_path: Path) -> None:
    log, plan = Log(), plan_of(tmp_path, "sleep", "600")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        manifest = run(plan, [log.condition("a", started=partial(os.kill, os.getpid(), number))])
        assert manifest.processes[0].ended == "interrupted"
        assert log.lines[-1] == "a out"
    with pytest.raises(ZeroDivisionError):
        run(plan, [log.condition("a"), log.condition("b")], Faulty())
    assert log.lines[-2:] == ["b out", "a out"]


def test_a_disk_that_is_almost_full_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfharness_launcher.launch.shutil.disk_usage", lambda _: SimpleNamespace(free=5000))
    assert codes(run(plan_of(tmp_path))) == ["disk-full"]


SERVERS = {
    "ends": "import time\ntry:\n    open(UP, 'w').close(); time.sleep(600)\nexcept KeyboardInterrupt:\n    pass",
    "interrupted": "import time; open(UP, 'w').close(); time.sleep(600)",
    "ignores signals": (
        "import signal, time\nfor one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, signal.SIG_IGN)\n"
        "open(UP, 'w').close(); time.sleep(600)"
    ),
    "fails": "import sys; open(UP, 'w').close(); sys.exit(7)",
}


@pytest.mark.parametrize(
    ("server", "ended"), [("ends", "ok"), ("interrupted", "ok"), ("ignores signals", "failed"), ("fails", "failed")]
)
def test_a_server_is_ended_when_its_only_client_is_done(tmp_path: Path, server: str, ended: str) -> None:
    up = tmp_path / "up"

    @contextmanager
    def client(run: Run) -> Iterator[None]:
        run.done.append((lambda: False) if server == "fails" else up.exists)
        yield

    plan = plan_of(tmp_path, sys.executable, "-c", SERVERS[server].replace("UP", repr(str(up))))
    patience = Patience(signal=0.3) if server == "ignores signals" else Patience()
    manifest = run(plan, [client], patience=patience)
    assert manifest.processes[0].ended == ended
    assert ("process-failed" in codes(manifest)) == (ended == "failed")
