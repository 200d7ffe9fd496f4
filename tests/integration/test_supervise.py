"""Whoever is killed, and whatever does not answer: a run comes to its end, and none of its processes is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from perfharness_launcher.conditions import Run
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys.command_line import NsysInstall, NsysTracing
from perfharness_launcher.processes import child, guard
from perfharness_launcher.processes.orphans import RUN_ID_VARIABLE, adopting_orphans
from perfharness_launcher.processes.spawn import ProcessGroup, ProcessSpec, RunningProcess
from perfharness_launcher.processes.supervise import Observer, Patience, Phase, Supervisor, Watched
from perfharness_launcher.staging import new_run_id
from tests.integration.launches import PATIENCE_S, processes_naming, wait_for

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
PATIENCE = Patience(start=60, signal=0.3, tracer=30)

OWN_SECONDS = f"7301.{os.getpid()}"
OWN_SLEEP = f"sleep {OWN_SECONDS}"
"""Of this test process alone: others may run on the machine."""

DAEMON = """
import os, subprocess, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.Popen(["env", "-i", "sleep", "{seconds}"])
        time.sleep(0.2)
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep({last})
"""
"""Starts a process without an environment, twice removed, in a session of its own."""


class Watcher(Observer):
    """Acts once the first process has written something; without an act, once there are processes."""

    def __init__(self, act: Callable[[Sequence[RunningProcess]], None], *, when_up: bool = True) -> None:
        self._act = act
        self._when_up = when_up
        self._done = False
        self._processes: Sequence[RunningProcess] = ()

    def started(self, processes: Sequence[RunningProcess]) -> None:
        self._processes = processes

    def poll(self, phases: Sequence[Phase]) -> None:
        log = self._processes[0].folder / "stdout.log"
        if not self._done and (not self._when_up or (log.exists() and log.read_text())):
            self._done = True
            self._act(self._processes)


def group(*programs: str, nsys: Path | None = None, timeout_s: float | None = None) -> ProcessGroup:
    specs = tuple(
        ProcessSpec(index, (), f"proc_{index}_gpu_0", (sys.executable, "-c", program))
        for index, program in enumerate(programs)
    )
    return ProcessGroup(specs, NsysTracing(NsysInstall(nsys)) if nsys else None, timeout_s)


def supervised(
    folder: Path,
    what: ProcessGroup,
    act: Callable[[Sequence[RunningProcess]], None] = lambda _: None,
    *,
    interrupts: Interrupts | None = None,
    when_up: bool = True,
) -> tuple[list[Watched], Supervisor]:
    watcher = Watcher(act, when_up=when_up)
    supervisor = Supervisor(
        what, Run(folder, new_run_id()), Interrupts() if interrupts is None else interrupts, watcher, PATIENCE
    )
    with adopting_orphans():
        return supervisor.watch(), supervisor


def end_of(ending: Watched) -> tuple[str | None, int | None]:
    told = ending.process.status.ended or {}
    return ending.stopped, told.get("exit_code")


def shell_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def nobody_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert processes_naming(str(tmp_path)) == []


def test_a_helper_that_is_killed_costs_its_own_process_only(tmp_path: Path) -> None:
    def kill_helper(processes: Sequence[RunningProcess]) -> None:
        processes[0].popen.kill()

    (lost, other), _ = supervised(tmp_path, group(SLEEP, "import time; time.sleep(0.5)"), kill_helper)
    assert (lost.process.status.lost, lost.process.status.ended) == (True, None)
    assert lost.process.status.pid is not None
    wait_for(lambda: not psutil.pid_exists(lost.process.status.pid or 0))
    assert end_of(other) == (None, 0)


def test_a_helper_that_is_killed_before_it_began_is_not_waited_for(tmp_path: Path) -> None:
    def kill_helper(processes: Sequence[RunningProcess]) -> None:
        processes[0].popen.kill()

    (ending,), supervisor = supervised(tmp_path, group(SLEEP), kill_helper, when_up=False)
    assert ending.process.status.not_started is not None or ending.process.status.lost
    assert end_of(ending) == (None, None)
    assert supervisor.leftovers == []


def test_a_tracer_that_never_starts_its_process_ends_with_the_first_interrupt(tmp_path: Path) -> None:
    interrupts = Interrupts()
    nsys = shell_program(tmp_path / "nsys", "exec sleep 1000")
    (ending,), supervisor = supervised(
        tmp_path, group(SLEEP, nsys=nsys), lambda _: interrupts.note(), interrupts=interrupts, when_up=False
    )
    assert (ending.stopped, ending.process.status.pid) == ("interrupted", None)
    assert not supervisor.has_measured


def test_a_tracer_that_fails_before_the_process_began_is_started_again(tmp_path: Path) -> None:
    nsys = shell_program(
        tmp_path / "nsys",
        f"""echo start >> {tmp_path}/starts
