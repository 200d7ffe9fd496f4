"""`perfharness clocks` and `launch -m` killed at every step, against a replayed NVML: what was left, what was restored.

A step is a call of NVML, or of the system for the state file and its lock. Each case is a process of its own (a fork of
this one, which has everything imported) that runs the command line as a user's would be run, and ends for real.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pynvml

from perfharness.cli.main import run
from perfharness.model.environment import NVML_REPLAY
from perfharness.telemetry import clock_state
from perfharness.telemetry.nvml import nvml_module
from perfharness.testing.nvml_cards import value
from perfharness.testing.nvml_record import NvmlRecord
from perfharness.testing.nvml_state import NvmlState
from perfharness.testing.replayed_nvml import NVML_STATE
from perfharness.testing.steps import STEP_FAULTS, STEP_LOG, Fault, Steps, faults_to_json

Command = Literal["max", "restore", "launch"]
End = Literal["SIGKILL", "SIGTERM", "SIGINT", "exception"]
ENDS: tuple[End, ...] = ("SIGKILL", "SIGTERM", "SIGINT", "exception")
FILE_CALLS = {"os": ("open", "fsync", "replace", "unlink"), "fcntl": ("flock",)}
PIPELINE = "import time\n"


@dataclass(frozen=True)
class Case:
    """A command, and where and how it ends.

    Args:
        name: of the step, for the table.
    """

    command: Command
    step: int
    name: str
    end: End
    when: Literal["before", "after"]


@dataclass(frozen=True)
class Outcome:
    """What a case came to.

    Args:
        exit_code: of the command; negative: the signal that ended it.
        left: settings that were not as before when it had ended.
        held: whether they are so on purpose: `clocks max` was done, and `clocks restore` had not begun.
        said: whether the next command of another verb said so.
        restored: what `clocks restore` put back, its exit code first.
        whole: whether every setting was as before in the end, and no state file was left.
    """

    case: Case
    exit_code: int
    left: list[str]
    held: bool
    said: bool
    restored: list[str]
    whole: bool

    def to_json(self) -> dict[str, Any]:
        """As `scripts/clock_faults --json` prints it."""
        return asdict(self)

    @property
    def well(self) -> bool:
        """Whether it was as it has to be: all as before in the end, and nothing left changed in silence.

        A command that was asked to end (SIGTERM, SIGINT) has undone what it did, or has done all of it; a fault of
        ours may cost `restore` the one setting that it happened at.
        """
        if not self.whole:
            return False
        if not self.left or (self.held and len(self.left) == ALL_SETTINGS):
            return True
        if self.case.end == "exception":
            return self.case.command == "restore" and self.said and len(self.left) == 1
        return self.case.end == "SIGKILL" and self.said


ALL_SETTINGS = 5


class Bench:
    """A folder with a replayed machine, and processes run on it."""

    def __init__(self, folder: Path, record: NvmlRecord) -> None:
        self._folder = folder
        self._record = unhurried(record).write(folder / "record.json")
        self._state = folder / "nvml.json"
        self._clocks = folder / "state"
        state_file = self._clocks / clock_state.STATE_NAME
        self._files = (self._state, state_file, state_file.with_suffix(".json.new"))
        self._snapshots: dict[Command, list[tuple[Path, bytes]]] = {}
        self._script = folder / "pipeline.py"
        self._script.write_text(PIPELINE)

    def reset(self, command: Command) -> None:
        """A machine on which nothing was changed yet; for `restore`, one after `clocks max`."""
        if command not in self._snapshots:
            self._replace_files([])
            self.process(["clocks", "max" if command == "restore" else "status"])
            self._snapshots[command] = [(path, path.read_bytes()) for path in self._files if path.exists()]
        self._replace_files(self._snapshots[command])

    def _replace_files(self, files: Sequence[tuple[Path, bytes]]) -> None:
        for path in self._files:
            path.unlink(missing_ok=True)
        for path, data in files:
            path.write_bytes(data)

    def settings(self) -> NvmlState:
        """All settings of all cards."""
        return NvmlState.model_validate_json(self._state.read_bytes())

    def remembered(self) -> clock_state.ClocksState | None:
        """What perfharness remembers to have changed."""
        return clock_state.StateStore(self._clocks).read()

    def arguments(self, command: Command) -> list[str]:
        """The command line."""
        if command == "launch":
            options = ["-m", "--tracer", "none", "--no-telemetry", "-o", str(self._folder / "out")]
            return ["launch", *options, str(self._script)]
        return ["clocks", command]

    def steps(self, command: Command) -> list[str]:
        """The steps of the command when nothing goes wrong, by name."""
        self.reset(command)
        log = self._folder / "steps.log"
        log.unlink(missing_ok=True)
        self.process(self.arguments(command), log=log)
        lines = [line.split() for line in log.read_text().splitlines()]
        return [name for _, _, name in lines]

    def try_case(self, case: Case) -> Outcome:
        """Run the command into its fault, then the next command of a user, then `clocks restore`; compare."""
        self.reset("max")
        before = self.settings().devices
        self.reset(case.command)
        fault = Fault(
            step=case.step,
            when=case.when,
            signal=None if case.end == "exception" else case.end,
            raises=case.end == "exception",
        )
        code, _ = self.process(self.arguments(case.command), fault)
        left = _differences(before, self.settings().devices)
        _, next_command = self.process(["analyze", str(self._folder / "no-such-run")])
        remembered = self.remembered()
        held = remembered is not None and any(owner.kind == "hold" and owner.lives for owner in remembered.owners)
        said = "clocks restore" in next_command
        restore_code, restored = self.process(["clocks", "restore"])
        whole = self.settings().devices == before and self.remembered() is None
        return Outcome(case, code, left, held, said, [str(restore_code), *restored.splitlines()], whole)

    def process(self, arguments: Sequence[str], *faults: Fault, log: Path | None = None) -> tuple[int, str]:
        """Run a command line in a process of its own; returns its exit code (negative: a signal) and its output."""
        output = self._folder / "output.txt"
        environment = {
            NVML_REPLAY: str(self._record),
            NVML_STATE: str(self._state),
            clock_state.STATE_DIR: str(self._clocks),
            STEP_FAULTS: faults_to_json(*faults),
            STEP_LOG: str(log or ""),
        }
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _become(arguments, environment, output)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), output.read_text()


def unhurried(record: NvmlRecord) -> NvmlRecord:
    """The machine of a record with every setting below its maximum, so that all of them get changed.

    What moves with time is left out: these tests ask for none of it, and each process reads the record.
    """
    calls = [call.model_copy(update={"at_ns": [0], "answers": call.answers[:1]}) for call in record.calls]
    machine = NvmlRecord(about=record.about, calls=calls)
    for call in record.calls:
        if call.function == "nvmlDeviceGetUUID" and not call.arguments[0]["device"].startswith("MIG"):
            _lower_settings(machine, call.arguments[0])
    return machine


def _lower_settings(machine: NvmlRecord, gpu: dict[str, str]) -> None:
    value(machine, "nvmlDeviceGetPersistenceMode", gpu, result=0)
    limits = machine.call("nvmlDeviceGetPowerManagementLimitConstraints", gpu)
    assert limits is not None
    value(machine, "nvmlDeviceGetPowerManagementLimit", gpu, result=limits.answers[0].value[1] - 50_000)
    for clock in (pynvml.NVML_CLOCK_GRAPHICS, pynvml.NVML_CLOCK_SM):
        current = machine.call("nvmlDeviceGetMaxClockInfo", gpu, clock)
        assert current is not None
        value(machine, "nvmlDeviceGetApplicationsClock", gpu, clock, result=current.answers[0].value - 15)


def _become(arguments: Sequence[str], environment: dict[str, str], output: Path) -> None:
    """In the child: be `perfharness ARGUMENTS`; never returns."""
    code = 99
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.update(environment)
        count_file_calls(nvml_module().steps)
        code = run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def count_file_calls(steps: Steps) -> None:
    """Let the calls of the state file and its lock be steps too, in this process, from now on."""
    for module, names in FILE_CALLS.items():
        setattr(clock_state, module, _Counted(getattr(clock_state, module), names, steps))


class _Counted:
    """A module, some of whose functions are steps."""

    def __init__(self, module: Any, names: Sequence[str], steps: Steps) -> None:
        self._module = module
        self._names = names
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        return self._counted(name, function) if name in self._names else function

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            what = f"{name}({Path(arguments[0]).name})" if isinstance(arguments[0], (str, Path)) else name
            self._steps.before(what)
            result = function(*arguments)
            self._steps.after(what)
            return result

        return call


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{uuid} {name}"
        for uuid, settings in before.items()
        for name, value in settings
        if getattr(after[uuid], name) != value
    ]


def cases(bench: Bench, commands: Sequence[Command], ends: Sequence[End] = ENDS) -> Iterator[Case]:
    """Every step of every command, before and after, each way to end."""
    for command in commands:
        for number, name in enumerate(bench.steps(command), 1):
            for end in ends:
                for when in ("before", "after"):
                    yield Case(command, number, name, end, when)


def main(
    record: NvmlRecord, commands: Sequence[Command], *, as_json: bool, only: str = "", ends: Sequence[End] = ENDS
) -> int:
    """Run all cases and print the table; 1 where a case did not end as it has to."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    in_memory = Path("/dev/shm")  # thousands of fsyncs; what is tested is their order, not the disk
    place = in_memory if os.access(in_memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="clock-faults-", dir=place) as folder:
        bench = Bench(Path(folder), record)
        outcomes = [bench.try_case(case) for case in cases(bench, commands, ends) if only in case.name]
    if as_json:
        print(json.dumps([{**outcome.to_json(), "well": outcome.well} for outcome in outcomes]))
    else:
        _print_table(outcomes)
    return 0 if outcomes and all(outcome.well for outcome in outcomes) else 1


def _print_table(outcomes: Sequence[Outcome]) -> None:
    row = "{:<8} {:>4} {:<42} {:<16} {:>4}  {:<18} {:<5} {:<13} {}"
    print(row.format("command", "step", "at", "ended by", "code", "left changed", "told", "restored", "whole"))
    for outcome in outcomes:
        case = outcome.case
        done = [line for line in outcome.restored[1:] if "restored:" in line]
        print(
            row.format(
                case.command,
                case.step,
                case.name,
                f"{case.end} {case.when}",
                outcome.exit_code,
                _count(outcome.left) + (", held" if outcome.held else ""),
                "yes" if outcome.said else "no",
                _count(done),
                ("yes" if outcome.whole else "NO") + ("" if outcome.well else "  <-- not well"),
            )
        )
    bad = sum(not outcome.well for outcome in outcomes)
    print(f"{len(outcomes)} cases, {bad} not as they have to be")


def _count(items: Sequence[str]) -> str:
    return f"{len(items)} setting{'s' if len(items) != 1 else ''}" if items else "nothing"
