"""Find nsys on the machine and probe its capabilities: version, importer, options, and whether it records nvtx."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from perfharness.errors import LaunchError, PerfHarnessError, ToolNotFoundError
from perfharness.trace import open_trace
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys.collect import ToolStoppedError, collect_one, run_tool
from perfharness_launcher.nsys.command_line import NsysInstall, NsysTracing, profile_command

NSYS_VARIABLE = "PERFHARNESS_NSYS"
"""Path of an nsys, preferred to all others."""

PROBE_TIMEOUT_S = 60
IMPORTER = "QdstrmImporter"

SEARCH_PATHS = (
    ("/opt/nvidia/nsight-systems*/*/bin/nsys", "Nsight Systems in /opt/nvidia"),
    ("/opt/nvidia/nsight-systems*/*/target-linux-*/nsys", "Nsight Systems in /opt/nvidia"),
    ("/usr/local/cuda*/bin/nsys", "a CUDA toolkit"),
    ("/usr/local/cuda*/nsight-systems*/target-linux-*/nsys", "a CUDA toolkit"),
    ("/usr/local/cuda*/nsight-systems*/bin/nsys", "a CUDA toolkit"),
    ("/usr/lib/nsight-systems/target-linux-*/nsys", "a package of the distribution"),
    ("/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys", "inside Nsight Compute"),
    ("/usr/local/cuda*/nsight-compute*/host/target-linux-*/nsys", "inside Nsight Compute"),
)

INSTALL_NSYS = "perfharness doctor --install-nsys"
"""The command that gets an nsys without root."""

TRIAL_RANGES = 2
TRIAL_TIMEOUT_S = 120
TRIAL_PROGRAM = f"""
import nvtx
for _ in range({TRIAL_RANGES}):
    nvtx.push_range("trial", domain="perfharness.trial")
    nvtx.pop_range(domain="perfharness.trial")
