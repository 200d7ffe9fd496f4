"""`perfharness launch` under a real nsys: traces, failures of the tool, and nothing of it left running."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from perfharness.trace import open_trace
from perfharness_launcher.collect import try_nsys
from perfharness_launcher.nsys import probe
from tests.integration.launches import (
    CHECKOUT,
    NSYS,
    NVTX_SITE,
    PATIENCE_S,
    codes,
    environment,
    hanging,
    launching,
    manifest,
    processes_naming,
    run_to_the_end,
    wait_for,
)

pytestmark = pytest.mark.nsys

COLLECTOR = Path(NSYS).parent

SCRIPT = """
import os, signal, sys, time
import nvtx
index = int(os.environ["PERFHARNESS_PROCESS_INDEX"])
mode = sys.argv[1] if len(sys.argv) > 1 else ""
with nvtx.annotate("batch", domain="pipeline"):
    time.sleep(0.05)
if mode == "several" and index == 1:
    if os.fork() == 0:
        for _ in range(20):  # nsys may miss the first ones of a fork
            with nvtx.annotate("in the fork", domain="pipeline"):
                time.sleep(0.05)
        os._exit(0)
    os.wait()
if mode == "several" and index == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "hang":
    print("hanging", flush=True)
    time.sleep(600)
"""


def own_environment(**more: str) -> dict[str, str]:
    return environment(NVTX_SITE, **more)


def launch(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    return run_to_the_end(("-w", "0", *arguments), own_environment(**more))


def range_names(trace: Path) -> list[str]:
    opened = open_trace(trace)
    return sorted(opened.names[code] for code in opened.ranges.name)


def own_tmpdirs(launcher: subprocess.Popen[str]) -> set[Path]:
    """The temporary folder of each nsys of a launch."""
    running = [child for child in psutil.Process(launcher.pid).children() if "profile" in child.cmdline()]
    return {Path(child.environ()["TMPDIR"]) for child in running}


def sessions(folders: set[Path]) -> set[str]:
    """Names of the sessions that nsys keeps in these temporary folders."""
    listed = [
        subprocess.run(
            [NSYS, "sessions", "list"],
            capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(folder)},
        ).stdout
        for folder in folders
    ]  # fmt: skip
    return {line.split()[-1] for text in listed for line in text.splitlines()[1:] if line.strip()}


def test_processes_are_traced_with_their_forks_and_their_ends_come_through(script: Path, tmp_path: Path) -> None:
    """One ends well, one forks a worker, one is killed."""
    out = tmp_path / "out"
    script.with_name("perfharness.toml").write_text('[launch]\ndomain = "pipeline"\nbatch-pattern = "batch"\n')
    done = launch("-np", 3, "--nsys", NSYS, "-o", out, script, "several")
    assert done.returncode == 1, done.stdout + done.stderr
    ends = [(one["ended"], one["exit_code"], one["signal"]) for one in manifest(out)["processes"]]
    assert ends == [("ok", 0, None), ("ok", 0, None), ("failed", None, "SIGKILL")]
    well, forked, killed = (set(range_names(out / f"proc_{one}_gpu_0" / "trace.sqlite")) for one in range(3))
    assert (well, forked) == ({"batch"}, {"batch", "in the fork"})
    assert killed <= {"batch"}  # nsys may not have had it yet
    for name in ("proc_0_gpu_0", "proc_1_gpu_0"):
        assert (out / name / "trace.nsys-rep").stat().st_size > 0
        assert (out / name / "benchmark.json").exists()
    tracer = manifest(out)["tracer"]
    assert (tracer["kind"], tracer["path"]) == ("nsys", NSYS)
    assert "start-barrier-missed" in codes(out), "plain NVTX ranges cannot be held"
    assert processes_naming(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_daemon_and_no_session_is_left_behind(script: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    with launching(("-np", 2, "--nsys", NSYS, "-o", out, script, "hang"), own_environment()) as launcher:
        wait_for(lambda: hanging(out, 2))
        own = {f"profile-{process.pid}" for process in psutil.Process(launcher.pid).children()}
        folders = own_tmpdirs(launcher)
        assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * 2
        assert len(own & sessions(folders)) == 2
        launcher.send_signal(number)
        code = launcher.wait(PATIENCE_S)
    if number is signal.SIGKILL:
        wait_for(lambda: not processes_naming(str(tmp_path)))
    else:
        assert code == 1
        assert [record["ended"] for record in manifest(out)["processes"]] == ["interrupted"] * 2
        assert range_names(out / "proc_1_gpu_0" / "trace.sqlite") == ["batch"]
        assert not any(folder.exists() for folder in folders)
    assert processes_naming(str(tmp_path)) == []


@pytest.mark.slow
def test_an_nsys_killed_in_the_middle_is_told_and_costs_only_its_own_trace(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with launching(("-np", 2, "--nsys", NSYS, "-o", out, script, "hang"), own_environment()) as launcher:
        wait_for(lambda: hanging(out, 2))
        (victim,) = [
            process
            for process in psutil.Process(launcher.pid).children()
            if "proc_1_gpu_0/trace" in " ".join(process.cmdline())
        ]
        victim.kill()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(PATIENCE_S) == 1
    findings = manifest(out)["findings"]
    (died,) = [finding for finding in findings if finding["code"] == "tracer-died"]
    assert died["process"] == "proc_1_gpu_0"
    assert range_names(out / "proc_0_gpu_0" / "trace.sqlite") == ["batch"]
    assert processes_naming(str(tmp_path)) == []


FAILING = """#!/bin/sh
# The real importer, but the first imports come to a bad end, as its own do now and then.
case "$*" in
  *--input-file*) echo x >> "$0.calls" ;;
  *) exec "$0.real" "$@" ;;
