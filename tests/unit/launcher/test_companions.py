"""What runs beside a launch: started before any process, stopped whatever happens, in reverse order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfharness.errors import LaunchError, PerfHarnessError, UsageError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness.model.telemetry import ClockTieRecord, TelemetryMeta, TickRecord
from perfharness.telemetry.protocol import Done
from perfharness_launcher.companions.companion import (
    Companion,
    CompanionContext,
    CompanionReport,
    Companions,
    MeasuredProcess,
)
from perfharness_launcher.companions.telemetry import telemetry_findings
from perfharness_launcher.launch import launch
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.plan import LaunchPlan
from perfharness_launcher.processes.supervise import Observer, Patience, Phase
from tests.support import launch_plans

Told = list[str]


@dataclass
class Fake(Companion):
    """Records its calls; raises where requested."""

    name: str
    told: Told
    essential: bool = False
    fails_in: str = ""
    error: Exception = field(default_factory=lambda: ValueError("no sensor"))
    on_measured: Callable[[MeasuredProcess], None] = lambda process: None

    def start(self, context: CompanionContext) -> None:
        self._note("start", f"of {len(context.gpus)} GPUs; folder is there: {context.run_dir.is_dir()}")

    def process_started(self, process: MeasuredProcess) -> None:
        alive = Path(f"/proc/{process.pid}").exists()
        self._note("measured", f"{process.folder}, alive: {alive}")
        self.on_measured(process)

    def stop(self) -> CompanionReport:
        self._note("stop", "")
        return CompanionReport([Finding(f"{self.name}-done", Severity.NOTE, "done")], {"name": self.name})

    def _note(self, step: str, detail: str) -> None:
        self.told.append(f"{self.name} {step} {detail}".strip())
        if self.fails_in == step:
            raise self.error


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
    plan: LaunchPlan, companions: Sequence[Companion], told: Told | None = None, observer: Observer | None = None
) -> RunManifest:
    with launch(plan, ["perfharness"], observer or Observer(), companions=companions) as finished:
        if told is not None:
            told.append("analysis")
        finished.put_in_place()
    return finished.manifest


def test_a_launch_starts_them_before_the_processes_and_stops_them_before_the_analysis(tmp_path: Path) -> None:
    told: Told = []
    manifest = run(
        plan_of(tmp_path, "sleep", "1", num_processes=2), [Fake("clocks", told), Fake("sampler", told)], told
    )
    processes = [step.split()[2] for step in told if step.startswith("clocks measured")]
    assert sorted(processes) == ["proc_0_gpu_0,", "proc_1_gpu_0,"]  # whichever is up first
    assert told == [
        "clocks start of 0 GPUs; folder is there: True",
        "sampler start of 0 GPUs; folder is there: True",
        *(f"{name} measured {process} alive: True" for process in processes for name in ("clocks", "sampler")),
        "sampler stop",
        "clocks stop",
        "analysis",
    ]
    assert manifest.companions == {"clocks": {"name": "clocks"}, "sampler": {"name": "sampler"}}
    codes = [finding.code for finding in manifest.findings]
    assert [code for code in codes if code.endswith("-done")] == ["sampler-done", "clocks-done"]


def test_no_process_lives_when_they_are_stopped(tmp_path: Path) -> None:
    pids: list[int] = []
    alive: list[bool] = []

    class Watcher(Fake):
        def stop(self) -> CompanionReport:
            alive.extend(Path(f"/proc/{pid}").exists() for pid in pids)
            return super().stop()

    run(plan_of(tmp_path, "sleep", "0.2"), [Watcher("w", [], on_measured=lambda process: pids.append(process.pid))])
    assert alive == [False]


def test_one_that_fails_to_start_is_a_finding_and_the_run_goes_on(tmp_path: Path) -> None:
    told: Told = []
    manifest = run(plan_of(tmp_path), [Fake("a", told), Fake("b", told, fails_in="start"), Fake("c", told)])
    assert "b stop" not in told
    assert told[-2:] == ["c stop", "a stop"]
    (failed,) = (finding for finding in manifest.findings if finding.code == "companion-failed")
    assert "no sensor" in failed.message


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (UsageError("-m needs root"), UsageError, "-m"),
        (ValueError("no sensor"), LaunchError, "no sensor"),
    ],
)
def test_an_essential_one_that_fails_to_start_ends_the_launch_before_any_process(
    tmp_path: Path, error: Exception, raised: type[PerfHarnessError], words: str
) -> None:
    told: Told = []
    marker = tmp_path / "ran"
    companions = [
        Fake("a", told),
        Fake("b", told, essential=True, fails_in="start", error=error),
        Fake("c", told),
    ]
    with pytest.raises(raised, match=words):
        run(plan_of(tmp_path, "touch", str(marker)), companions)
    assert [entry.split(" of")[0] for entry in told] == ["a start", "b start", "a stop"]
    assert not marker.exists()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("step", ["measured", "stop"])
def test_one_that_fails_later_keeps_no_other_from_being_told_and_stopped(tmp_path: Path, step: str) -> None:
    told: Told = []
    manifest = run(
        plan_of(tmp_path), [Fake("a", told), Fake("b", told, essential=True, fails_in=step), Fake("c", told)]
    )
    assert [entry for entry in told if "stop" in entry] == ["c stop", "b stop", "a stop"]
    assert sum("measured" in entry for entry in told) == 3
    assert [finding.code for finding in manifest.findings].count("companion-failed") == 1


def test_they_are_stopped_when_no_process_can_be_started_and_what_they_found_is_told(tmp_path: Path) -> None:
    told: Told = []
    plan = plan_of(tmp_path, str(tmp_path / "no_such_program"))
    with pytest.raises(LaunchError, match="done"):
        run(plan, [Fake("a", told)])
    assert told[-1] == "a stop"


def test_ctrl_c_ends_the_processes_and_then_stops_them(tmp_path: Path) -> None:
    told: Told = []
    fake = Fake("a", told, on_measured=lambda process: os.kill(os.getpid(), signal.SIGINT))
    manifest = run(plan_of(tmp_path, "sleep", "600"), [fake], told)
    assert manifest.processes[0].ended == "interrupted"
    assert told[-2:] == ["a stop", "analysis"]


def test_a_fault_of_ours_in_the_middle_stops_them(tmp_path: Path) -> None:
    class Faulty(Observer):
        def poll(self, phases: Sequence[Phase]) -> None:
            if Phase.RUNNING in phases:
                raise ZeroDivisionError

    told: Told = []
    with pytest.raises(ZeroDivisionError):
        run(plan_of(tmp_path, "sleep", "600"), [Fake("a", told), Fake("b", told)], observer=Faulty())
    assert told[-2:] == ["b stop", "a stop"]


@dataclass
class Outlasting(Fake):
    outlasts_tracers: bool = True

    def processes_ended(self) -> None:
        self._note("ended", "")


@pytest.mark.parametrize("fails_in", ["", "ended"])
def test_one_that_outlasts_the_tracers_is_told_first_and_stops_last(tmp_path: Path, fails_in: str) -> None:
    told: Told = []
    companions = Companions([Fake("a", told), Outlasting("b", told, fails_in=fails_in), Fake("c", told)])
    companions.start(CompanionContext(tmp_path, "run"))
    told.clear()
    companions.processes_ended()
    assert told == ["b ended", "c stop", "a stop"]
    companions.stop()
    companions.stop()
    assert told[3:] == ["b stop"]
    assert set(companions.records) == {"a", "b", "c"}
    assert [one.code for one in companions.findings].count("companion-failed") == bool(fails_in)


def test_a_disk_that_is_almost_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.code for finding in run(plan_of(tmp_path), []).findings] == []
    monkeypatch.setattr("perfharness_launcher.launch.shutil.disk_usage", lambda _: SimpleNamespace(free=5000))
    assert [finding.code for finding in run(plan_of(tmp_path), []).findings] == ["disk-full"]


@dataclass
class OnlyClient(Fake):
    """The processes serve this one alone: they are to end once they are up."""

    is_up: Callable[[], bool] = lambda: True

    def is_done(self) -> bool:
        if self.fails_in == "is_done":
            raise self.error
        return self.is_up()


SERVERS = {
    "ends": "import time\ntry:\n    open(UP, 'w').close(); time.sleep(600)\nexcept KeyboardInterrupt:\n    pass",
    "interrupted": "import time; open(UP, 'w').close(); time.sleep(600)",
    "deaf": (
        "import signal, time\nfor one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, signal.SIG_IGN)\n"
        "open(UP, 'w').close(); time.sleep(600)"
    ),
    "fails": "import sys; open(UP, 'w').close(); sys.exit(7)",
}


@pytest.mark.parametrize(
    ("server", "ended"), [("ends", "ok"), ("interrupted", "ok"), ("deaf", "failed"), ("fails", "failed")]
)
def test_a_server_is_ended_when_its_only_client_is_done(tmp_path: Path, server: str, ended: str) -> None:
    up = tmp_path / "up"
    program = SERVERS[server].replace("UP", repr(str(up)))
    plan = plan_of(tmp_path, sys.executable, "-c", program)
    is_up = (lambda: False) if server == "fails" else up.exists
    patience = Patience(signal=0.3) if server == "deaf" else Patience()
    client = OnlyClient("client", [], is_up=is_up)
    with launch(plan, ["perfharness"], Observer(), companions=[client], patience=patience) as finished:
        manifest = finished.manifest
    (record,) = manifest.processes
    assert record.ended == ended
    codes = {finding.code for finding in manifest.findings}
    assert ("process-failed" in codes) == (ended == "failed")


@pytest.mark.parametrize(("overrun", "blames_cpus"), [(4560, False), (14, True), (0, True)])
def test_late_readings_are_blamed_on_the_cpus_only_where_these_were_late(overrun: int, blames_cpus: bool) -> None:
    """On a machine of which 7 % of the CPUs were used, GPM was late 4589 times and the quotas, as often read, 14."""
    meta = TelemetryMeta(
        period_ns=50_000_000,
        clock=ClockTieRecord(offset_ns=0, error_ns=1),
        ticks=[
            TickRecord(
                source="gpm", period_ns=20_000_000, ticks=28174, late=1189, missed=3400, overrun=overrun,
                longest_ns=61_000_000,
            ),
            TickRecord(source="quotas", period_ns=20_000_000, ticks=31570, late=11, missed=3),
        ],
    )  # fmt: skip
    (finding,) = telemetry_findings(Done(meta=meta), None)
    assert finding.code == "telemetry-late"
    assert bool(finding.hint) == blames_cpus  # to leave a core free
