"""Replicas under the same load: what is planned on which machine, and what is chosen of which figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import LaunchError, UsageError
from perfharness.load.profile import Profile, checked_profile
from perfharness.load.replicas import plan as planning
from perfharness.load.replicas.plan import parse_replicas, parse_sharing, plan_replicas
from perfharness.load.replicas.result import ReplicaCase
from perfharness.load.replicas.run import judge, replica_findings
from perfharness.runs.series.repeat_file import OverLaunches
from perfharness_launcher.companions.companion import CompanionContext, MeasuredProcess
from perfharness_launcher.companions.mps import PIPES, PROGRAM, MpsCompanion, find_mps
from tests.support.nvml_cards import gpu_uuid, h100_machine, mig_uuid, value
from tests.support.nvml_record import NvmlRecord, device
from tests.support.replayed_nvml import replay_environment

CONTROL = f"""#!{sys.executable}
import os, pathlib, sys, time
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    if (pipes / "refuse").exists():
        sys.exit("cannot start here")
    (pipes / "visible").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    (pipes / "control").touch()
    while not (pipes / "quit").exists():
        time.sleep(0.01)
    (pipes / "control").unlink()
    sys.exit(0)
if not (pipes / "control").exists():
    sys.exit("Cannot find MPS control daemon process")
command = sys.stdin.read().split()
if command == ["get_server_list"]:
    print(7)
elif command == ["get_client_list", "7"]:
    print(*[each.name for each in pipes.glob("1*")], sep=chr(10))
elif command == ["quit"]:
    (pipes / "quit").touch()
"""
"""Answers as `nvidia-cuda-mps-control` does; a file named by a number in the folder of the pipes is a client."""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("def answer():\n    pass\n")
    return "app.py:answer"


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control program on the PATH; returns a folder for pipes, which no daemon serves yet."""
    program = tmp_path / "bin" / PROGRAM
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    monkeypatch.setenv(PIPES, str(pipes))
    return pipes


def with_gpus(record: NvmlRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, setting in replay_environment(record.write(tmp_path / "nvml.json")).items():
        monkeypatch.setenv(name, setting)


def load(**settings: Any) -> Profile:
    phase = {name: settings.pop(name) for name in ("rate",) if name in settings}
    return checked_profile({"phases": [{"duration": 1, **phase}], **settings})


def planned(target: str, profile: Profile, tmp_path: Path, **settings: Any) -> Any:
    given = {"tracer": "none", "telemetry": False, **settings.pop("launch", {})}
    return plan_replicas(target, profile, given, folder=tmp_path / "mps", **settings)


def test_users_of_a_closed_loop_are_those_of_all_replicas(target: str, tmp_path: Path) -> None:
    cases = planned(target, load(concurrency=8), tmp_path, numbers=(1, 2, 4))
    assert [(case.name, case.plan.spec.profile.concurrency) for case in cases] == [
        ("plain_1", 8), ("plain_2", 4), ("plain_4", 2),
    ]  # fmt: skip
    assert [len(case.plan.launch.processes) for case in cases] == [1, 2, 4]
    alone = planned(target, load(), tmp_path, numbers=(2, 3))
    assert [case.plan.spec.profile.concurrency for case in alone] == [3, 2]  # six users in all


def test_each_replica_of_an_open_loop_has_the_workers_that_were_asked_for(target: str, tmp_path: Path) -> None:
    cases = planned(target, load(rate=50, concurrency=3), tmp_path, numbers=(1, 2))
    assert [case.plan.spec.profile.concurrency for case in cases] == [3, 3]


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ({"numbers": (2, 4), "profile": load(concurrency=6)}, "6 users"),
        ({"numbers": (2,), "launch": {"num_processes": 2}}, "-np"),
        ({"numbers": (2,), "target": "http://localhost:1/"}, "URL"),
        ({"numbers": (2,), "sharings": ("mps",)}, "no GPU can be used here"),
        ({"numbers": (2,), "sharings": ("mig",)}, "no GPU can be used here"),
        ({"numbers": (2,), "profile": load(objective="5ms", knee={})}, "--find-knee"),
    ],
)
def test_what_is_not_possible_is_refused(target: str, tmp_path: Path, asked: Mapping[str, Any], part: str) -> None:
    given = {"target": target, "profile": load(), **asked}
    with pytest.raises(UsageError, match=part):
        planned(given.pop("target"), given.pop("profile"), tmp_path, **given)