"""

NVTX_PINNED = "0.2.11"
"""Newest nvtx that every nsys records; from 0.2.12 on it uses an interface that older ones do not record."""

NSYS_WITHOUT = (2023, 4)
"""Newest nsys seen to record no range of a newer nvtx, without a warning."""

NSYS_RECORDS = (2025, 3)
"""Oldest nsys seen to record both."""


def find_nsys(
    asked: Path | None, environ: Mapping[str, str], *, root: Path = Path("/"), project: Path | None = None
) -> tuple[NsysInstall, ...]:
    """Every nsys found, usable ones first, newest first; only `asked` where one is asked for.

    Args:
        root: what absolute paths are relative to.
        project: the checkout whose `.nsys` folder is looked into; None: this one.
    """
    if asked is not None:
        return (probe(asked, "--nsys"),)
    candidates = _distinct(_candidates(environ, root, project or Path(__file__).resolve().parents[3]))
    if not candidates:
        return ()
    with ThreadPoolExecutor(max_workers=4) as pool:
        installs = list(pool.map(lambda candidate: probe(*candidate), candidates))

    def rank(install: NsysInstall) -> tuple[bool, bool, tuple[int, ...]]:
        return install.usable, NSYS_VARIABLE in install.source, install.version or ()

    return tuple(sorted(installs, key=rank, reverse=True))


def probe(path: Path, source: str) -> NsysInstall:
    """What one nsys can do."""
    if not path.exists():
        return NsysInstall(path, source=source, problems=(f"{path} does not exist",))
    if path.is_dir():
        return NsysInstall(path, source=source, problems=(f"{path} is a folder; name the nsys program in it",))
    if not os.access(path, os.X_OK):
        return NsysInstall(path, source=source, problems=(f"{path} is not executable",))
    version_text = _run([str(path), "--version"])
    match = re.search(r"Nsight Systems version (\S+)", version_text or "")
    if match is None:
        answer = (version_text or "").strip().splitlines()
        what = f"to --version it prints {answer[0][:80]!r}" if answer else "it does not answer --version"
        return NsysInstall(path, source=source, problems=(f"{path} is no Nsight Systems: {what}",))
    version = tuple(int(part) for part in re.findall(r"\d+", match.group(1).partition("-")[0])[:3])
    listing = _run([str(path), "profile", "--help"]) or ""
    options = frozenset(re.findall(r"--([a-z][a-z0-9-]+)", listing))
    home = _home(path)
    importer, is_found = find_importer(home)
    problems = _problems(path, home, importer, options)
    return NsysInstall(
        path=path,
        version=version,
        version_text=match.group(1),
        importer=importer,
        finds_importer=is_found,
        profile_options=options,
        traces=_traces(listing),
        cupti=_newest_cupti(home),
        source=source,
        problems=tuple(problems),
    )


def _traces(listing: str) -> frozenset[str]:
    """What `--trace` can name, of `nsys profile --help`."""
    found = re.search(r"^\s*-t, --trace=.*?(?=^\s*-{1,2}[a-z])", listing + "\n-z", re.MULTILINE | re.DOTALL)
    return frozenset(re.findall(r"'([a-z][a-z0-9-]*)'", found.group())) if found else frozenset()


def find_importer(home: Path | None) -> tuple[Path | None, bool]:
    """The importer that belongs to a `target-linux-*` folder, and whether nsys itself finds it.

    Nsight Systems has `host-linux-*` next to `target-linux-*`. Nsight Compute has the same importer in
    `host/linux-desktop-*`, where its nsys does not find it and leaves the `.qdstrm` as it is.
    """
    if home is None:
        return None, False
    for pattern, is_found in ((f"host-linux-*/{IMPORTER}", True), (f"linux-desktop-*/{IMPORTER}", False)):
        for importer in sorted(home.parent.glob(pattern)):
            return importer, is_found
    return None, False


def missing_libraries(program: Path) -> list[str]:
    """Shared libraries that the loader does not find for `program`; empty where ldd cannot tell."""
    listing = _run(["ldd", str(program)]) or ""
    return sorted(set(re.findall(r"^\s*(\S+) => not found", listing, re.MULTILINE)))


def _problems(path: Path, home: Path | None, importer: Path | None, options: frozenset[str]) -> list[str]:
    problems = []
    if "trace" not in options:
        problems.append(f"{path} has no `profile --trace`")
    if home is None:
        return problems  # a wrapper script: where it keeps its importer cannot be seen; the run will show
    if importer is None:
        problems.append(
            f"{path} has no importer ({IMPORTER}) in host-linux-* next to {home.name}: it records, but the recording"
            " cannot be turned into a report"
        )
    elif missing := missing_libraries(importer):
        problems.append(f"{importer} cannot run: {', '.join(missing)} not found")
    return problems


def _candidates(environ: Mapping[str, str], root: Path, project: Path) -> Iterator[tuple[Path, str]]:
    if named := environ.get(NSYS_VARIABLE):
        yield Path(named), f"the environment variable {NSYS_VARIABLE}"
    if on_path := shutil.which("nsys", path=environ.get("PATH", os.defpath)):
        yield Path(on_path), "PATH"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if toolkit := environ.get(variable):
            yield from ((found, variable) for found in sorted(Path(toolkit).glob("bin/nsys")))
    for pattern, source in SEARCH_PATHS:
        yield from ((found, source) for found in sorted(root.glob(pattern.lstrip("/"))))
    for folder, source in ((installed_nsys(environ), INSTALL_NSYS), (project / ".nsys", "scripts/install_nsys")):
        yield from ((found, source) for found in sorted(folder.glob("target-linux-*/nsys")))


def installed_nsys(environ: Mapping[str, str]) -> Path:
    """Where `perfharness doctor --install-nsys` puts an nsys: the user's folder for data of programs."""
    data = Path(environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local/share")
    return data / "perfharness" / "nsys"


def install_nsys(environ: Mapping[str, str]) -> int:
    """Get an nsys from Debian's packages, without root; returns the exit code. What is done goes to stderr."""
    script = Path(__file__).with_name("install_nsys.sh")
    command = ["bash", str(script), "--dest", str(installed_nsys(environ))]
    return subprocess.run(command, env=dict(environ), stdout=subprocess.DEVNULL, check=False).returncode


def _distinct(candidates: Iterable[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """Each real file once, under the first place that named it."""
    distinct: dict[Path, tuple[Path, str]] = {}
    for path, source in candidates:
        distinct.setdefault(path.resolve(), (path, source))
    return list(distinct.values())


def _home(path: Path) -> Path | None:
    """The real `target-linux-*` folder of an nsys, or None where the path is a wrapper script."""
    folder = path.resolve().parent
    if folder.name.startswith("target-linux-"):
        return folder
    return folder if (folder / "libToolsInjection64.so").exists() else None


def _newest_cupti(home: Path | None) -> tuple[int, int] | None:
    if home is None:
        return None
    versions = [
        (int(match.group(1)), int(match.group(2)))
        for library in home.glob("libcupti.so.*")
        if (match := re.fullmatch(r"libcupti\.so\.(\d+)\.(\d+)", library.name))
    ]
    return max(versions, default=None)


def _run(command: list[str]) -> str | None:
    """Output of a short program, or None where it cannot be run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace")


# ---- does it record this nvtx? ----


class Pair(Enum):
    """Whether an nsys records the ranges of an nvtx."""

    GOOD = "good"
    UNKNOWN = "unknown"
    BAD = "bad"


def pair(nsys: NsysInstall, nvtx: str | None) -> Pair:
    """Judge a pair by a trial on this machine, else by what is known.

    `UNKNOWN`: between the newest nsys that does not record it and the oldest that does.
    """
    if nsys.records_nvtx is not None:
        return Pair.GOOD if nsys.records_nvtx else Pair.BAD
    if nvtx is None or numbers(nvtx) <= numbers(NVTX_PINNED):
        return Pair.GOOD
    if nsys.version is None:
        return Pair.UNKNOWN
    if nsys.version[:2] <= NSYS_WITHOUT:
        return Pair.BAD
    return Pair.GOOD if nsys.version[:2] >= NSYS_RECORDS else Pair.UNKNOWN


def numbers(version: str) -> tuple[int, ...]:
    """`0.2.12` -> (0, 2, 12)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def dotted(version: Sequence[int]) -> str:
    """`(12, 4)` -> 12.4."""
    return ".".join(map(str, version))


def too_old_for_driver(nsys: NsysInstall, cuda_driver: tuple[int, int] | None) -> str | None:
    """Why this nsys would lose GPU work on this driver, or None."""
    if cuda_driver is None or nsys.cupti is None or nsys.cupti[0] >= cuda_driver[0]:
        return None
    return (
        f"nsys {nsys.version_text} knows CUDA up to {dotted(nsys.cupti)} but the driver runs CUDA"
        f" {dotted(cuda_driver)}: it would lose kernels without a word"
    )


@dataclass(frozen=True)
class Trial:
    """Result of tracing a tiny program.

    Args:
        ranges: how many of the `TRIAL_RANGES` are in the trace; None: there was no trace to read.
        reason: why not all of them; empty where they do.
    """

    ranges: int | None
    reason: str = ""

    @property
    def records_nvtx(self) -> bool:
        """Whether every range was recorded."""
        return self.ranges == TRIAL_RANGES


def try_nsys(nsys: NsysInstall, python: str) -> Trial:
    """Trace a tiny program that makes two NVTX ranges; takes a second or two."""
    with tempfile.TemporaryDirectory(prefix="perfharness-") as name:
        folder = Path(name)
        (folder / "trial_program.py").write_text(TRIAL_PROGRAM)  # `-c` would have the current folder on its path
        command = profile_command(NsysTracing(nsys), folder, [python, str(folder / "trial_program.py")])
        failure = ""
        try:
            run_tool(command, folder, Interrupts(), TRIAL_TIMEOUT_S)
        except (ToolNotFoundError, ToolStoppedError) as error:
            return Trial(None, f"{nsys.path} could not run a program of two ranges: {error}")
        except LaunchError as error:  # there may be a trace nevertheless
            failure = str(error)
        collected = collect_one(nsys, folder, Interrupts(), TRIAL_TIMEOUT_S)
        if collected.trace is None:
            reasons = [finding.message for finding in collected.findings] or [failure or f"{nsys.path} left no trace"]
            return Trial(None, "; ".join(reasons))
        try:
            ranges = open_trace(folder / collected.trace).ranges
        except PerfHarnessError as error:
            return Trial(None, str(error))
        count = len(ranges.start_ns)
        return Trial(count, "" if count == TRIAL_RANGES else f"{count} of {TRIAL_RANGES} ranges were recorded")