if [ $(wc -l < {tmp_path}/starts) -le 2 ]; then setsid sleep 1000 & exit 1; fi
while [ "${{1#--output}}" = "$1" ]; do shift; done; shift
exec "$@" """,
    )
    (ending,), supervisor = supervised(tmp_path, group("import os; print(os.environ.get('TMPDIR'))", nsys=nsys))
    assert (end_of(ending), ending.tracer_restarts) == ((None, 0), 2)
    assert supervisor.leftovers == [], "the agents of the first two were ended"
    own_tmpdir = (ending.process.folder / "stdout.log").read_text().strip()
    assert own_tmpdir == str(os.environ.get("TMPDIR")), "the tracer's is not the process's"
    assert not list(tmp_path.rglob(".tmp"))
    assert not list(tmp_path.rglob(".control"))


def test_a_tracer_that_always_fails_is_given_up(tmp_path: Path) -> None:
    nsys = shell_program(tmp_path / "nsys", f"echo start >> {tmp_path}/starts; exit 3")
    (ending,), _ = supervised(tmp_path, group(SLEEP, nsys=nsys))
    assert "exit code 3" in str(ending.process.status.not_started)
    assert (tmp_path / "starts").read_text().count("start") == 3


def test_a_second_interrupt_kills_what_ignores_the_first(tmp_path: Path) -> None:
    interrupts = Interrupts()

    def interrupt_twice(_: Sequence[RunningProcess]) -> None:
        interrupts.note()
        interrupts.note()

    stubborn = f"import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n{SLEEP}"
    (ending,), _ = supervised(tmp_path, group(stubborn), interrupt_twice, interrupts=interrupts)
    assert (ending.stopped, (ending.process.status.ended or {})["signal"]) == ("interrupted", signal.SIGKILL)


def test_a_helper_that_does_not_answer_is_given_up_after_the_last_signal(tmp_path: Path) -> None:
    def stop_helper(processes: Sequence[RunningProcess]) -> None:
        os.kill(processes[0].popen.pid, signal.SIGSTOP)

    (ending,), _ = supervised(tmp_path, group(SLEEP, timeout_s=0.5), stop_helper)
    assert (ending.stopped, ending.process.status.lost) == ("timeout", True)


def test_daemons_without_an_environment_are_found_and_ended(tmp_path: Path) -> None:
    (ending,), supervisor = supervised(tmp_path, group(DAEMON.format(seconds=OWN_SECONDS, last=0)))
    assert end_of(ending) == (None, 0)
    assert [line.partition(": ")[2] for line in supervisor.leftovers] == [OWN_SLEEP]
    assert processes_naming(OWN_SLEEP) == []


def kill_own_sleep() -> None:
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == OWN_SLEEP.split():
            process.kill()


def helper_of(folder: Path, program: str) -> list[str]:
    """The command line of a helper, whose CONTROL is made."""
    os.mkfifo(folder / "control")
    files = [str(folder / name) for name in ("control", "status", "out", "err")]
    return [sys.executable, "-I", "-S", child.__file__, *files, "22", "", sys.executable, "-c", program]


def test_a_launcher_that_died_before_it_was_heard_is_not_waited_for(tmp_path: Path) -> None:
    done = subprocess.run(helper_of(tmp_path, "print('measured')"), timeout=PATIENCE_S, check=False)
    assert done.returncode == child.EXIT_NOT_STARTED
    states = [json.loads(line)["state"] for line in (tmp_path / "status").read_text().splitlines()]
    assert states == ["ready", "not_started"]
    assert not (tmp_path / "out").exists()


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A helper whose process has left a daemon behind and sleeps, and the end of CONTROL that a launcher holds."""
    command = helper_of(tmp_path, DAEMON.format(seconds=OWN_SECONDS, last=600))
    descriptor = os.open(tmp_path / "control", os.O_RDWR)
    with subprocess.Popen(command) as process:
        os.write(descriptor, child.GO)
        wait_for(lambda: (tmp_path / "out").exists() and "up" in (tmp_path / "out").read_text())
        wait_for(lambda: processes_naming(OWN_SLEEP) != [])
        yield process, descriptor
        process.kill()