@pytest.mark.parametrize("text", ["", "0", "1,1", "1,x", "-1"])
def test_numbers_of_replicas(text: str) -> None:
    with pytest.raises(UsageError):
        parse_replicas(text)


def test_ways_to_share() -> None:
    assert parse_sharing("mig, plain") == ("plain", "mig")
    for text in ("", "plain,plain", "nvlink"):
        with pytest.raises(UsageError):
            parse_sharing(text)


def test_mig_takes_instances_that_exist(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(h100_machine(2, mig_instances={1: 3}), tmp_path, monkeypatch)
    (case,) = planned(target, load(rate=10), tmp_path, numbers=(2,), sharings=("mig",))
    assert [gpu.uuid for gpu in case.plan.launch.gpus] == [mig_uuid(1, 0), mig_uuid(1, 1)]
    assert [spec.environment["CUDA_VISIBLE_DEVICES"] for spec in case.plan.launch.processes] == [
        mig_uuid(1, 0), mig_uuid(1, 1),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="the most that one GPU has, all alike, is 3"):
        planned(target, load(rate=10), tmp_path, numbers=(4,), sharings=("mig",))


def test_a_gpu_of_one_process_is_shared_through_mps_only(
    target: str, tmp_path: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = h100_machine(1)
    value(record, "nvmlDeviceGetComputeMode", device(gpu_uuid(0)), result=planning.EXCLUSIVE_PROCESS)
    with_gpus(record, tmp_path, monkeypatch)
    assert len(planned(target, load(rate=10), tmp_path, numbers=(1,))) == 1
    with pytest.raises(UsageError, match="EXCLUSIVE_PROCESS"):
        planned(target, load(rate=10), tmp_path, numbers=(1, 2))
    (control / "control").touch()
    assert len(planned(target, load(rate=10), tmp_path, numbers=(2,), sharings=("mps",))) == 1


def test_only_the_cases_of_mps_are_its_clients(
    target: str, tmp_path: Path, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that runs would take the processes of the plain case too."""
    with_gpus(h100_machine(1), tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="--start-mps"):
        planned(target, load(rate=10), tmp_path, numbers=(2,), sharings=("mps",))
    started = planned(target, load(rate=10), tmp_path, numbers=(2,), sharings=("mps",), starts_mps=True)
    assert [spec.environment[PIPES] for spec in started[0].plan.launch.processes] == [str(tmp_path / "mps" / "mps")] * 2
    assert len(started[0].companions()) == 1
    (control / "control").touch()
    with pytest.raises(UsageError, match="runs already"):
        planned(target, load(rate=10), tmp_path, numbers=(2,), sharings=("mps",), starts_mps=True)
    plain, mps = planned(target, load(rate=10), tmp_path, numbers=(2,), sharings=("plain", "mps"))
    pipes = [{spec.environment[PIPES] for spec in case.plan.launch.processes} for case in (plain, mps)]
    assert pipes == [{str(tmp_path / "mps" / "no-mps")}, {str(control)}]
    assert not (tmp_path / "mps" / "no-mps").exists()
    assert (plain.companions(), len(mps.companions())) == ([], 1)


def test_a_daemon_that_was_started_is_ended(control: Path, tmp_path: Path) -> None:
    program = find_mps().program
    assert program is not None
    pipes = tmp_path / "own"
    companion = MpsCompanion(program, pipes, starts=True)
    companion.start(CompanionContext(tmp_path, "run"))
    assert (pipes / "control").exists()
    (pipes / "11").touch()
    companion.process_started(MeasuredProcess("proc_0_gpu_0", 1, 0))
    while not companion._clients:
        pass
    report = companion.stop()
    assert (report.findings, report.record) == ([], {"started": True, "clients": 1})
    assert not (pipes / "control").exists()
    del control


def test_processes_that_are_no_clients_are_told(control: Path, tmp_path: Path) -> None:
    """Another user's client does not count."""
    (control / "control").touch()
    (control / "12").touch()
    facts = find_mps()
    assert (facts.pipes, facts.problem) == (control, None)
    companion = MpsCompanion(str(facts.program), control, starts=False)
    companion.start(CompanionContext(tmp_path, "run"))
    companion.process_started(MeasuredProcess("proc_0_gpu_0", 1, 0))
    report = companion.stop()
    assert [(one.code, one.severity.value) for one in report.findings] == [("mps-not-used", "error")]
    assert (control / "control").exists()


def test_a_daemon_that_does_not_start_says_why(control: Path, tmp_path: Path) -> None:
    pipes = tmp_path / "own"
    pipes.mkdir()
    (pipes / "refuse").touch()
    with pytest.raises(LaunchError, match="cannot start here"):
        MpsCompanion(str(find_mps().program), pipes, starts=True).start(CompanionContext(tmp_path, "run"))
    del control


def case(name: str, **figures: list[float]) -> ReplicaCase:
    return ReplicaCase(
        name=name,
        sharing="plain",
        replicas=int(name[-1]),
        processes=int(name[-1]),
        figures={
            each: OverLaunches(values=list(values), mean=sum(values) / len(values), std=None, low=None, high=None,
                               scope=None)
            for each, values in figures.items()
        },
        standing="not-measured",
        judged_by="",
    )  # fmt: skip


PLACES = [[0, 2, 4], [1, 3, 5]]


def test_of_an_open_loop_the_faster_of_those_that_keep_up() -> None:
    cases = [
        case("plain_1", answers_per_second=[50, 50, 50.01], p99_ms=[30, 31, 30.5], p50_ms=[9, 9, 9.1]),
        case("plain_2", answers_per_second=[50, 50, 50.02], p99_ms=[20, 20.5, 20.2], p50_ms=[10, 10, 10.1]),
    ]
    found = judge(cases, load(rate=50), PLACES)
    assert (found["judged_by"], found["best"], found["chosen"], found["proven"]) == (
        "p99_ms", "plain_2", "plain_2", True,
    )  # fmt: skip
    assert found["cases"][0].ratio == pytest.approx(1.507, abs=0.001)


def test_of_an_open_loop_one_that_does_not_keep_up_is_worse_whatever_its_latency() -> None:
    cases = [
        case("plain_1", answers_per_second=[30, 30.1, 29.9], p99_ms=[10, 10, 10]),
        case("plain_2", answers_per_second=[50, 50, 50.01], p99_ms=[20, 20, 20.1]),
    ]
    found = judge(cases, load(rate=50), PLACES)
    assert (found["judged_by"], found["chosen"], found["proven"]) == ("answers_per_second", "plain_2", True)


def test_with_an_objective_answers_in_time_decide() -> None:
    cases = [
        case("plain_1", answers_per_second=[50, 50, 50.1], goodput=[50, 50, 50.1], p99_ms=[9, 9, 9]),
        case("plain_2", answers_per_second=[50, 50, 50.1], goodput=[50.1, 50, 50.1], p99_ms=[5, 5, 5]),
    ]
    found = judge(cases, load(rate=50, objective="p99=10ms"), PLACES)
    assert (found["judged_by"], found["best"], found["chosen"], found["proven"]) == (
        "goodput", "plain_2", "plain_1", True,
    )  # fmt: skip


def test_a_case_that_failed_is_not_undecided() -> None:
    found = judge([case("plain_1", answers_per_second=[50, 50.5, 49.9]), case("plain_2")], load(), [[0, 1, 2], []])
    assert (found["chosen"], found["proven"]) == ("plain_1", False)
    assert "not measured: plain_2" in found["reason"]
    assert [one.code for one in replica_findings(found)] == ["replicas-case-failed"]


def test_nothing_measured_is_no_choice() -> None:
    found = judge([case("plain_1"), case("plain_2")], load(), [[], []])
    assert (found["best"], found["chosen"], found["proven"]) == (None, None, False)