esac
if [ "$(wc -l < "$0.calls")" -gt {failures} ]; then exec "$0.real" "$@"; fi
"$0.real" "$@"
echo 'Import Failed with unexpected exception: main.cpp(34)' >&2
echo 'Error {{' >&2
{end}
"""


def failing_nsys(folder: Path, host: str, failures: int, end: str) -> Path:
    """A copy of nsys whose importer, in the folder named `host` beside it, fails the first times."""
    collector = _copy(COLLECTOR, folder / COLLECTOR.name)
    importer = _copy(COLLECTOR.parent / "host-linux-x64", folder / host) / "QdstrmImporter"
    importer.rename(importer.with_suffix(".real"))
    importer.write_text(FAILING.format(failures=failures, end=end))
    importer.chmod(0o755)
    return collector / "nsys"


BESIDE, APART = "host-linux-x64", "linux-desktop-x64"
"""Where the importer is: nsys itself looks for it in the first folder only."""


@pytest.mark.parametrize(
    ("host", "failures", "end", "code", "found", "left"),
    [
        (BESIDE, 2, "exit 2", 0, [], {"nsys-rep", "sqlite"}),
        pytest.param(APART, 1, "kill -SEGV $$", 0, [], {"nsys-rep", "sqlite"}, marks=pytest.mark.slow),
        pytest.param(
            BESIDE,
            9,
            "kill -SEGV $$",
            3,
            ["trace-missing"],
            {"nsys-rep", "qdstrm", "sqlite"},
            marks=pytest.mark.slow,
        ),
        pytest.param(APART, 9, "exit 4", 1, ["trace-missing", "trace-missing"], {"qdstrm"}, marks=pytest.mark.slow),
    ],
)
def test_an_import_that_fails_is_tried_again(
    script: Path, tmp_path: Path, host: str, failures: int, end: str, code: int, found: list[str], left: set[str]
) -> None:
    out, folder = tmp_path / "out", tmp_path / "out" / "proc_0_gpu_0"
    done = launch("--nsys", failing_nsys(tmp_path / "host", host, failures, end), "-o", out, script)
    assert (done.returncode, codes(out)) == (code, found), (folder / "tracer.log").read_text()
    assert {path.name.partition(".")[2] for path in folder.glob("trace.*")} == left
    if not found:
        assert range_names(folder / "trace.sqlite") == ["batch"]
        assert (folder / "tracer.log").read_text().count("Import Failed") == failures


@pytest.mark.slow
def test_a_nvtx_too_new_is_not_recorded_and_auto_knows(script: Path, tmp_path: Path) -> None:
    newer = importlib.metadata.version("nvtx")
    if newer == "0.2.11":
        pytest.skip("this environment has no nvtx newer than 0.2.11")
    out = tmp_path / "out"
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "launcher")])
    launch("--nsys", NSYS, "-o", out, script, PYTHONPATH=path)
    tracer = manifest(out)["tracer"]
    assert tracer["kind"] == "embedded"
    assert f"nvtx {newer}" in tracer["reason"]
    assert try_nsys(probe(Path(NSYS), "here"), sys.executable) == 0


@pytest.mark.slow
def test_a_program_that_is_no_python_is_traced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    launch("--nsys", NSYS, "-o", out, "echo", "hello")
    folder = out / "proc_0_gpu_0"
    assert (folder / "stdout.log").read_text() == "hello\n"
    assert (folder / "trace.sqlite").exists()


def _copy(source: Path, target: Path) -> Path:
    """A copy by hard links where the file system allows it: nsys looks for its importer beside its own real path."""
    try:
        shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    except shutil.Error:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True)
    return target