def test_without_a_launcher_the_helper_ends_all_below_it(helper: tuple[subprocess.Popen[bytes], int]) -> None:
    process, descriptor = helper
    os.close(descriptor)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert processes_naming(OWN_SLEEP) == []


def test_a_released_helper_ends_what_its_process_left(
    helper: tuple[subprocess.Popen[bytes], int], tmp_path: Path
) -> None:
    """A launcher that is killed from now on, while the tracer writes its report, would never find it."""
    process, descriptor = helper
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: "ended" in (tmp_path / "status").read_text())
    os.write(descriptor, child.RELEASE)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert processes_naming(OWN_SLEEP) == []
    told = [json.loads(line) for line in (tmp_path / "status").read_text().splitlines()]
    assert [line.partition(": ")[2] for line in told[-1]["commands"]] == [OWN_SLEEP]
    os.close(descriptor)


def test_a_process_dies_with_its_helper_though_no_launcher_is_there(
    helper: tuple[subprocess.Popen[bytes], int], tmp_path: Path
) -> None:
    process, descriptor = helper
    os.close(descriptor)
    measured = [one.pid for one in psutil.Process(process.pid).children() if one.name() != "sleep"]
    process.kill()
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in measured))
    kill_own_sleep()  # nobody was left that could have known of it


def test_the_guard_ends_what_a_killed_launcher_left(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    run_id = new_run_id()
    stubborn = f"import signal\nsignal.signal(15, signal.SIG_IGN)\n{SLEEP}"
    with (
        subprocess.Popen(
            [sys.executable, "-c", stubborn], env={**os.environ, RUN_ID_VARIABLE: run_id}, stdout=subprocess.DEVNULL
        ) as left,
        subprocess.Popen([sys.executable, "-I", "-S", guard.__file__, run_id, "0.2"], stdin=subprocess.PIPE) as watch,
    ):
        watch.communicate(os.fsencode(tmp_path / "temporary") + b"\0", timeout=PATIENCE_S)
        assert left.wait(PATIENCE_S) == -signal.SIGKILL
    assert not (tmp_path / "temporary").exists()


def test_a_tracer_that_only_waits_is_not_waited_for(tmp_path: Path) -> None:
    nsys = shell_program(
        tmp_path / "nsys",
        'while [ "${1#--output}" = "$1" ]; do shift; done; shift\n"$@"\nexec sleep 1000',
    )
    watcher = Watcher(lambda _: None)
    patience = Patience(start=60, signal=0.3, tracer=600, idle_tracer=2.0)
    supervisor = Supervisor(group("pass", nsys=nsys), Run(tmp_path, new_run_id()), Interrupts(), watcher, patience)
    with adopting_orphans():
        (ending,) = supervisor.watch()
    assert (end_of(ending), ending.tracer_killed) == ((None, 0), True)
